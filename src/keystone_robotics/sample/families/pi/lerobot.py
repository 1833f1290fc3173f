"""LeRobot's π0 and π0.5: a PaliGemma prefix, and an action expert that attends to its cached keys and values."""

from __future__ import annotations

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
