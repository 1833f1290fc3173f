"""Attention of many candidates to one context whose keys and values do not change while they are denoised."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor
from torch.nn import functional


class KeysValues(NamedTuple):
    """What queries look at.

    Attributes:
        keys: (B, H, L, E / H), one row for each observation.
        values: (B, H, L, E / H).
        mask: (B, 1, 1, L) bool, True where a query may look; None if everywhere.
    """

    keys: Tensor
    values: Tensor
    mask: Tensor | None = None


def compact(tokens: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Leave out the tokens that nobody may look at: they have no weight, so nothing changes.

    Rows keep different numbers of tokens; shorter ones are filled up to the longest and the filling stays masked. Waits once
    for the device, because the length of the result depends on the mask.

    Args:
        tokens: (B, L, E).
        mask: (B, L) bool, True where queries may look; None if everywhere.

    Returns:
        tokens (B, M, E) with M ≤ L, in their order, and a mask (B, M), or None where nothing is left to hide.

    >>> import torch
    >>> tokens = torch.arange(4.0).view(1, 4, 1)
    >>> kept, mask = compact(tokens, torch.tensor([[False, True, False, True]]))
    >>> kept.flatten().tolist(), mask
    ([1.0, 3.0], None)
    """
    if mask is None:
        return tokens, None
    counts = mask.sum(dim=1).tolist()
    # A row that may look nowhere keeps one hidden token: what comes of that is for the attention to say, as it was before.
    longest = max(1, *counts)
    if longest < mask.shape[1]:
        places = mask.int().argsort(dim=1, descending=True, stable=True)[:, :longest]
        tokens = tokens.gather(1, places[:, :, None].expand(-1, -1, tokens.shape[-1]))
        mask = mask.gather(1, places)
    return tokens, None if min(counts) == longest else mask


def split_heads(rows: Tensor, heads: int) -> Tensor:
    """(B, L, E) to (B, H, L, E / H)."""
    return rows.view(*rows.shape[:2], heads, -1).transpose(1, 2)


def cross_attend(queries: Tensor, seen: KeysValues) -> Tensor:
    """Attention of (B * K, S, E) queries to B rows of keys and values; K may be 1.

    Queries do not see each other, so the K candidates of a row can be the queries of one row: the context is neither repeated
    nor read more than once.

    Args:
        queries: (B * K, S, E), the K candidates of a row together.
        seen: of B rows.

    Returns:
        (B * K, S, E)
    """
    rows, heads = seen.keys.shape[:2]
    folded = split_heads(queries.reshape(rows, -1, queries.shape[-1]), heads)
    mixed = functional.scaled_dot_product_attention(folded, seen.keys, seen.values, attn_mask=seen.mask)
    return mixed.transpose(1, 2).reshape(queries.shape)
