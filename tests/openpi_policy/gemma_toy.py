"""A small language model of our own with the parts of openpi's Gemma, and its cache with the names of the version it pins."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

WIDTH, HEAD_DIM, HEADS, KEY_HEADS, LAYERS = 16, 8, 4, 2, 2


class Cache:
    """Keys and values (B, KEY_HEADS, P, HEAD_DIM) of every layer."""

    def __init__(self) -> None:
        self.key_cache: list[Tensor] = []
        self.value_cache: list[Tensor] = []

    def __getitem__(self, layer: int) -> tuple[Tensor, Tensor]:
        return self.key_cache[layer], self.value_cache[layer]


class Norm(nn.Module):
    """With a condition (B, WIDTH), it decides on scale, shift and the gate of what is added after the norm."""

    def __init__(self, adaptive: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.1 * torch.randn(WIDTH))
        self.dense = nn.Linear(WIDTH, 3 * WIDTH) if adaptive else None

    def forward(self, hidden: Tensor, cond: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        normed = hidden * torch.rsqrt(hidden.float().square().mean(-1, keepdim=True) + 1e-6)
        if self.dense is None or cond is None:
            return (normed * (1 + self.weight)).to(hidden.dtype), None
        scale, shift, gate = self.dense(cond)[:, None].chunk(3, -1)
        return (normed * (1 + scale) + shift).to(hidden.dtype), gate.to(hidden.dtype)


class Rotary(nn.Module):
    def forward(self, like: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        angles = positions[..., None].float() * torch.logspace(0, -2, HEAD_DIM // 2)
        both = torch.cat([angles, angles], -1)
        return both.cos().to(like.dtype), both.sin().to(like.dtype)


def turn(states: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    first, second = states.chunk(2, -1)
    return states * cosine[:, None] + torch.cat([-second, first], -1) * sine[:, None]


class Attention(nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.number, self.head_dim, self.scaling = number, HEAD_DIM, HEAD_DIM**-0.5
        self.q_proj = nn.Linear(WIDTH, HEADS * HEAD_DIM, bias=False)
        self.k_proj, self.v_proj = (nn.Linear(WIDTH, KEY_HEADS * HEAD_DIM, bias=False) for _ in range(2))
        self.o_proj = nn.Linear(HEADS * HEAD_DIM, WIDTH, bias=False)

    def forward(self, hidden: Tensor, mask: Tensor, tables: tuple[Tensor, Tensor], cache: Cache, grow: bool) -> Tensor:
        queries, keys, values = (
            project(hidden).unflatten(-1, (-1, HEAD_DIM)).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        queries, keys = turn(queries, *tables), turn(keys, *tables)
        if grow:
            cache.key_cache.append(keys)
            cache.value_cache.append(values)
        else:
            before = cache[self.number]
            keys, values = torch.cat([before[0], keys], 2), torch.cat([before[1], values], 2)
        keys, values = (part.repeat_interleave(HEADS // KEY_HEADS, dim=1) for part in (keys, values))
        scores = queries @ keys.transpose(2, 3) * self.scaling + mask
        return self.o_proj((scores.softmax(-1).to(values.dtype) @ values).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, number: int, adaptive: bool) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = Norm(adaptive), Norm(adaptive)
        self.self_attn = Attention(number)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, hidden: Tensor, mask: Tensor, tables: Any, cache: Cache, grow: bool, condition: Any) -> Tensor:
        normed, gate = self.input_layernorm(hidden, condition)
        update = self.self_attn(normed, mask, tables, cache, grow)
        hidden = hidden + (update if gate is None else update * gate)
        normed, gate = self.post_attention_layernorm(hidden, condition)
        update = self.mlp(normed)
        return hidden + (update if gate is None else update * gate)


class Gemma(nn.Module):
    def __init__(self, adaptive: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(number, adaptive) for number in range(LAYERS))
        self.norm, self.rotary_emb = Norm(adaptive), Rotary()
        self.config = SimpleNamespace(_attn_implementation="sdpa")

    def forward(self, tokens: Tensor, mask: Tensor, positions: Tensor, cache: Cache, grow: bool, cond: Any) -> Tensor:
        hidden = tokens.to(self.layers[0].self_attn.q_proj.weight.dtype)
        tables = self.rotary_emb(hidden, positions)
        for layer in self.layers:
            hidden = layer(hidden, mask.to(hidden.dtype), tables, cache, grow, cond)
        return self.norm(hidden, cond)[0]


class TwoExperts(nn.Module):
    """The seam of openpi's `PaliGemmaWithExpertModel`."""

    def __init__(self, pi05: bool) -> None:
        super().__init__()
        self.paligemma, self.gemma_expert = nn.Module(), nn.Module()
        self.paligemma.language_model, self.gemma_expert.model = Gemma(), Gemma(adaptive=pi05)

    def forward(
        self, attention_mask, position_ids, past_key_values, inputs_embeds, use_cache=None, adarms_cond=(None, None)
    ):
        before, after = inputs_embeds
        if after is None:
            cache = Cache()
            hidden = self.paligemma.language_model(before, attention_mask, position_ids, cache, use_cache, None)
            return [hidden, None], cache
        hidden = self.gemma_expert.model(
            after, attention_mask, position_ids, past_key_values, use_cache, adarms_cond[1]
        )
        return [None, hidden], None
