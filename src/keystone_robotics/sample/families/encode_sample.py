"""Any policy with the interface of the paper's Listing 1: ``encode(observation)`` and ``sample(context, noise)``."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from keystone_robotics.errors import KeystoneError
from keystone_robotics.sample.adapter import Adapter, Window
from keystone_robotics.sample.kit.widen import widen
from keystone_robotics.sample.override import SamplerOverride
from keystone_robotics.sample.proxies import original_class
from keystone_robotics.sample.request import NoiseSpec, SampleRequest


class EncodeSampleOverride(SamplerOverride):
    """On the policy."""

    def sample(self, context: Any, noise: Tensor) -> Tensor:
        sample, engine = super().sample, self._keystone  # type: ignore[misc]

        _check_rows(context, len(noise))
        if engine.untouched:
            return engine.run_single(lambda: sample(context, noise))
        return engine.run(
            SampleRequest(
                # Not the caller's noise: it is drawn again, where the self-check can replace it.
                single=lambda: sample(context, torch.randn_like(noise)),
                wide=lambda noises, k: sample(tree_map(lambda value: widen(value, k), context), noises),
                noise=NoiseSpec.like(noise, noise.shape[1:]),
                stochastic=bool(getattr(self, "stochastic", False)),
            )
        )


def _check_rows(context: Any, rows: int) -> None:
    """Every tensor of the context must have one row per observation, so that rows can be repeated per candidate."""
    for value in tree_leaves(context):
        if isinstance(value, Tensor) and value.shape[:1] != (rows,):
            raise KeystoneError(
                f"encode returned a tensor of shape {tuple(value.shape)} for {rows} observations: expected one row for each"
            )
        if not isinstance(value, (Tensor, str, int, float, bool, type(None))):
            raise KeystoneError(
                f"encode returned a {type(value).__name__}, which may not have one row for each observation: expected "
                "tensors in lists, tuples or dicts"
            )


class EncodeSampleAdapter(Adapter):
    """Any object with ``encode(observation) -> context`` and ``sample(context, noise) -> chunk``.

    ``context`` is a tensor (B, ...) or nested lists, tuples and dicts of them; ``noise`` (B, ...) is standard normal, with the
    shape, dtype and device of the noise that the policy passes; ``chunk`` is (B, T, D). The policy calls
    ``self.sample(context, noise)`` with one row of noise per observation. Set ``stochastic = True`` if ``sample`` draws more
    noise. ``config.n_action_steps``, if present, is the number of executed steps. ``num_inference_steps``, if the policy has
    this attribute, is the number of denoising steps; ``sample`` reads it.
    """

    name = "encode/sample"
    shared_context = "everything that encode returns"
    encoders = ("encode",)
    steps = "num_inference_steps"
    override = EncodeSampleOverride
    project = "any"

    def owns(self, policy: Any) -> bool:
        encode, sample = getattr(policy, "encode", None), getattr(policy, "sample", None)
        if not callable(encode) or not callable(sample):
            return False
        try:
            parameters = inspect.signature(sample).parameters
        except (TypeError, ValueError):  # builtins and compiled modules have no signature
            return False
        # With a default for the noise, the policy may call sample without it.
        required = [name for name, one in parameters.items() if one.default is inspect.Parameter.empty]
        return list(parameters) == required == ["context", "noise"]

    def steps_setting(self, policy: Any) -> tuple[Any, str] | None:
        return super().steps_setting(policy) if hasattr(policy, self.steps) else None

    def default_steps(self, policy: Any) -> int | None:
        return super().default_steps(policy) if hasattr(policy, self.steps) else None

    def refuse_steps(self, policy: Any, steps: int) -> str:
        if hasattr(policy, self.steps):
            return ""
        return (
            f"a {original_class(policy).__name__} has no attribute {self.steps}, in which its sample method would read the "
            "number; leave steps out"
        )

    def window(self, config: Any) -> Window | None:
        steps = getattr(config, "n_action_steps", None)
        return None if steps is None else Window(None, 0, int(steps))
