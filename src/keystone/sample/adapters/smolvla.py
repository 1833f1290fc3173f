"""LeRobot's SmolVLA: a SmolVLM prefix with the state at its end, and a small action expert."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from keystone.sample.adapters.packing import PackedAdapter, PackedSeam, pack, share_cache


class SmolVLASeam(PackedSeam):
    """On ``policy.model``."""

    def sample_actions(
        self,
        images: Any,
        img_masks: Any,
        lang_tokens: Tensor,
        lang_masks: Tensor,
        state: Tensor,
        noise: Tensor | None = None,
        **kwargs: Any,
    ) -> Tensor:
        sample = partial(super().sample_actions, images, img_masks, lang_tokens, lang_masks, state)  # type: ignore[misc]
        if noise is not None:  # the caller's own noise: nothing to choose from
            return sample(noise=noise, **kwargs)
        return self._choose(sample, state.shape[0], state.device, kwargs)

    def denoise_step(self, prefix_pad_masks: Tensor, past_key_values: Any, x_t: Tensor, timestep: Tensor) -> Tensor:
        if x_t.shape[0] == prefix_pad_masks.shape[0]:
            return super().denoise_step(prefix_pad_masks, past_key_values, x_t, timestep)  # type: ignore[misc]
        tokens, padding, blocks = self.embed_suffix(x_t, timestep)
        packed = pack(tokens, padding, blocks, prefix_pad_masks)
        (_, hidden), _ = self.vlm_with_expert.forward(
            attention_mask=packed.mask,
            position_ids=packed.positions,
            past_key_values=share_cache(past_key_values),
            inputs_embeds=[None, packed.tokens],
            use_cache=self.config.use_cache,
        )
        hidden = hidden.reshape(*tokens.shape[:2], -1)[:, -self.config.chunk_size :]
        return self.action_out_proj(hidden.to(torch.float32))


class SmolVLAAdapter(PackedAdapter):
    """SmolVLA."""

    name = "smolvla"
    seam = SmolVLASeam
