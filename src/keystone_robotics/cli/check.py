"""The command `keystone check`: verify K-wide sampling on a checkpoint."""

from __future__ import annotations

import tyro

from keystone_robotics.cli.flags import given, spec_flags
from keystone_robotics.errors import KeystoneError
from keystone_robotics.spec import options_from_environment, spec_from

SpecFlags = spec_flags()


def run(
    checkpoint: tyro.conf.Positional[str],
    /,
    spec: tyro.conf.OmitArgPrefixes[SpecFlags],  # type: ignore[valid-type]
    device: str | None = None,
    trust_remote_code: bool = False,
) -> None:
    """Verify on a LeRobot checkpoint that K candidates equal K separate calls of the policy.

    Draws K candidates for a synthetic observation and compares each with the policy's own call under the same noise, counts
    encoder calls, and compares K = 1 and the detached policy with the original policy. Flags override KEYSTONE_* environment
    variables.

    Args:
        checkpoint: folder or hub name of a LeRobot checkpoint, or the name of one that comes with KeyStone.
        spec: how candidates are drawn and one is selected.
        device: where to run; default the checkpoint's.
        trust_remote_code: run code that the checkpoint names but LeRobot did not install (docs/security.md).
    """
    wanted = spec_from(given(spec), options_from_environment())
    if wanted.k in (1, "auto"):
        raise KeystoneError(f"k={wanted.k}: expected a number of candidates to check, 2 or more")
    import torch
    from rich.console import Console

    import keystone_robotics as keystone
    from keystone_robotics.named import is_reference
    from keystone_robotics.policies.load import check_device, find_policy, find_provider

    if device is not None:
        check_device(device, here=True)
    folder = find_policy(checkpoint)
    if is_reference(checkpoint) or find_provider(folder) is not None:
        raise KeystoneError(
            f"{checkpoint} is not a LeRobot checkpoint, which this command requires: `keystone profile {checkpoint}` runs the "
            "same check in its first round"
        )
    from keystone_robotics.policies.lerobot_checkpoint import load_policy, synthetic_observation

    policy, preprocess, _ = load_policy(str(folder or checkpoint), device, trust_remote_code)
    batch = preprocess(synthetic_observation(policy.config))

    def act() -> torch.Tensor:
        torch.manual_seed(0)
        policy.reset()
        action: torch.Tensor = policy.select_action(dict(batch))
        return action

    handle = keystone.attach(policy, k=1)  # raises here, before anything runs, if the policy cannot be attached to
    with handle.engine.timer.count(handle.engine.encoder_names) as calls_alone:
        single = act()
    keystone.detach(policy)
    plain = act()
    if not torch.equal(single, plain):
        raise KeystoneError("with K = 1 the policy's actions differ from those without KeyStone")
    handle = keystone.attach(policy, wanted, check="all")
    act()
    finding = handle.engine.finding
    with handle.engine.timer.count(handle.engine.encoder_names) as calls:
        act()
    keystone.detach(policy)
    if finding is None:
        raise KeystoneError("no round was drawn: select_action does not call the overridden sampler")
    if calls != calls_alone:
        raise KeystoneError(f"the context was encoded {calls} times at K = {wanted.k}, {calls_alone} without KeyStone")
    if not torch.equal(act(), plain):
        raise KeystoneError("after detaching, the policy's actions differ from those before attaching")
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"[bold green]ok[/]  {policy.name} ({type(policy).__name__}), adapter {handle.adapter}")
    console.print("    K = 1, and detached: bit-identical to the policy alone")
    console.print(
        f"    K = {wanted.k}: equal to {finding.compared} single calls up to {finding.difference:.1e}, "
        f"on the {finding.path} path"
    )
    console.print(f"    encoder calls per observation: {calls}, as without KeyStone")
    console.print(f"    {handle.last}")
