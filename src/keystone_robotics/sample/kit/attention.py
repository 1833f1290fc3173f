"""Attention of K candidates to a shared context, without copies of it.

Queries that attend to the same keys can share a batch row: the K candidates of an observation, and the G query heads of a key
head (grouped and multi-query attention), are folded into the query dimension. Attention to the shared context is then one
large matrix product instead of K * G small ones. Attention to a candidate's own tokens is computed separately, and the two
results are merged by their log-sum-exp. That is exact: softmax over two sets of keys is the mean of the softmaxes over each,
weighted by the sums of their exponentials.

Shapes: B observations, K candidates of each, S tokens of a candidate, H query heads, N key heads (H = N * G), P context tokens,
D dimensions of a head.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

#: Return the log-sum-exp with the output; `torch.nn.functional.scaled_dot_product_attention` does not.
_fused_on_cpu: Any = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
_fused_on_cuda: Any = getattr(torch.ops.aten, "_scaled_dot_product_efficient_attention", None)


class PartialAttention(NamedTuple):
    """Attention to a subset of the keys.

    Attributes:
        output: (..., L, D) weighted means of the values.
        logsumexp: (..., L) of the scores; the weight in a `merge`.
    """

    output: Tensor
    logsumexp: Tensor


class Context(NamedTuple):
    """Keys and values that all candidates of an observation attend to.

    Attributes:
        keys: (B, N, P, D).
        values: (B, N, P, D).
        bias: (B, 1, 1 or L, P) added to the scores of L queries, very negative for masked tokens; None without a mask.
    """

    keys: Tensor
    values: Tensor
    bias: Tensor | None = None


class VisibleTokens(NamedTuple):
    """The tokens of a context that any query attends to. Computed once per round for all layers: it synchronises the device.

    Attributes:
        indices: (M,) of the tokens that any query attends to; None for all.
        bias: (B, 1, 1 or L, M) as in `Context`; None if every query attends to all M.
    """

    indices: Tensor | None
    bias: Tensor | None

    @classmethod
    def of(cls, mask: Tensor, dtype: torch.dtype) -> VisibleTokens:
        """Drop the tokens that no query attends to.

        Args:
            mask: (B, 1, P) bool, False for padding; (B, L, P) if it differs between queries.
            dtype: of the keys.

        >>> mask = torch.tensor([[[True, True, False, False]], [[True, True, True, False]]])
        >>> visible = VisibleTokens.of(mask, torch.float32)
        >>> visible.indices.tolist(), (visible.bias < 0).int().tolist()
        ([0, 1, 2], [[[[0, 0, 1]]], [[[0, 0, 0]]]])
        >>> visible.context(torch.zeros(2, 1, 4, 8), torch.zeros(2, 1, 4, 8)).keys.shape
        torch.Size([2, 1, 3, 8])
        """
        rows = mask.flatten(0, 1)
        in_any_row, in_all_rows = rows.any(dim=0), rows.all(dim=0)
        any_count, all_count = torch.stack(
            [in_any_row.sum(), in_all_rows.sum()]
        ).tolist()  # one synchronisation, not two
        indices = None
        if 0 < any_count < len(in_any_row):  # the fused kernel crashes on an empty context
            indices = in_any_row.int().argsort(descending=True, stable=True)[:any_count]
            mask = mask[..., indices]
        return cls(indices, None if all_count == mask.shape[-1] else attention_bias(mask[:, None], dtype))

    def context(self, keys: Tensor, values: Tensor) -> Context:
        """These tokens of keys and values (B, N, P, D)."""
        if self.indices is not None:
            keys, values = keys[:, :, self.indices], values[:, :, self.indices]
        return Context(keys, values, self.bias)


def attention_bias(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """A bool mask as a bias on the scores; finite, so that a fully masked row gives no NaN."""
    hidden = max(-1e30, torch.finfo(dtype).min)
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill(~visible, hidden)


def fold(queries: Tensor, key_heads: int) -> Tensor:
    """Group the queries (B, K, S, H, D) of candidates by key head: (B, N, K, S * G, D).

    >>> fold(torch.zeros(2, 8, 50, 15, 64), key_heads=5).shape
    torch.Size([2, 5, 8, 150, 64])
    """
    batch, k, length, heads, width = queries.shape
    grouped = queries.reshape(batch, k, length, key_heads, heads // key_heads, width)
    return grouped.permute(0, 3, 1, 2, 4, 5).reshape(batch, key_heads, k, -1, width)


def unfold(output: Tensor, length: int) -> Tensor:
    """(B, N, K, S * G, D) back to (B, K * S, H * D), candidates concatenated along the sequence."""
    batch, key_heads, k, _, width = output.shape
    grouped = output.reshape(batch, key_heads, k, length, -1, width)
    return grouped.permute(0, 2, 3, 1, 4, 5).reshape(batch, k * length, -1)


def attend(queries: Tensor, keys: Tensor, values: Tensor, scale: float, bias: Tensor | None = None) -> PartialAttention:
    """Attention that also returns its log-sum-exp, in the dtype of the queries (to which autocast may have cast them).

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
    # The fused kernels have no gradient for the log-sum-exp, which guided sampling needs.
    fused = None if needs_gradient else _FUSED.get(queries.device.type)
    result = None if fused is None else fused(queries, keys, values, scale, bias)
    return _attend_unfused(queries, keys, values, scale, bias) if result is None else result


def _attend_on_cpu(
    queries: Tensor, keys: Tensor, values: Tensor, scale: float, bias: Tensor | None
) -> PartialAttention | None:
    if _fused_on_cpu is None:
        return None
    return PartialAttention(*_fused_on_cpu(queries, keys, values, 0.0, False, attn_mask=bias, scale=scale))


def _attend_on_cuda(
    queries: Tensor, keys: Tensor, values: Tensor, scale: float, bias: Tensor | None
) -> PartialAttention | None:
    # The kernel does not support float64, and requires a bias expanded over all heads, aligned to 16 bytes.
    if _fused_on_cuda is None or bias is not None or queries.dtype == torch.float64:
        return None
    output, logsumexp, *_ = _fused_on_cuda(queries, keys, values, None, True, scale=scale)
    return PartialAttention(output, logsumexp[..., : queries.shape[2]])  # padded to a multiple of 32 queries


#: Fused kernels by device type; they return None for unsupported inputs.
_FUSED: dict[str, Callable[..., PartialAttention | None]] = {"cpu": _attend_on_cpu, "cuda": _attend_on_cuda}


def _attend_unfused(
    queries: Tensor, keys: Tensor, values: Tensor, scale: float, bias: Tensor | None
) -> PartialAttention:
    """In float32 or wider, like the fused kernels: a bfloat16 score of 40 has a rounding error of up to 1/8."""
    wide = torch.promote_types(queries.dtype, torch.float32)
    with torch.autocast(queries.device.type, enabled=False):
        scores = (queries.to(wide) * scale) @ keys.to(wide).transpose(-1, -2)
        if bias is not None:
            scores = scores + bias
        output = scores.softmax(dim=-1) @ values.to(wide)
    return PartialAttention(output.to(values.dtype), scores.logsumexp(dim=-1))


def merge(first: PartialAttention, second: PartialAttention) -> Tensor:
    """Attention to the union of the keys; at least one of the two must have unmasked keys.

    >>> half = PartialAttention(torch.zeros(1, 1), torch.zeros(1))
    >>> merge(half, PartialAttention(torch.ones(1, 1), torch.log(torch.tensor([3.0]))))
    tensor([[0.7500]])
    """
    share = torch.sigmoid(first.logsumexp - second.logsumexp).unsqueeze(-1)
    return torch.lerp(second.output.to(share.dtype), first.output.to(share.dtype), share).to(first.output.dtype)


def attend_to_context(queries: Tensor, context: Context, scale: float) -> PartialAttention:
    """Folded queries (B, N, K, S * G, D), all candidates of an observation at once."""
    batch, key_heads, k, rows, width = queries.shape
    output, logsumexp = attend(queries.flatten(2, 3), context.keys, context.values, scale, context.bias)
    return PartialAttention(output.view(batch, key_heads, k, rows, width), logsumexp.view(batch, key_heads, k, rows))


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
        bias: (S * G, S) between a candidate's own tokens, see `self_bias`; None without a mask.
    """
    batch, _, k = queries.shape[:3]
    own = attend(
        queries.transpose(1, 2).flatten(0, 1),
        keys.flatten(0, 1).transpose(1, 2),
        values.flatten(0, 1).transpose(1, 2),
        scale,
        bias,
    )
    own = PartialAttention(*(part.reshape(batch, k, *part.shape[1:]).transpose(1, 2) for part in own))
    return merge(attend_to_context(queries, context, scale), own)


def self_bias(visible: Tensor, groups: int, dtype: torch.dtype) -> Tensor | None:
    """The bias between a candidate's own tokens, repeated for the G heads that were folded together.

    Args:
        visible: (S, S) bool, True where the row's token may attend to the column's.
        groups: G.
        dtype: of the queries.
    """
    return None if visible.all() else attention_bias(visible.repeat_interleave(groups, dim=0), dtype)
