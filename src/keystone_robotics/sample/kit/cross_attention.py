"""Cross-attention of K candidates to one context whose keys and values are constant during a round."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor
from torch.nn import functional


class KeysValues(NamedTuple):
    """Keys and values of a context.

    Attributes:
        keys: (B, H, L, E / H), one row for each observation.
        values: (B, H, L, E / H).
        mask: (B, 1, 1, L) bool, False for masked tokens; None without a mask.
    """

    keys: Tensor
    values: Tensor
    mask: Tensor | None = None


def compact(tokens: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Drop masked tokens. The result of attention does not change: their weight is zero.

    Shorter rows are padded to the longest, and the padding stays masked. Synchronises the device once, because the length of
    the result depends on the mask.

    Args:
        tokens: (B, L, E).
        mask: (B, L) bool, False for masked tokens; None without a mask.

    Returns:
        tokens (B, M, E) with M ≤ L, in order, and a mask (B, M), or None if nothing is masked.

    >>> import torch
    >>> tokens = torch.arange(4.0).view(1, 4, 1)
    >>> kept, mask = compact(tokens, torch.tensor([[False, True, False, True]]))
    >>> kept.flatten().tolist(), mask
    ([1.0, 3.0], None)
    """
    if mask is None:
        return tokens, None
    counts = mask.sum(dim=1).tolist()
    # A fully masked row keeps one masked token, so that attention treats it as it does without compacting.
    longest = max(1, *counts)
    if longest < mask.shape[1]:
        indices = mask.int().argsort(dim=1, descending=True, stable=True)[:, :longest]
        tokens = tokens.gather(1, indices[:, :, None].expand(-1, -1, tokens.shape[-1]))
        mask = mask.gather(1, indices)
    return tokens, None if min(counts) == longest else mask


def split_heads(rows: Tensor, heads: int) -> Tensor:
    """(B, L, E) to (B, H, L, E / H)."""
    return rows.view(*rows.shape[:2], heads, -1).transpose(1, 2)


def cross_attend(queries: Tensor, context: KeysValues) -> Tensor:
    """Attention of (B * K, S, E) queries to B rows of keys and values; K may be 1.

    Queries are independent of each other, so the K candidates of an observation become queries of one row: the context is
    neither repeated nor read more than once.

    Args:
        queries: (B * K, S, E), the K candidates of a row adjacent.
        context: of B rows.

    Returns:
        (B * K, S, E)
    """
    rows, heads = context.keys.shape[:2]
    folded = split_heads(queries.reshape(rows, -1, queries.shape[-1]), heads)
    mixed = functional.scaled_dot_product_attention(folded, context.keys, context.values, attn_mask=context.mask)
    return mixed.transpose(1, 2).reshape(queries.shape)
