"""The policy of a profile, an observation for it, and how to call it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from keystone_robotics.errors import KeystoneError
from keystone_robotics.handle import Handle
from keystone_robotics.sample.proxies import original_class


def load_subject(
    name: str, device: str | None, batch: int | None, trust_remote_code: bool = False
) -> tuple[Any, Any, Callable[[Any], object] | None]:
    """A policy, an observation of B rows for it, made up unless a function makes both, and how to call it (see `round_of`).

    Args:
        name: of a policy that comes with KeyStone, a folder that ``keystone train`` or LeRobot wrote, LeRobot's name on the
            hub, or ``package.module:function`` of a function that returns the policy, an observation for it and, if need be,
            how to call it.
        device: where it runs; None is what the checkpoint says. A function is given it, as ``device``, where it is not None.
        batch: B; None is 1. A function is given it, as ``batch``, where it is not None.
        trust_remote_code: see `keystone_robotics.policies.lerobot_checkpoint.load_policy`.
    """
    from keystone_robotics.named import is_reference, make_named
    from keystone_robotics.policies.load import check_device, find_policy, find_provider

    if device is not None:
        check_device(device, here=True)
    folder = find_policy(name)
    if folder is None and is_reference(name):
        made = make_named(name, tuple, device=device, batch=batch)
        if len(made) not in (2, 3):
            raise KeystoneError(f"{name} returns {len(made)} things: expected the policy and an observation for it")
        policy, observation, call = (*made, None)[:3]
        return policy, observation, call
    batch = batch or 1
    provider = find_provider(folder)
    if folder is not None and provider is not None:
        policy = provider.load(folder, device)
        return policy, provider.sample_observation(policy, batch), None
    from keystone_robotics.policies.lerobot_checkpoint import load_policy, synthetic_observation

    policy, preprocess, _ = load_policy(str(folder or name), device, trust_remote_code)
    return policy, _rows(preprocess(synthetic_observation(policy.config)), batch), None


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
        policy: with ``select_action`` as LeRobot's have it or ``infer`` as openpi's, or one that is called with an observation.
        observation: as it takes it.
        call: how to call it, if it is neither.
    """
    if call is not None:
        if getattr(call, "__self__", None) is policy:
            # Bound before attaching, it would not reach the override.
            name = call.__name__
            return lambda: None, lambda: getattr(policy, name)(observation)
        return lambda: None, lambda: call(observation)
    act = getattr(policy, "select_action", None) or getattr(policy, "infer", None)
    if act is not None:
        reset = getattr(policy, "reset", lambda: None)  # or it would serve the rest of the last chunk from its queue
        return reset, lambda: act(dict(observation))
    # A module without a forward of its own is callable, but raises.
    if callable(policy) and getattr(type(policy), "forward", None) is not torch.nn.Module.forward:
        return lambda: None, lambda: policy(observation)
    raise KeystoneError(
        f"a {original_class(policy).__name__} has neither select_action nor infer and cannot be called: say how to, "
        "keystone.profile(policy, observation, call=policy.act)"
    )


def device_of(handle: Handle, observation: Any) -> torch.device:
    """Where the weights of an attached policy are, or of what it holds; without weights, where the observation is."""
    from torch.utils._pytree import tree_leaves

    owner = handle.engine.owner
    modules = [owner, *(module for module, _ in handle.engine.adapter.overrides(owner))]
    weights = (weight for module in modules if isinstance(module, torch.nn.Module) for weight in module.parameters())
    for tensor in itertools.chain(weights, tree_leaves(observation)):
        if isinstance(tensor, torch.Tensor):
            return tensor.device
    return torch.device("cpu")


def rows_of(handle: Handle, observation: Any) -> int | None:
    """B of an attached policy's observation: what its adapter says, or the number of rows of the first tensor or array."""
    from torch.utils._pytree import tree_leaves

    known = handle.engine.adapter.rows(handle.engine.owner, observation)
    if known is not None:
        return known
    for value in tree_leaves(observation):
        if getattr(value, "ndim", 0):
            return int(value.shape[0])
    return None
