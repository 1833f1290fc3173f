"""The attention of one decoder layer, its weights as transformers names them, for all candidates on their shared context."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from keystone_robotics.sample.kit.attention import Context, attend_to_both, attend_to_context, fold, own_bias, unfold


class Suffix(NamedTuple):
    """What is known of the S tokens that each candidate adds to the context, whatever they are.

    Attributes:
        length: S.
        cosine: (B, 1, S, 1, D / 2) of their positions.
        sine: likewise.
        bias: (S * G, S) among the tokens of one candidate; None if each sees all.
    """

    length: int
    cosine: Tensor
    sine: Tensor
    bias: Tensor | None

    @classmethod
    def of(cls, visible: Tensor, cosine: Tensor, sine: Tensor, attention: Any) -> Suffix:
        """From which token sees which, (S, S) bool, and tables (B, S, D / 2)."""
        groups = attention.q_proj.out_features // attention.k_proj.out_features
        bias = own_bias(visible, groups, attention.q_proj.weight.dtype)
        return cls(len(visible), cosine, sine, bias).at(cosine, sine)

    def at(self, cosine: Tensor, sine: Tensor) -> Suffix:
        """The same tokens at other positions: tables (B, S, D / 2)."""
        return self._replace(cosine=cosine[:, None, :, None], sine=sine[:, None, :, None])


def attention_output(attention: Any, hidden: Tensor, context: Context, suffix: Suffix, own: bool = True) -> Tensor:
    """What a transformers attention module returns for (B, K * S, E), the tokens of K candidates one after the other.

    Args:
        attention: with ``q_proj``, ``k_proj``, ``v_proj``, ``o_proj``, ``head_dim`` and ``scaling``.
        hidden: (B, K * S, E).
        context: shared by the candidates.
        suffix: of each candidate.
        own: candidates see their own tokens too, not the context alone.
    """

    def heads(projected: Tensor) -> Tensor:  # (B, K, S, heads, D)
        batch, tokens, _ = projected.shape
        return projected.view(batch, tokens // suffix.length, suffix.length, -1, attention.head_dim)

    queries = rotate(heads(attention.q_proj(hidden)), suffix.cosine, suffix.sine)
    queries = fold(queries, context.keys.shape[1])
    if own:
        keys = rotate(heads(attention.k_proj(hidden)), suffix.cosine, suffix.sine)
        values = heads(attention.v_proj(hidden))
        seen = attend_to_both(queries, context, keys, values, attention.scaling, suffix.bias)
    else:
        seen = attend_to_context(queries, context, attention.scaling).output
    return attention.o_proj(unfold(seen, suffix.length))  # type: ignore[no-any-return]


def rotate(states: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary positions: turn the first half of every head against its second.

    Args:
        states: (B, K, S, H, D).
        cosine: (B, 1, S, 1, D / 2) or broadcastable; its type is the one to compute in.
        sine: likewise.

    >>> rotate(torch.tensor([1.0, 0.0]), torch.zeros(1), torch.ones(1))
    tensor([0., 1.])
    """
    first, second = states.to(cosine.dtype).chunk(2, dim=-1)
    turned = torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)
    return turned.to(states.dtype)
