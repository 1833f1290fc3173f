"""Attention to a context that K candidates share, without one copy of it.

Queries that look at the same keys may stand in one row: the K candidates of an observation, and the G query heads that use one
key head (grouped and multi-query attention), are folded into the query dimension. Attention to the shared context is then one
large product instead of K * G small ones. What a candidate sees besides, its own tokens, is attended to apart, and the two
results are merged by their log-sum-exp, which is exact: softmax over two sets of keys is the mean of the softmaxes over each,
weighted by the sums of their exponentials.

Shapes: B observations, K candidates of each, S tokens of a candidate, H query heads, N key heads (H = N * G), P context tokens,
D dimensions of a head.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

#: Returns the log-sum-exp along with the output, which `torch.nn.functional.scaled_dot_product_attention` keeps to itself.
_fused_on_cpu: Any = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)


class Attended(NamedTuple):
    """Attention to some of the keys.

    Attributes:
        output: (..., L, D) means of the values.
        weight: (..., L) log-sum-exp of the scores, by which it counts in a `merge`.
    """

    output: Tensor
    weight: Tensor


class Context(NamedTuple):
    """Keys and values that all candidates of an observation see.

    Attributes:
        keys: (B, N, P, D).
        values: (B, N, P, D).
        bias: (B, 1, 1, P) to add to the scores, very negative for padding; None if there is none.
    """

    keys: Tensor
    values: Tensor
    bias: Tensor | None = None

    @classmethod
    def of(cls, keys: Tensor, values: Tensor, real: Tensor) -> Context:
        """Without the tokens that are padding in every observation.

        Args:
            keys: (B, N, P, D).
            values: (B, N, P, D).
            real: (B, P) bool, False for padding.

        >>> keys, real = torch.zeros(2, 1, 4, 8), torch.tensor([[True, True, False, False], [True, True, True, False]])
        >>> context = Context.of(keys, keys, real)
        >>> context.keys.shape, (context.bias < 0).int().tolist()
        (torch.Size([2, 1, 3, 8]), [[[[0, 0, 1]]], [[[0, 0, 0]]]])
        """
        used = real.any(dim=0).nonzero()[:, 0]
        if 0 < len(used) < real.shape[1]:  # some are left, as the fused kernel does not survive an empty context
            keys, values, real = keys[:, :, used], values[:, :, used], real[:, used]
        return cls(keys, values, None if real.all() else bias_of(real[:, None, None], keys.dtype))


def bias_of(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """What to add to scores so that only visible keys count; finite, so that a row without any gives no NaN."""
    hidden = max(-1e30, torch.finfo(dtype).min)
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill(~visible, hidden)


def fold(queries: Tensor, key_heads: int) -> Tensor:
    """(B, K, S, H, D) queries of candidates to (B, N, K, S * G, D): those that share a key head stand together.

    >>> fold(torch.zeros(2, 8, 50, 15, 64), key_heads=5).shape
    torch.Size([2, 5, 8, 150, 64])
    """
    batch, k, length, heads, width = queries.shape
    grouped = queries.reshape(batch, k, length, key_heads, heads // key_heads, width)
    return grouped.permute(0, 3, 1, 2, 4, 5).reshape(batch, key_heads, k, -1, width)


def unfold(output: Tensor, length: int) -> Tensor:
    """(B, N, K, S * G, D) back to (B, K * S, H * D), the tokens of all candidates one after the other."""
    batch, key_heads, k, _, width = output.shape
    grouped = output.reshape(batch, key_heads, k, length, -1, width)
    return grouped.permute(0, 2, 3, 1, 4, 5).reshape(batch, k * length, -1)


def attend(queries: Tensor, keys: Tensor, values: Tensor, scale: float, bias: Tensor | None = None) -> Attended:
    """Plain attention that also tells its weight, in the type of the queries (which autocast may have made a coarser one).

    Args:
        queries: (B, N, L, D).
        keys: (B, N, M, D).
        values: (B, N, M, D).
        scale: factor on the scores.
        bias: added to the scores; broadcasts to (B, N, L, M).
    """
    keys, values = keys.to(queries.dtype), values.to(queries.dtype)
    bias = None if bias is None else bias.to(queries.dtype)
    needs_gradient = torch.is_grad_enabled() and any(part.requires_grad for part in (queries, keys, values))
    # The fused kernel has no gradient for the log-sum-exp: guided sampling, which needs one, does without it.
    if _fused_on_cpu is not None and queries.device.type == "cpu" and not needs_gradient:
        return Attended(*_fused_on_cpu(queries, keys, values, 0.0, False, attn_mask=bias, scale=scale))
    scores = queries @ keys.transpose(-1, -2)
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32)) * scale
    if bias is not None:
        scores = scores + bias
    return Attended(scores.softmax(dim=-1).to(values.dtype) @ values, scores.logsumexp(dim=-1))


def merge(first: Attended, second: Attended) -> Tensor:
    """Attention to the keys of both, of which at least one of the two must have seen any.

    >>> half = Attended(torch.zeros(1, 1), torch.zeros(1))
    >>> merge(half, Attended(torch.ones(1, 1), torch.log(torch.tensor([3.0]))))
    tensor([[0.7500]])
    """
    share = torch.sigmoid(first.weight - second.weight).unsqueeze(-1)
    return torch.lerp(second.output.to(share.dtype), first.output.to(share.dtype), share).to(first.output.dtype)


def attend_to_context(queries: Tensor, context: Context, scale: float) -> Attended:
    """Folded queries (B, N, K, S * G, D), all candidates of an observation at once."""
    batch, key_heads, k, rows, width = queries.shape
    seen = attend(queries.flatten(2, 3), context.keys, context.values, scale, context.bias)
    return Attended(seen.output.view(batch, key_heads, k, rows, width), seen.weight.view(batch, key_heads, k, rows))


def attend_to_both(
    queries: Tensor, context: Context, keys: Tensor, values: Tensor, scale: float, bias: Tensor | None
) -> Tensor:
    """Attention of candidates to the shared context and to their own tokens: (B, N, K, S * G, D).

    Args:
        queries: (B, N, K, S * G, D) as `fold` returns them.
        context: shared by the candidates of an observation.
        keys: (B, K, S, N, D) of each candidate.
        values: (B, K, S, N, D).
        scale: factor on the scores.
        bias: (S * G, S) of a candidate's tokens among each other, see `own_bias`; None if each sees all.
    """
    batch, _, k = queries.shape[:3]
    own = attend(
        queries.transpose(1, 2).flatten(0, 1),
        keys.flatten(0, 1).transpose(1, 2),
        values.flatten(0, 1).transpose(1, 2),
        scale,
        bias,
    )
    apart = Attended(*(part.reshape(batch, k, *part.shape[1:]).transpose(1, 2) for part in own))
    return merge(attend_to_context(queries, context, scale), apart)


def own_bias(visible: Tensor, groups: int, dtype: torch.dtype) -> Tensor | None:
    """The bias of a candidate's tokens among each other, for each of the G heads that were folded together.

    Args:
        visible: (S, S) bool, True where the token of a row may look at that of a column.
        groups: G.
        dtype: of the queries.
    """
    return None if visible.all() else bias_of(visible.repeat_interleave(groups, dim=0), dtype)
