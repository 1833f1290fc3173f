"""openpi's π0 and π0.5 in PyTorch: a PaliGemma prefix, and an action expert that attends to its cached keys and values."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from keystone_robotics.sample.families.pi.openpi_policy import OpenPiFamily, is_policy
from keystone_robotics.sample.families.pi.step import PiStep
from keystone_robotics.sample.kit.rounds import sharing
from keystone_robotics.sample.kit.widen import widen
from keystone_robotics.sample.override import Hook, SamplerOverride
from keystone_robotics.sample.request import NoiseSpec, SampleRequest


def _sample(
    model: Any, own: Callable[..., Tensor], device: Any, observation: Any, noise: Tensor | None = None, **options: Any
) -> Tensor:
    """A round on ``own(device, observation, noise=..., num_steps=...)``, which may be compiled."""
    engine = model._keystone
    if engine.steps is not None:
        options["num_steps"] = engine.steps
    if noise is not None:  # the caller's own noise: nothing to select from
        return own(device, observation, noise=noise, **options)
    if engine.untouched:
        return engine.run_single(lambda: own(device, observation, noise=None, **options))
    compiled = not inspect.ismethod(own)

    def draw(noise: Tensor, k: int, shared: bool = False) -> Tensor:
        with sharing(shared):  # read by `denoise_step`
            candidates = own(device, observation, noise=noise, **options)
        # With CUDA graphs the next call overwrites the result.
        return candidates.clone() if compiled else candidates

    return engine.run(
        SampleRequest(
            # The self-check replaces the noise drawn inside, so the method must not be compiled.
            single=lambda: vars(OpenPiOverride)["sample_actions"].from_class(model)(device, observation, **options),
            wide=draw,
            # A compiled sampler would capture the values cached between steps.
            shared=None if compiled or not model.may_share() else partial(draw, shared=True),
            noise=NoiseSpec(
                batch=observation.state.shape[0],
                shape=(model.config.action_horizon, model.config.action_dim),
                device=device,
            ),
        )
    )


class OpenPiOverride(PiStep):
    """On the model: its own sampler with noise of B * K rows, and a denoising step that packs or folds them."""

    sample_actions = Hook(_sample)

    def denoise_step(
        self, state: Tensor, prefix_pad_masks: Tensor, past_key_values: Any, x_t: Tensor, timestep: Tensor
    ) -> Tensor:
        k = x_t.shape[0] // prefix_pad_masks.shape[0]
        if k == 1:
            return super().denoise_step(state, prefix_pad_masks, past_key_values, x_t, timestep)  # type: ignore[misc]
        suffix = self.embed_suffix(widen(state, k), x_t, widen(timestep, k))
        return self._velocity(suffix, prefix_pad_masks, past_key_values, x_t.shape[1])

    def _additive_mask(self, mask: Tensor) -> Tensor:
        return self._prepare_attention_masks_4d(mask)

    def _read_only_cache(self, cache: Any) -> Any:
        return cache  # openpi's attention appends only with use_cache


class OpenPiPolicyOverride(SamplerOverride):
    """On the `Policy`, which bound its model's sampler in its constructor."""

    _sample_actions = Hook(lambda policy, own, *args, **kwargs: _sample(policy._model, own, *args, **kwargs))


class OpenPiAdapter(OpenPiFamily):
    """π0 and π0.5 in openpi's PyTorch code."""

    name = "openpi"
    shared_context = "keys and values of the prefix (one copy, independent of K)"
    pytorch = True
    compiles = True

    def owns_model(self, model: Any) -> bool:
        config = getattr(model, "config", None)  # LeRobot's model has the same methods, and a chunk_size instead
        return all(
            hasattr(model, name) for name in ("sample_actions", "denoise_step", "paligemma_with_expert")
        ) and all(hasattr(config, name) for name in ("action_horizon", "action_dim"))

    def module(self, policy: Any) -> Any:
        return _model(policy)

    def overrides(self, policy: Any) -> Sequence[tuple[Any, type[SamplerOverride]]]:
        if is_policy(policy):
            return [(policy._model, OpenPiOverride), (policy, OpenPiPolicyOverride)]
        return [(policy, OpenPiOverride)]

    def encoder_methods(self, policy: Any) -> Sequence[tuple[Any, str]]:
        return [] if _compiled(policy) else [(_model(policy), "embed_prefix")]

    def step_methods(self, policy: Any) -> Sequence[tuple[Any, str]]:
        return [] if _compiled(policy) else [(_model(policy), "denoise_step")]


def _model(policy: Any) -> Any:
    return policy._model if is_policy(policy) else policy


def _compiled(policy: Any) -> bool:
    """Whether the object's own sampler is compiled: overriding its methods would recompile it."""
    own = vars(policy).get("_sample_actions" if is_policy(policy) else "sample_actions")
    return own is not None and not inspect.ismethod(own)
