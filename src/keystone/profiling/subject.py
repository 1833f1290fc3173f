"""A policy by name with something to look at, and how a policy is asked for one round."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from keystone.errors import KeystoneError


def load_subject(name: str, device: str | None, batch: int) -> tuple[Any, Any]:
    """A policy and a made-up observation of B rows for it.

    Args:
        name: of a policy that comes with KeyStone, a folder that ``keystone train`` or LeRobot wrote, or LeRobot's name on the
            hub.
        device: where it runs; None is what the checkpoint says.
        batch: B.
    """
    from keystone.named import is_reference
    from keystone.policies.flow import TYPE, load_flow
    from keystone.policies.load import check_device, find_policy, policy_type

    if device is not None:
        check_device(device, here=True)
    folder = find_policy(name)
    if folder is None and is_reference(name):
        raise KeystoneError(
            f"{name}: its observations are not known; in Python, keystone.profile(policy, observation) is told"
        )
    generator = torch.Generator().manual_seed(0)
    if folder is not None and policy_type(folder) == TYPE:
        flow = load_flow(folder).to(device or "cpu")
        observation = torch.randn(batch, flow.config.observation_dim, generator=generator)
        return flow, observation.to(flow.action_mean.device)
    from keystone.integrations.lerobot_checkpoint import load_policy, made_up_observation

    policy, preprocess, _ = load_policy(str(folder or name), device)
    return policy, _rows(preprocess(made_up_observation(policy.config)), batch)


def _rows(observation: Mapping[str, Any], batch: int) -> dict[str, Any]:
    """One observation B times."""

    def repeat(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.ndim:
            return value.repeat_interleave(batch, dim=0)
        return value * batch if isinstance(value, list) else value

    return {name: repeat(value) for name, value in observation.items() if name != "action"}


def round_of(
    policy: Any, observation: Any, call: Callable[[Any], object] | None = None
) -> tuple[Callable[[], object], Callable[[], object]]:
    """How a policy gets ready for a round, and how it makes one.

    Args:
        policy: with ``select_action`` as LeRobot's have it, or one that is called with an observation.
        observation: as it takes it.
        call: how to call it, if it is neither.
    """
    if call is not None:
        return lambda: None, lambda: call(observation)
    if callable(getattr(policy, "select_action", None)):
        reset = getattr(policy, "reset", lambda: None)  # or it would serve the rest of the last chunk from its queue
        return reset, lambda: policy.select_action(dict(observation))
    if callable(policy):
        return lambda: None, lambda: policy(observation)
    raise KeystoneError(
        f"a {type(policy).__name__} has no select_action and cannot be called: say how to, keystone.profile(policy, "
        "observation, call=policy.act)"
    )


def device_of(policy: Any, observation: Any) -> torch.device:
    """Where a policy's weights are; without weights, where the observation is."""
    from torch.utils._pytree import tree_leaves

    weights = policy.parameters() if isinstance(policy, torch.nn.Module) else ()
    for tensor in (*weights, *tree_leaves(observation)):
        if isinstance(tensor, torch.Tensor):
            return tensor.device
    return torch.device("cpu")


def rows_of(observation: Any) -> int | None:
    """B, the number of rows of an observation's first tensor or array."""
    from torch.utils._pytree import tree_leaves

    for value in tree_leaves(observation):
        if getattr(value, "ndim", 0):
            return int(value.shape[0])
    return None
