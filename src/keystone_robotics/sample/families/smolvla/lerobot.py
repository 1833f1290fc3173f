"""LeRobot's SmolVLA: a SmolVLM prefix with the state at its end, and a small action expert."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from keystone_robotics.sample.families.smolvla import denoiser
from keystone_robotics.sample.kit.packing import Packed, PackedAdapter, PackedOverride, share_cache


class SmolVLAOverride(PackedOverride):
    """On ``policy.model``."""

    _denoiser = denoiser
    _experts = "vlm_with_expert"

    def denoise_step(self, prefix_pad_masks: Tensor, past_key_values: Any, x_t: Tensor, timestep: Tensor) -> Tensor:
        if x_t.shape[0] == prefix_pad_masks.shape[0]:
            return super().denoise_step(prefix_pad_masks, past_key_values, x_t, timestep)  # type: ignore[misc]
        return self._velocity(self.embed_suffix(x_t, timestep), prefix_pad_masks, past_key_values, x_t.shape[1])

    def _own_expert(self, packed: Packed, past_key_values: Any, *condition: Any) -> Tensor:
        (_, hidden), _ = self.vlm_with_expert.forward(
            attention_mask=packed.mask,
            position_ids=packed.positions,
            past_key_values=share_cache(past_key_values),
            inputs_embeds=[None, packed.tokens],
            use_cache=self.config.use_cache,
        )
        return hidden


class SmolVLAAdapter(PackedAdapter):
    """SmolVLA."""

    name = "smolvla"
    steps = "config.num_steps"
    steps_by_default = "10"
    override = SmolVLAOverride
