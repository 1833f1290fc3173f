"""Attention of a transformers decoder layer for K candidates on a shared context."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from keystone_robotics.sample.kit.attention import Context, attend_to_both, attend_to_context, fold, self_bias, unfold


class Suffix(NamedTuple):
    """The S tokens that each candidate appends to the context: positions and mask, the same for all candidates.

    Attributes:
        length: S.
        cosine: (B, 1, S, 1, D / 2) of their positions.
        sine: likewise.
        bias: (S * G, S) between the tokens of one candidate; None without a mask.
    """

    length: int
    cosine: Tensor
    sine: Tensor
    bias: Tensor | None

    @classmethod
    def of(cls, visible: Tensor, cosine: Tensor, sine: Tensor, attention: Any) -> Suffix:
        """From a mask (S, S) bool and rotary tables (B, S, D / 2)."""
        groups = attention.q_proj.out_features // attention.k_proj.out_features
        bias = self_bias(visible, groups, attention.q_proj.weight.dtype)
        return cls(len(visible), cosine, sine, bias).at(cosine, sine)

    def at(self, cosine: Tensor, sine: Tensor) -> Suffix:
        """The same tokens at other positions, given as rotary tables (B, S, D / 2)."""
        return self._replace(cosine=cosine[:, None, :, None], sine=sine[:, None, :, None])


def attention_output(attention: Any, hidden: Tensor, context: Context, suffix: Suffix, own: bool = True) -> Tensor:
    """The output of a transformers attention module for (B, K * S, E), K candidates concatenated along the sequence.

    Args:
        attention: with ``q_proj``, ``k_proj``, ``v_proj``, ``o_proj``, ``head_dim`` and ``scaling``.
        hidden: (B, K * S, E).
        context: shared by the candidates.
        suffix: of each candidate.
        own: candidates also attend to their own tokens, not only to the context.
    """

    def heads(projected: Tensor) -> Tensor:  # (B, K, S, heads, D)
        batch, tokens, _ = projected.shape
        return projected.view(batch, tokens // suffix.length, suffix.length, -1, attention.head_dim)

    queries = rotate(heads(attention.q_proj(hidden)), suffix.cosine, suffix.sine)
    queries = fold(queries, context.keys.shape[1])
    if own:
        keys = rotate(heads(attention.k_proj(hidden)), suffix.cosine, suffix.sine)
        values = heads(attention.v_proj(hidden))
        attended = attend_to_both(queries, context, keys, values, attention.scaling, suffix.bias)
    else:
        attended = attend_to_context(queries, context, attention.scaling).output
    return attention.o_proj(unfold(attended, suffix.length))  # type: ignore[no-any-return]


def rotate(states: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary position embedding on the two halves of every head.

    Args:
        states: (B, K, S, H, D).
        cosine: (B, 1, S, 1, D / 2) or broadcastable; computed in its dtype.
        sine: likewise.

    >>> rotate(torch.tensor([1.0, 0.0]), torch.zeros(1), torch.ones(1))
    tensor([0., 1.])
    """
    first, second = states.to(cosine.dtype).chunk(2, dim=-1)
    rotated = torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)
    return rotated.to(states.dtype)
