"""The Gemma action expert of π0 and π0.5 on a shared prefix, without copying or appending to its cache."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from keystone_robotics.sample.kit.attention import Context, VisibleTokens
from keystone_robotics.sample.kit.bypass import Bypass
from keystone_robotics.sample.kit.decoder_layer import Suffix, attention_output

#: For the model that holds PaliGemma and the expert.
BYPASS = Bypass(
    called_modules=frozenset(
        {
            "rotary_emb", "input_layernorm", "q_proj", "k_proj", "v_proj", "o_proj", "post_attention_layernorm",
            "mlp", "norm",
        }
    ),
    unused_modules=frozenset({"paligemma", "lm_head"}),
)  # fmt: skip


class Shared(NamedTuple):
    """Constant during a round: the expert, and the context of each of its layers."""

    expert: Any
    contexts: list[Context]
    suffix: Suffix


def prepare(experts: Any, real: Tensor, cache: Any, visible: Tensor) -> Shared:
    """Called once per round.

    Args:
        experts: LeRobot's or openpi's ``PaliGemmaWithExpertModel``.
        real: (B, P) bool, False for padding.
        cache: keys and values (B, N, P, D) of the prefix, layer by layer.
        visible: (S, S) bool, attention mask between the tokens of a candidate.
    """
    expert = experts.gemma_expert.model
    attention = expert.layers[0].self_attn
    weights = attention.q_proj.weight
    positions = real.sum(dim=1, keepdim=True) + visible.new_ones(1, len(visible)).cumsum(dim=1) - 1
    # The two halves of a rotary table are equal.
    cosine, sine = (table.chunk(2, dim=-1)[0] for table in expert.rotary_emb(weights, positions))
    prefix = VisibleTokens.of(real[:, None], weights.dtype)
    contexts = [prefix.context(keys.to(weights.dtype), values.to(weights.dtype)) for keys, values in _by_layer(cache)]
    return Shared(expert, contexts, Suffix.of(visible, cosine, sine, attention))


def denoise(shared: Shared, tokens: Tensor, condition: Tensor | None) -> Tensor:
    """The expert's output (B, K * S, E).

    Args:
        shared: from `prepare`.
        tokens: (B * K, S, E) suffixes of all candidates.
        condition: embedded time for the adaptive norms of π0.5: (B, C), one for all candidates of an observation, or
            (B, K * S, C), one for each token.
    """
    first = shared.contexts[0].keys
    hidden = tokens.reshape(first.shape[0], -1, tokens.shape[-1]).to(first.dtype)
    for layer, context in zip(shared.expert.layers, shared.contexts, strict=True):
        normed, gate = layer.input_layernorm(hidden, cond=condition)
        hidden = _add(hidden, attention_output(layer.self_attn, normed, context, shared.suffix), gate)
        normed, gate = layer.post_attention_layernorm(hidden, cond=condition)
        hidden = _add(hidden, layer.mlp(normed), gate)
    return shared.expert.norm(hidden, cond=condition)[0]


def _by_layer(cache: Any) -> list[tuple[Tensor, Tensor]]:
    """Keys and values of a cache, in transformers 5 and in the version that openpi pins."""
    if hasattr(cache, "layers"):
        return [(layer.keys, layer.values) for layer in cache.layers]
    return list(zip(cache.key_cache, cache.value_cache, strict=True))


def _add(hidden: Tensor, update: Tensor, gate: Tensor | None) -> Tensor:
    return hidden + (update if gate is None else update * gate)
