"""LeRobot's EO1: the action tokens of a causal vision-language model, denoised on the cache of the prompt."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from keystone_robotics.errors import KeystoneError
from keystone_robotics.sample.adapter import Adapter
from keystone_robotics.sample.families.qwen.denoiser import BYPASS, denoise, prepare, recognises
from keystone_robotics.sample.kit.bypass import may_bypass
from keystone_robotics.sample.kit.widen import widen
from keystone_robotics.sample.override import SamplerOverride
from keystone_robotics.sample.request import NoiseSpec, SampleRequest


class EO1Override(SamplerOverride):
    """On ``policy.model``."""

    @torch.no_grad()
    def sample_actions(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        pixel_values: Tensor | None = None,
        image_grid_thw: Tensor | None = None,
        mm_token_type_ids: Tensor | None = None,
        states: Tensor | None = None,
        *,
        state_token_id: int,
        action_token_id: int,
        **kwargs: Any,
    ) -> Tensor:
        single = super().sample_actions  # type: ignore[misc]
        weight, backbone = self.action_in_proj.weight, self.vlm_backbone.model
        is_action = input_ids == action_token_id

        def original() -> Tensor:
            return single(
                input_ids, attention_mask, pixel_values, image_grid_thw, mm_token_type_ids, states,
                state_token_id=state_token_id, action_token_id=action_token_id, **kwargs,
            )  # fmt: skip

        def draw(noise: Tensor, k: int, shared: bool = False) -> Tensor:
            from lerobot.policies.common.flow_matching import euler_integrate

            embeds = self.embed_prefix(
                input_ids, states=states, state_token_id=state_token_id, action_token_id=action_token_id
            )
            start, end = _action_span(is_action, self.config.chunk_size)
            device = embeds.device
            mask, types = attention_mask.to(device), mm_token_type_ids.to(device)  # type: ignore[union-attr]
            positions, _ = backbone.get_rope_index(
                input_ids, image_grid_thw=image_grid_thw, attention_mask=mask, mm_token_type_ids=types
            )
            positions = positions.to(device)  # (3, B, L)
            cache = backbone(
                input_ids=input_ids[:, :start],
                attention_mask=mask[:, :start],
                position_ids=positions[..., :start],
                inputs_embeds=embeds[:, :start],
                pixel_values=pixel_values,
                image_grid_thw=image_grid_thw,
                mm_token_type_ids=types[:, :start],
                use_cache=True,
                return_dict=True,
            ).past_key_values
            positions = positions[..., start:end]
            if shared:
                causal = torch.ones(end - start, end - start, dtype=torch.bool, device=device).tril()
                prompt = prepare(backbone.language_model, embeds, mask[:, :start].bool(), cache, positions, causal)
            else:
                cache.batch_repeat_interleave(k)
                mask, positions = widen(mask[:, :end], k), positions.repeat_interleave(k, dim=1)

            def hidden_of(tokens: Tensor) -> Tensor:
                if shared:
                    return denoise(prompt, tokens)
                cache.crop(start)
                return backbone(
                    attention_mask=mask,
                    past_key_values=cache,
                    inputs_embeds=tokens,
                    position_ids=positions,
                    use_cache=True,
                    return_dict=True,
                ).last_hidden_state

            def velocity(x: Tensor, time: Tensor) -> Tensor:
                hidden = hidden_of(self.embed_suffix(time, x).to(embeds.dtype))
                with self.flow_head_autocast_context():
                    out = self.action_out_proj(hidden.to(self.action_out_proj.dtype))
                return out.reshape(x.shape).to(x.dtype)

            return euler_integrate(velocity, noise, self.config.num_denoise_steps)

        # The fast path does not support masked action tokens.
        known = (
            recognises(backbone.language_model)
            and may_bypass(self._keystone, BYPASS, backbone)
            and bool((attention_mask.to(input_ids.device).bool() | ~is_action).all())
        )
        return self._keystone.run(
            SampleRequest(
                single=original,
                wide=draw,
                shared=partial(draw, shared=True) if known else None,
                noise=NoiseSpec(
                    batch=input_ids.shape[0],
                    shape=(self.config.chunk_size, self.config.max_action_dim),
                    device=weight.device,
                    dtype=weight.dtype,
                ),
            )
        )


def _action_span(is_action: Tensor, chunk: int) -> tuple[int, int]:
    """Start and end of the action tokens, the same in every row."""
    start = int(is_action[0].int().argmax())
    if not (is_action[:, start : start + chunk].all() and (is_action.sum(1) == chunk).all()):
        raise KeystoneError(
            f"EO1 expects one span of {chunk} action tokens at the same place in every row (pad the prompts on the left)"
        )
    return start, start + chunk


class EO1Adapter(Adapter):
    """EO1."""

    name = "eo1"
    shared_context = "key-value cache of the prompt: images, text, state (one copy, independent of K)"
    sampler = "model"
    encoders = (
        "model.embed_prefix",
        "model.vlm_backbone.model.visual.forward",
    )
    steps = "config.num_denoise_steps"
    steps_by_default = "10"
    override = EO1Override
