"""LeRobot's SmolVLA: a SmolVLM prefix with the state at its end, and a small action expert."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from keystone_robotics.sample.families.smolvla.denoiser import BYPASS, Shared, denoise, prepare
from keystone_robotics.sample.kit.bypass import may_bypass
from keystone_robotics.sample.kit.lengths import mark_dynamic_lengths
from keystone_robotics.sample.kit.packing import PackedAdapter, PackedOverride, pack, share_cache, suffix_mask
from keystone_robotics.sample.kit.rounds import is_sharing, once_per_round


class SmolVLAOverride(PackedOverride):
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
        if noise is not None:  # the caller's own noise: nothing to select from
            return self._keystone.at_steps(sample)(noise=noise, **kwargs)
        return self._run(sample, state.shape[0], state.device, kwargs)

    def denoise_step(self, prefix_pad_masks: Tensor, past_key_values: Any, x_t: Tensor, timestep: Tensor) -> Tensor:
        if x_t.shape[0] == prefix_pad_masks.shape[0]:
            return super().denoise_step(prefix_pad_masks, past_key_values, x_t, timestep)  # type: ignore[misc]
        tokens, padding, blocks = self.embed_suffix(x_t, timestep)
        # A sampler that is compiled as a whole takes the plain path; reading the context variable would break its graph.
        if not torch.compiler.is_compiling() and is_sharing():
            shared = once_per_round(
                lambda: self._prepare(prefix_pad_masks, past_key_values, suffix_mask(padding[:1], blocks[:1])[0])
            )
            hidden = self._keystone.compiled_step(denoise)(shared, tokens)
        else:
            hidden = self._keystone.compiled_step(SmolVLAOverride._packed)(
                self, tokens, padding, blocks, prefix_pad_masks, past_key_values
            )
        hidden = hidden.reshape(*tokens.shape[:2], -1)[:, -self.config.chunk_size :]
        return self.action_out_proj(hidden.to(torch.float32))

    def _prepare(self, prefix_pad_masks: Tensor, past_key_values: Any, visible: Tensor) -> Shared:
        """The values that the steps of a round share on the fast path."""
        shared = prepare(self.vlm_with_expert, prefix_pad_masks, past_key_values, visible)
        if self._keystone.compile:
            mark_dynamic_lengths(layer.context for layer in shared.layers)
        return shared

    def _packed(
        self, tokens: Tensor, padding: Tensor, blocks: Tensor, prefix_pad_masks: Tensor, past_key_values: Any
    ) -> Tensor:
        """The expert's own code on packed suffixes: (B, K * S, E)."""
        packed = pack(tokens, padding, blocks, prefix_pad_masks)
        (_, hidden), _ = self.vlm_with_expert.forward(
            attention_mask=packed.mask,
            position_ids=packed.positions,
            past_key_values=share_cache(past_key_values),
            inputs_embeds=[None, packed.tokens],
            use_cache=self.config.use_cache,
        )
        return hidden

    def may_share(self) -> bool:
        """Whether the fast path would skip no hook or replaced method."""
        return may_bypass(self._keystone, BYPASS, self.vlm_with_expert)


class SmolVLAAdapter(PackedAdapter):
    """SmolVLA."""

    name = "smolvla"
    steps = "config.num_steps"
    steps_by_default = "10"
    override = SmolVLAOverride
