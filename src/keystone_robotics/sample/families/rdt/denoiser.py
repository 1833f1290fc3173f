"""The transformers of RDT-1B and H-RDT for K candidates on a shared context.

The original code projects all image and language tokens to keys and values for every candidate, in every block and step.
Here they are projected once per round, without masked tokens, and the candidates of an observation are queries of one row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from keystone_robotics.sample.engine import Engine
from keystone_robotics.sample.kit.bypass import Bypass, may_bypass
from keystone_robotics.sample.kit.cross_attention import KeysValues, compact, cross_attend
from keystone_robotics.sample.kit.widen import widen
from keystone_robotics.sample.proxies import original_class

#: Maps tokens (B * K, 1 + T, E) and the time (1,) to (B * K, T, D).
Network = Callable[[Tensor, Tensor], Tensor]

RDT = Bypass(
    called_modules=frozenset(
        {
            "t_embedder", "freq_embedder", "norm1", "attn", "norm2", "norm3", "ffn", "final_layer", "q", "kv", "q_norm",
            "k_norm", "proj",
        }
    )
)  # fmt: skip
H_RDT = Bypass(
    called_modules=frozenset(
        {
            "t_embedder", "adaLN_modulation", "attn_norm", "attn", "img_cross_norm", "img_cond_norm", "lang_cross_norm",
            "lang_cond_norm", "ffn_norm", "ffn", "action_decoder", "wq", "wkv", "wo", "norm_q", "norm_k",
        }
    )
)  # fmt: skip


#: By class: what is bypassed, the attentions to the context, and their parts.
KNOWN = {
    "RDT": (RDT, ("cross_attn",), ("q", "kv", "q_norm", "k_norm", "proj", "num_heads", "head_dim")),
    "HRDT": (
        H_RDT,
        ("img_cross_attn", "lang_cross_attn"),
        ("wq", "wkv", "wo", "norm_q", "norm_k", "n_heads", "n_kv_heads", "head_size"),
    ),
}


def may_share(engine: Engine, network: Any, visible: Tensor | None) -> bool:
    """Whether `shared_rdt` or `shared_h_rdt` supports the network and the mask (B, L), and would skip no hook or replaced
    method.
    """
    kind = original_class(network).__name__
    if kind not in KNOWN or network.training or not (visible is None or visible.dtype == torch.bool):
        return False
    bypass, attentions, parts = KNOWN[kind]
    return all(
        hasattr(getattr(block, name, None), part) for block in network.blocks for name in attentions for part in parts
    ) and may_bypass(engine, bypass, network)


def shared_rdt(network: Any, language: Tensor, images: Tensor, visible: Tensor | None, frequency: Tensor) -> Network:
    """RDT's network; its blocks attend to language and to images in turn.

    Args:
        network: a supported one, see `may_share`.
        language: (B, L, E).
        images: (B, M, E).
        visible: (B, L) bool, False for masked words.
        frequency: (B,) control frequency in Hz.
    """
    words = compact(language + network.lang_cond_pos_embed[:, : language.shape[1]], visible)
    contexts = words, (images + network.img_cond_pos_embed, None)
    keys_values = [_project_rdt(block.cross_attn, *contexts[index % 2]) for index, block in enumerate(network.blocks)]
    second = network.freq_embedder(frequency).unsqueeze(1)

    def run(tokens: Tensor, time: Tensor) -> Tensor:
        first = network.t_embedder(time).unsqueeze(1).expand(len(tokens), -1, -1)
        hidden = torch.cat([first, widen(second, len(tokens) // len(second)), tokens], dim=1) + network.x_pos_embed
        for block, context in zip(network.blocks, keys_values, strict=True):
            hidden = hidden + block.attn(block.norm1(hidden))
            hidden = hidden + _attend_rdt(block.cross_attn, block.norm2(hidden), context)
            hidden = hidden + block.ffn(block.norm3(hidden))
        return network.final_layer(hidden)[:, -network.horizon :]

    return run


def _project_rdt(attention: Any, tokens: Tensor, mask: Tensor | None) -> KeysValues:
    split = attention.kv(tokens).unflatten(-1, (2, attention.num_heads, attention.head_dim))
    keys, values = split.permute(2, 0, 3, 1, 4)
    return KeysValues(attention.k_norm(keys), values, None if mask is None else mask[:, None, None])


def _attend_rdt(attention: Any, tokens: Tensor, context: KeysValues) -> Tensor:
    queries = attention.q_norm(attention.q(tokens).unflatten(-1, (-1, attention.head_dim))).flatten(2)
    return attention.proj(cross_attend(queries, context))


def shared_h_rdt(network: Any, images: Tensor, language: Tensor | None, visible: Tensor | None) -> Network:
    """H-RDT's network; every block attends to images, then to language.

    Args:
        network: a supported one, see `may_share`.
        images: (B, M, E).
        language: (B, L, E) or None.
        visible: (B, L) bool, False for masked words; None without a mask.
    """
    pictures = images + network.img_pos_emb[:, : images.shape[1]]
    to_images = [_project_h_rdt(block.img_cross_attn, block.img_cond_norm(pictures), None) for block in network.blocks]
    to_words: list[KeysValues | None] = [None] * len(network.blocks)
    if language is not None:
        words, mask = compact(language + network.lang_pos_emb[:, : language.shape[1]], visible)
        to_words = [
            _project_h_rdt(block.lang_cross_attn, block.lang_cond_norm(words), mask) for block in network.blocks
        ]

    def run(tokens: Tensor, time: Tensor) -> Tensor:
        time = network.t_embedder(time)
        hidden = tokens + network.x_pos_emb
        for block, image_context, word_context in zip(network.blocks, to_images, to_words, strict=True):
            # One row for all candidates; the text's attention has no modulation.
            shift, scale, gate, shift_2, scale_2, gate_2, shift_3, scale_3, gate_3 = block.adaLN_modulation(time).chunk(
                9, 1
            )
            hidden = hidden + gate * block.attn(block.attn_norm(hidden) * (1 + scale) + shift)
            queries = block.img_cross_norm(hidden) * (1 + scale_2) + shift_2
            hidden = hidden + gate_2 * _attend_h_rdt(block.img_cross_attn, queries, image_context)
            if word_context is not None:
                hidden = hidden + _attend_h_rdt(block.lang_cross_attn, block.lang_cross_norm(hidden), word_context)
            hidden = hidden + gate_3 * block.ffn(block.ffn_norm(hidden) * (1 + scale_3) + shift_3)
        return network.action_decoder(hidden, time)[:, -network.horizon :]

    return run


def _project_h_rdt(attention: Any, tokens: Tensor, mask: Tensor | None) -> KeysValues:
    split = attention.wkv(tokens).unflatten(-1, (attention.n_kv_heads, attention.head_size, 2))
    keys, values = split.unbind(-1)
    groups = attention.n_heads // attention.n_kv_heads
    # A head of keys for each head of queries.
    keys, values = (one.transpose(1, 2).repeat_interleave(groups, dim=1) for one in (attention.norm_k(keys), values))
    return KeysValues(keys, values, None if mask is None else mask[:, None, None])


def _attend_h_rdt(attention: Any, tokens: Tensor, context: KeysValues) -> Tensor:
    queries = attention.norm_q(attention.wq(tokens).unflatten(-1, (-1, attention.head_size))).flatten(2)
    return attention.wo(cross_attend(queries, context))
