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
    """Verify on a policy that K candidates equal K separate calls of it.

    Draws K candidates for a synthetic observation and compares each with the policy's own call under the same noise, counts
    encoder calls, and compares K = 1 and the detached policy with the original policy. Flags override KEYSTONE_* environment
    variables.

    Args:
        checkpoint: a policy of keystone-study, a folder written by `keystone train` or LeRobot, a LeRobot name on the hub, or
            package.module:function of a function that returns a policy and an observation (docs/profile.md).
        spec: how candidates are drawn and one is selected.
        device: where to run; default the checkpoint's.
        trust_remote_code: run code that the checkpoint names but LeRobot did not install (docs/security.md).
    """
    wanted = spec_from(given(spec), options_from_environment())
    if wanted.k in (1, "auto"):
        raise KeystoneError(f"k={wanted.k}: expected a number of candidates to check, 2 or more")
    most = wanted.most_k
    assert most is not None
    several = f"K = {most}" if wanted.k_range is None else f"K = {most}, the most of {wanted.k}"
    from keystone_robotics.policies.load import check_names

    check_names(checkpoint)  # before torch is imported
    import torch
    from rich.console import Console

    import keystone_robotics as keystone
    from keystone_robotics.profiling.subject import load_subject, round_of

    policy, observation, call = load_subject(checkpoint, device, None, trust_remote_code)

    def act() -> object:
        prepare, make_round = round_of(policy, observation, call)
        torch.manual_seed(0)
        prepare()
        with torch.no_grad():
            return make_round()

    handle = keystone.attach(policy, k=1)  # raises here, before anything runs, if the policy cannot be attached to
    with handle.engine.timer.count(handle.engine.encoder_names) as calls_alone:
        single = act()
    keystone.detach(policy)
    plain = act()
    if not _equal(single, plain):
        raise KeystoneError("with K = 1 the policy's actions differ from those without KeyStone")
    handle = keystone.attach(policy, wanted, check="all")
    handle.k = (
        most  # a range draws twice where candidates disagree: all of them in one draw can be compared and counted
    )
    act()
    finding = handle.engine.finding
    with handle.engine.timer.count(handle.engine.encoder_names) as calls:
        act()
    keystone.detach(policy)
    if finding is None:
        raise KeystoneError("no round was drawn: the policy's call does not reach the overridden sampler")
    if calls != calls_alone:
        raise KeystoneError(f"the context was encoded {calls} times at {several}, {calls_alone} without KeyStone")
    if not _equal(act(), plain):
        raise KeystoneError("after detaching, the policy's actions differ from those before attaching")
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"[bold green]ok[/]  {checkpoint} ({type(policy).__name__}), adapter {handle.adapter}")
    console.print("    K = 1, and detached: bit-identical to the policy alone")
    console.print(
        f"    {several}: equal to {finding.compared} single calls up to {finding.difference:.1e}, "
        f"on the {finding.path} path"
    )
    console.print(f"    encoder calls per observation: {calls}, as without KeyStone")
    console.print(f"    {handle.last}")


def _equal(one: object, other: object) -> bool:
    """Whether two results of a policy, tensors or arrays in any structure, are the same bit for bit."""
    import numpy as np
    import torch
    from torch.utils._pytree import tree_leaves

    def arrays(value: object) -> list[torch.Tensor]:
        leaves = [leaf for leaf in tree_leaves(value) if hasattr(leaf, "shape")]
        return [leaf if isinstance(leaf, torch.Tensor) else torch.as_tensor(np.asarray(leaf)) for leaf in leaves]

    ours, theirs = arrays(one), arrays(other)
    return len(ours) == len(theirs) > 0 and all(map(torch.equal, ours, theirs))
