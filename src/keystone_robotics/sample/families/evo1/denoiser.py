"""EVO1's action transformer on a shared context: its blocks attend to the context only, so keys and values are constant.

The original code projects the context and its padding to keys and values for every candidate, block and step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from keystone_robotics.sample.kit.bypass import Bypass
from keystone_robotics.sample.kit.cross_attention import KeysValues, compact, cross_attend, split_heads
from keystone_robotics.sample.proxies import original_class

#: For the list of blocks. The projections of attention are applied as matrices, not as modules.
BYPASS = Bypass(called_modules=frozenset({"norm1", "norm2", "ff"}))


def prepare(blocks: Iterable[Any], context: Tensor, padding: Tensor | None) -> list[KeysValues]:
    """Called once per round: keys and values of each block.

    Args:
        blocks: supported ones, see `recognises`.
        context: (B, L, E) vision-language and state tokens.
        padding: (B, L) bool, True for padding; None without padding.
    """
    tokens, mask = compact(context, None if padding is None else ~padding)
    mask = None if mask is None else mask[:, None, None]
    contexts = []
    for block in blocks:
        keys, values = (_project(block.attn, tokens, part) for part in (1, 2))
        heads = block.attn.num_heads
        contexts.append(KeysValues(split_heads(keys, heads), split_heads(values, heads), mask))
    return contexts


def run_blocks(blocks: Iterable[Any], contexts: Sequence[KeysValues], tokens: Tensor, time: Tensor) -> Tensor:
    """One step: (B * K, S, E) tokens of all candidates at the embedded time (E,) to tokens of the same shape."""
    hidden = tokens
    for block, context in zip(blocks, contexts, strict=True):
        mixed = cross_attend(_project(block.attn, block.norm1(hidden), 0), context)
        output = block.attn.out_proj
        hidden = hidden + functional.linear(mixed, output.weight, output.bias)
        hidden = hidden + block.ff(block.norm2(hidden) + time)
    return hidden


def recognises(blocks: Sequence[Any]) -> bool:
    """Whether `run_blocks` supports these blocks; others run their own code."""
    return all(_recognises_block(block) for block in blocks)


def _recognises_block(block: Any) -> bool:
    if original_class(block).__name__ != "BasicTransformerBlock" or block.training:
        return False
    if not all(hasattr(block, part) for part in ("attn", "norm1", "norm2", "ff")):
        return False
    attention = block.attn
    return (
        original_class(attention) is nn.MultiheadAttention
        and attention.in_proj_weight is not None  # queries, keys and values in one matrix
        and attention.batch_first
        and attention.bias_k is None
        and not attention.add_zero_attn
    )


def _project(attention: nn.MultiheadAttention, tokens: Tensor, part: int) -> Tensor:
    """Queries, keys or values (``part`` 0, 1 or 2) of (B, L, E) tokens."""
    bias = attention.in_proj_bias
    weight = attention.in_proj_weight.chunk(3)[part]
    return functional.linear(tokens, weight, None if bias is None else bias.chunk(3)[part])
