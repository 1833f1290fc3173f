"""SmolVLA's action expert on a shared prefix, without copying it.

In self-attention layers, candidates attend to the prefix and to themselves; in cross-attention layers only to projections of
the prefix, which are constant during a round.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from keystone_robotics.sample.kit.attention import Context, VisibleTokens
from keystone_robotics.sample.kit.bypass import Bypass
from keystone_robotics.sample.kit.decoder_layer import Suffix, attention_output

#: For ``SmolVLMWithExpertModel``, which reimplements layers and attention and calls the same modules as the fast path.
BYPASS = Bypass(
    called_modules=frozenset({"lm_expert"}),
    unused_modules=frozenset({"vlm"}),
    methods=frozenset(
        {
            "forward",
            "forward_attn_layer",
            "forward_cross_attn_layer",
            "get_attention_interface",
            "eager_attention_forward",
        }
    ),
)


class Layer(NamedTuple):
    """One layer of the expert with its context; ``crosses`` if it attends to the context only."""

    module: Any
    context: Context
    suffix: Suffix
    crosses: bool


class Shared(NamedTuple):
    """Constant during a round: the layers and the output norm."""

    layers: list[Layer]
    norm: Any

    @property
    def contexts(self) -> list[Context]:
        return [layer.context for layer in self.layers]


def prepare(experts: Any, real: Tensor, cache: Any, visible: Tensor) -> Shared:
    """Called once per round.

    Args:
        experts: LeRobot's ``SmolVLMWithExpertModel``.
        real: (B, P) bool, False for padding.
        cache: keys and values (B, N, P, D) of the prefix, layer by layer.
        visible: (S, S) bool, attention mask between the tokens of a candidate.
    """
    expert = experts.lm_expert
    attention, width = expert.layers[0].self_attn, cache.layers[0].keys.shape[-1]
    steps = torch.arange(len(visible), device=real.device)[None]
    after_prefix = Suffix.of(visible, *_tables(real.sum(dim=1, keepdim=True) + steps, width), attention)
    from_zero = after_prefix.at(*_tables(steps, width))  # positions in cross-attention layers start at 0
    prefix = VisibleTokens.of(real[:, None], attention.q_proj.weight.dtype)
    layers = []
    for index, module in enumerate(experts.get_model_layers([experts.get_vlm_model().text_model, expert])[1]):
        if module is None:  # fewer layers than the backbone has
            continue
        every = experts.self_attn_every_n_layers
        crosses = "cross" in experts.attention_mode and not (every > 0 and index % every == 0)
        weights, cached = module.self_attn.q_proj.weight, cache.layers[index]
        context = prefix.context(cached.keys.to(weights.dtype), cached.values.to(weights.dtype))
        if crosses:
            keys = _project(module.self_attn.k_proj, context.keys)
            context = context._replace(keys=keys, values=_project(module.self_attn.v_proj, context.values))
        layers.append(Layer(module, context, from_zero if crosses else after_prefix, crosses))
    return Shared(layers, expert.norm)


def denoise(shared: Shared, tokens: Tensor) -> Tensor:
    """The expert's output (B, K * S, E) for the suffixes (B * K, S, E) of all candidates."""
    first = shared.layers[0].context.keys
    hidden = tokens.reshape(first.shape[0], -1, tokens.shape[-1]).to(first.dtype)
    for module, context, suffix, crosses in shared.layers:
        normed = module.input_layernorm(hidden)
        hidden = attention_output(module.self_attn, normed, context, suffix, own=not crosses) + hidden
        hidden = module.mlp(module.post_attention_layernorm(hidden)) + hidden
    return shared.norm(hidden)


def _tables(positions: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Cosine and sine (B, S, D / 2) of positions (B, S); the wavelengths are hard-coded in LeRobot's ``apply_rope``."""
    exponents = 2.0 / width * torch.arange(width // 2, dtype=torch.float32, device=positions.device)
    angles = positions[..., None].float() / 10_000**exponents
    return angles.cos(), angles.sin()


def _project(projection: Any, states: Tensor) -> Tensor:
    """A projection across the heads of keys or values (B, N, P, D)."""
    projected = projection(states.transpose(1, 2).flatten(2))
    return projected.unflatten(-1, (states.shape[1], -1)).transpose(1, 2).contiguous()
