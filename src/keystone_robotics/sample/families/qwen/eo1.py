"""LeRobot's EO1: the action tokens of a causal vision-language model, denoised on the cache of the prompt."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from keystone_robotics.errors import KeystoneError
from keystone_robotics.sample.adapter import Adapter
from keystone_robotics.sample.families.qwen.denoiser import BYPASS, denoise, own_network, prepare, recognises
from keystone_robotics.sample.kit.bypass import may_bypass
from keystone_robotics.sample.kit.widen import widen
from keystone_robotics.sample.override import SamplerOverride
from keystone_robotics.sample.request import NoiseSpec, SampleRequest


class Inputs(NamedTuple):
    """What candidates are drawn from: arguments of ``sample_actions``."""

    input_ids: Tensor
    attention_mask: Tensor
    state_token_id: int
    action_token_id: int
    pixel_values: Tensor | None = None
    image_grid_thw: Tensor | None = None
    mm_token_type_ids: Tensor | None = None
    states: Tensor | None = None

    @property
    def is_action(self) -> Tensor:
        """(B, L) bool."""
        return self.input_ids == self.action_token_id


class EO1Override(SamplerOverride):
    """On ``policy.model``."""

    @torch.no_grad()
    def sample_actions(self, *args: Any, **kwargs: Any) -> Tensor:
        own = super().sample_actions  # type: ignore[misc]
        named = inspect.signature(own).bind(*args, **kwargs).arguments
        given = Inputs(**{name: value for name, value in named.items() if name in Inputs._fields})
        draw, weight = partial(self._draw, given), self.action_in_proj.weight
        return self._keystone.run(
            SampleRequest(
                single=partial(own, *args, **kwargs),
                wide=draw,
                shared=partial(draw, shared=True) if self.may_share(given) else None,
                noise=NoiseSpec(
                    batch=given.input_ids.shape[0],
                    shape=(self.config.chunk_size, self.config.max_action_dim),
                    device=weight.device,
                    dtype=weight.dtype,
                ),
            )
        )

    def may_share(self, given: Inputs) -> bool:
        """Whether the fast path supports the model and no masked action tokens, and would skip no hook or replaced method."""
        backbone = self.vlm_backbone.model
        return (
            recognises(backbone.language_model)
            and may_bypass(self._keystone, BYPASS, backbone)
            and bool((given.attention_mask.to(given.input_ids.device).bool() | ~given.is_action).all())
        )

    def _draw(self, given: Inputs, noise: Tensor, k: int, shared: bool = False) -> Tensor:
        """(B * K, T, D) chunks from noise of the same shape; keys and values of the prompt are computed once."""
        from lerobot.policies.common.flow_matching import euler_integrate

        ids, backbone = given.input_ids, self.vlm_backbone.model
        embeds = self.embed_prefix(
            ids, states=given.states, state_token_id=given.state_token_id, action_token_id=given.action_token_id
        )
        start, end = _action_span(given.is_action, self.config.chunk_size)
        device = embeds.device
        mask, types = given.attention_mask.to(device), given.mm_token_type_ids.to(device)  # type: ignore[union-attr]
        positions, _ = backbone.get_rope_index(
            ids, image_grid_thw=given.image_grid_thw, attention_mask=mask, mm_token_type_ids=types
        )
        positions = positions.to(device)  # (3, B, L)
        cache = backbone(
            input_ids=ids[:, :start],
            attention_mask=mask[:, :start],
            position_ids=positions[..., :start],
            inputs_embeds=embeds[:, :start],
            pixel_values=given.pixel_values,
            image_grid_thw=given.image_grid_thw,
            mm_token_type_ids=types[:, :start],
            use_cache=True,
            return_dict=True,
        ).past_key_values
        positions = positions[..., start:end]
        if shared:
            causal = torch.ones(end - start, end - start, dtype=torch.bool, device=device).tril()
            prompt = prepare(backbone.language_model, embeds, mask[:, :start].bool(), cache, positions, causal)
            network: Callable[[Tensor], Tensor] = partial(denoise, prompt)
        else:
            cache.batch_repeat_interleave(k)
            mask, positions = widen(mask[:, :end], k), positions.repeat_interleave(k, dim=1)
            network = own_network(backbone, cache, start, attention_mask=mask, position_ids=positions)

        def velocity(x: Tensor, time: Tensor) -> Tensor:
            hidden = network(self.embed_suffix(time, x).to(embeds.dtype))
            with self.flow_head_autocast_context():
                out = self.action_out_proj(hidden.to(self.action_out_proj.dtype))
            return out.reshape(x.shape).to(x.dtype)

        return euler_integrate(velocity, noise, self.config.num_denoise_steps)


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
