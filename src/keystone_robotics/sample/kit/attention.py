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

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

#: They return the log-sum-exp along with the output, which `torch.nn.functional.scaled_dot_product_attention` keeps to itself.
_fused_on_cpu: Any = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
_fused_on_cuda: Any = getattr(torch.ops.aten, "_scaled_dot_product_efficient_attention", None)


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
        bias: (B, 1, 1 or L, P) to add to the scores of L queries, very negative where they may not look; None if they may
            look everywhere.
    """

    keys: Tensor
    values: Tensor
    bias: Tensor | None = None


class Kept(NamedTuple):
    """Which tokens of a context count. Found once in a round, for all layers: that waits for the device.

    Attributes:
        places: (M,) of the tokens that any query sees; None if all are kept.
        bias: (B, 1, 1 or L, M) as in `Context`; None if every query sees all that are kept.
    """

    places: Tensor | None
    bias: Tensor | None

    @classmethod
    def of(cls, seen: Tensor, dtype: torch.dtype) -> Kept:
        """Without the tokens that nobody sees.

        Args:
            seen: (B, 1, P) bool, False for padding; (B, L, P) if queries differ in what they see.
            dtype: of the keys.

        >>> seen = torch.tensor([[[True, True, False, False]], [[True, True, True, False]]])
        >>> kept = Kept.of(seen, torch.float32)
        >>> kept.places.tolist(), (kept.bias < 0).int().tolist()
        ([0, 1, 2], [[[[0, 0, 1]]], [[[0, 0, 0]]]])
        >>> kept.context(torch.zeros(2, 1, 4, 8), torch.zeros(2, 1, 4, 8)).keys.shape
        torch.Size([2, 1, 3, 8])
        """
        rows = seen.flatten(0, 1)
        anyone, everyone = rows.any(dim=0), rows.all(dim=0)
        count, common = torch.stack([anyone.sum(), everyone.sum()]).tolist()  # one answer to wait for, not two
        places = None
        if 0 < count < len(anyone):  # but not none: the fused kernel does not survive an empty context
            places = anyone.int().argsort(descending=True, stable=True)[:count]
            seen = seen[..., places]
        return cls(places, None if common == seen.shape[-1] else bias_of(seen[:, None], dtype))

    def context(self, keys: Tensor, values: Tensor) -> Context:
        """The kept ones of keys and values (B, N, P, D)."""
        if self.places is not None:
            keys, values = keys[:, :, self.places], values[:, :, self.places]
        return Context(keys, values, self.bias)


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
    # The fused kernels have no gradient for the log-sum-exp: guided sampling, which needs one, does without them.
    fused = None if needs_gradient else _FUSED.get(queries.device.type)
    found = None if fused is None else fused(queries, keys, values, scale, bias)
    return _attend_unfused(queries, keys, values, scale, bias) if found is None else found


def _attend_on_cpu(queries: Tensor, keys: Tensor, values: Tensor, scale: float, bias: Tensor | None) -> Attended | None:
    if _fused_on_cpu is None:
        return None
    return Attended(*_fused_on_cpu(queries, keys, values, 0.0, False, attn_mask=bias, scale=scale))


def _attend_on_cuda(
    queries: Tensor, keys: Tensor, values: Tensor, scale: float, bias: Tensor | None
) -> Attended | None:
    # The kernel knows no float64, and wants a bias that is written out for all heads in rows of 16 bytes.
    if _fused_on_cuda is None or bias is not None or queries.dtype == torch.float64:
        return None
    output, weight, *_ = _fused_on_cuda(queries, keys, values, None, True, scale=scale)
    return Attended(output, weight[..., : queries.shape[2]])  # filled up to a multiple of 32 queries


#: By the type of a device. None is returned for what the kernel there cannot do.
_FUSED: dict[str, Callable[..., Attended | None]] = {"cpu": _attend_on_cpu, "cuda": _attend_on_cuda}


def _attend_unfused(queries: Tensor, keys: Tensor, values: Tensor, scale: float, bias: Tensor | None) -> Attended:
    """In float32 at least, as in the fused kernels: a score of 40 in bfloat16 is off by up to an eighth."""
    wide = torch.promote_types(queries.dtype, torch.float32)
    with torch.autocast(queries.device.type, enabled=False):
        scores = (queries.to(wide) * scale) @ keys.to(wide).transpose(-1, -2)
        if bias is not None:
            scores = scores + bias
        output = scores.softmax(dim=-1) @ values.to(wide)
    return Attended(output.to(values.dtype), scores.logsumexp(dim=-1))


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
