"""LeRobot's π0 and π0.5: a PaliGemma prefix, and an action expert that attends to its cached keys and values."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

from torch import Tensor

from keystone_robotics.sample.families.pi.step import PiStep
from keystone_robotics.sample.kit.packing import PackedAdapter, PackedOverride, share_cache
from keystone_robotics.sample.kit.widen import widen


class PiOverride(PiStep, PackedOverride):
    """The denoising step of LeRobot's π0 and π0.5."""

    def _additive_mask(self, mask: Tensor) -> Tensor:
        from lerobot.policies.common.vla_utils import prepare_attention_masks_4d

        return prepare_attention_masks_4d(mask)

    def _read_only_cache(self, cache: Any) -> Any:
        return share_cache(cache)


class Pi0Override(PiOverride):
    """On ``policy.model``."""

    def sample_actions(
        self,
        images: Any,
        img_masks: Any,
        lang_tokens: Tensor,
        lang_masks: Tensor,
        state: Tensor,
        noise: Tensor | None = None,
        num_steps: int | None = None,
        **kwargs: Any,
    ) -> Tensor:
        sample = partial(super().sample_actions, images, img_masks, lang_tokens, lang_masks, state)  # type: ignore[misc]
        options = {"num_steps": self._keystone.steps or num_steps, **kwargs}
        if noise is not None:  # the caller's own noise: nothing to select from
            return sample(noise=noise, **options)
        return self._run(sample, state.shape[0], state.device, options)

    def denoise_step(
        self, state: Tensor, prefix_pad_masks: Tensor, past_key_values: Any, x_t: Tensor, timestep: Tensor
    ) -> Tensor:
        k = x_t.shape[0] // prefix_pad_masks.shape[0]
        if k == 1:
            return super().denoise_step(state, prefix_pad_masks, past_key_values, x_t, timestep)  # type: ignore[misc]
        suffix = self.embed_suffix(widen(state, k), x_t, timestep)
        return self._velocity(suffix, prefix_pad_masks, past_key_values, x_t.shape[1])


class Pi05Override(PiOverride):
    """On ``policy.model``."""

    def sample_actions(self, *args: Any, **kwargs: Any) -> Tensor:
        own = super().sample_actions  # type: ignore[misc]
        given = inspect.signature(own).bind(*args, **kwargs).arguments  # versions differ in what comes before the noise
        others = given.pop("kwargs", {})
        options = {**given, **others, "num_steps": self._keystone.steps or given.get("num_steps")}
        noise, tokens = options.pop("noise", None), options["tokens"]
        if noise is not None:
            return own(noise=noise, **options)
        return self._run(own, tokens.shape[0], tokens.device, options)

    def denoise_step(self, prefix_pad_masks: Tensor, past_key_values: Any, x_t: Tensor, timestep: Tensor) -> Tensor:
        if x_t.shape[0] == prefix_pad_masks.shape[0]:
            return super().denoise_step(prefix_pad_masks, past_key_values, x_t, timestep)  # type: ignore[misc]
        return self._velocity(self.embed_suffix(x_t, timestep), prefix_pad_masks, past_key_values, x_t.shape[1])


class Pi0Adapter(PackedAdapter):
    """π0."""

    name = "pi0"
    steps = "config.num_inference_steps"
    steps_argument = "num_steps"
    steps_by_default = "10"
    override = Pi0Override


class Pi05Adapter(PackedAdapter):
    """π0.5."""

    name = "pi05"
    steps = "config.num_inference_steps"
    steps_argument = "num_steps"
    steps_by_default = "10"
    override = Pi05Override
