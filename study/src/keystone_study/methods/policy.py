"""A flow policy with another sampler, by name: ``keystone_study.methods:with_method?policy=…&method=…&k=16``."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor

from keystone_robotics.errors import KeystoneError, nearest_name
from keystone_robotics.policies.agent import Agent
from keystone_robotics.policies.load import find_policy, trained_on
from keystone_study.methods import samplers
from keystone_study.methods.ensembles import ENSEMBLES, EnsembleAgent
from keystone_study.policies.flow import FlowPolicy, load_flow
from keystone_study.policies.flow_agent import FlowAgent

METHODS: dict[str, Callable[..., Tensor]] = {
    "rescaled": samplers.rescaled,
    "ticket": samplers.ticket,
    "scored": samplers.scored,
    "partial": samplers.partial,
    "core-mean": samplers.core_mean,
    "from-core-noise": samplers.from_core_noise,
    "consensus": samplers.consensus,
    "projected": samplers.projected,
}


class MethodPolicy(FlowPolicy):
    """A flow policy whose ``sample`` is one of `METHODS`; its one noise decides all others, so that episodes stay paired."""

    method: Callable[..., Tensor]
    options: dict[str, Any]

    def sample(self, context: Tensor, noise: Tensor) -> Tensor:
        return self.method(self, context, noise, **self.options) * self.action_std + self.action_mean


def with_method(policy: str, method: str, device: str | None = None, **options: str) -> Agent:
    """A flow policy of the study with another sampler, or with an ensemble over time.

    Args:
        policy: its name or folder.
        method: one of `METHODS` or `ENSEMBLES`.
        device: of the policy.
        **options: of the method, as text.
    """
    if method not in METHODS and method not in ENSEMBLES:
        raise KeystoneError(f"there is no method {method!r}: {nearest_name(method, (*METHODS, *ENSEMBLES))}")
    folder = find_policy(policy)
    if folder is None:
        raise KeystoneError(f"{policy}: expected a flow policy of the study, or its folder")
    if method in ENSEMBLES:
        weigh, window = ENSEMBLES[method]
        given = _read_options(method, weigh, 1, options)
        return EnsembleAgent(
            load_flow(folder).to(device or "cpu"), trained_on(policy), functools.partial(weigh, **given), window
        )
    sampler = METHODS[method]
    given = _read_options(method, sampler, 3, options)
    made = load_flow(folder).to(device or "cpu")
    made.__class__ = MethodPolicy
    vars(made).update(method=sampler, options=given)
    return FlowAgent(made, trained_on(policy))


def _read_options(method: str, function: Callable[..., Any], first: int, options: dict[str, str]) -> dict[str, Any]:
    """The options of a method, which are its parameters from number ``first`` on, as their types."""
    known = {name: one.annotation for name, one in list(inspect.signature(function).parameters.items())[first:]}
    for name in options:
        if name not in known:
            raise KeystoneError(f"method {method} has no option {name!r}: {nearest_name(name, known)}")
    read = {"int": int, "float": float, "str": str}
    return {name: read[known[name]](value) for name, value in options.items()}
