"""The Qwen2.5-VL decoder of EO1 and Wall-X on a shared prompt, without copying or appending to its cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from keystone_robotics.sample.kit.attention import Context, VisibleTokens
from keystone_robotics.sample.kit.bypass import Bypass
from keystone_robotics.sample.kit.decoder_layer import Suffix, attention_output
from keystone_robotics.sample.proxies import original_class

#: For the decoder, or the model that holds it and the vision tower.
BYPASS = Bypass(
    called_modules=frozenset(
        {
            "rotary_emb", "input_layernorm", "q_proj", "k_proj", "v_proj", "o_proj", "post_attention_layernorm", "mlp",
            "moe", "norm",
        }
    ),
    unused_modules=frozenset({"visual", "embed_tokens"}),
)  # fmt: skip
#: Token type of actions in Wall-X's mixture of experts.
ACTION = 1


class Shared(NamedTuple):
    """Constant during a round: the decoder, and the context of each of its layers."""

    decoder: Any
    contexts: list[Context]
    suffix: Suffix


def prepare(decoder: Any, embeds: Tensor, real: Tensor, cache: Any, positions: Tensor, visible: Tensor) -> Shared:
    """Called once per round.

    Args:
        decoder: a supported one, see `recognises`.
        embeds: of the prompt; the decoder casts cosines and sines to their dtype.
        real: (B, P) bool, False for padding.
        cache: keys and values (B, N, P, D) of the prompt, layer by layer.
        positions: (3, B, S) of a candidate's tokens.
        visible: (S, S) bool, attention mask between the tokens of a candidate.
    """
    attention = decoder.layers[0].self_attn
    weights = attention.q_proj.weight
    sections = attention.config.rope_parameters["mrope_section"]
    exact = torch.promote_types(embeds.dtype, weights.dtype)
    cosine, sine = (_of_sections(table.to(exact), sections) for table in decoder.rotary_emb(embeds, positions))
    prompt = VisibleTokens.of(real[:, None], weights.dtype)
    contexts = [prompt.context(layer.keys.to(weights.dtype), layer.values.to(weights.dtype)) for layer in cache.layers]
    return Shared(decoder, contexts, Suffix.of(visible, cosine, sine, attention))


def own_network(model: Any, cache: Any, start: int, **inputs: Any) -> Callable[[Tensor], Tensor]:
    """The model's own code on the cache of a prompt of ``start`` tokens: action tokens (B * K, S, E) to its output."""

    def network(tokens: Tensor) -> Tensor:
        cache.crop(start)
        hidden: Tensor = model(
            inputs_embeds=tokens, past_key_values=cache, use_cache=True, return_dict=True, **inputs
        ).last_hidden_state
        return hidden

    return network


def denoise(shared: Shared, tokens: Tensor) -> Tensor:
    """The decoder's output for the action tokens (B * K, S, E) of all candidates, of the same shape."""
    hidden = tokens.reshape(shared.contexts[0].keys.shape[0], -1, tokens.shape[-1])
    for layer, context in zip(shared.decoder.layers, shared.contexts, strict=True):
        normed = _norm(layer.input_layernorm, hidden).to(layer.self_attn.q_proj.weight.dtype)
        hidden = hidden + attention_output(layer.self_attn, normed, context, shared.suffix)
        hidden = hidden + _feed_forward(layer, _norm(layer.post_attention_layernorm, hidden))
    output: Tensor = shared.decoder.norm(hidden)
    return output.view(tokens.shape)


def recognises(decoder: Any) -> bool:
    """Whether `denoise` supports this decoder; others run their own code."""
    if original_class(decoder).__name__ not in ("Qwen2_5_VLTextModel", "Qwen2_5_VLMoEModel") or decoder.training:
        return False
    return all(_recognises_layer(layer) for layer in decoder.layers)


def _recognises_layer(layer: Any) -> bool:
    if original_class(layer).__name__ not in ("Qwen2_5_VLDecoderLayer", "Qwen2_5_VLDecoderLayer_with_MoE"):
        return False
    attention = layer.self_attn
    return original_class(attention).__name__ == "Qwen2_5_VLAttention" and attention.sliding_window is None


def _norm(norm: Any, hidden: Tensor) -> Tensor:
    """In the norm's dtype, which in Wall-X differs from that of the projections."""
    normed: Tensor = norm(hidden.to(norm.weight.dtype))
    return normed


def _feed_forward(layer: Any, normed: Tensor) -> Tensor:
    if layer.mlp is not None:
        return layer.mlp(normed.to(layer.mlp.down_proj.weight.dtype))
    types = torch.full(normed.shape[:2], ACTION, device=normed.device)
    return layer.moe(normed.to(layer.moe.experts[0].down_proj.weight.dtype), types)


def _of_sections(table: Tensor, sections: Sequence[int]) -> Tensor:
    """Cosines or sines (3, B, S, D) of time, height and width to (B, S, D / 2): each section of a head takes one of the
    three. The two halves of a table are equal.

    >>> _of_sections(torch.arange(3.0).view(3, 1, 1, 1).expand(3, 1, 1, 8), [2, 1, 1]).tolist()
    [[[0.0, 0.0, 1.0, 2.0]]]
    """
    halves = torch.split(table[..., : table.shape[-1] // 2], list(sections), dim=-1)
    return torch.cat([half[axis] for axis, half in enumerate(halves)], dim=-1)
