"""Layer norms with external scale and shift, such as those computed from the time of a denoising step."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional


def is_plain(norm: Any) -> bool:
    """Whether this is a layer norm without weights, so that scale and shift can be passed instead.

    >>> is_plain(nn.LayerNorm(8, elementwise_affine=False)), is_plain(nn.LayerNorm(8))
    (True, False)
    """
    return isinstance(norm, nn.LayerNorm) and norm.weight is None


def modulate(norm: Any, hidden: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Normalise (..., E), then scale and shift, both (E,): one operation instead of three."""
    dtype = hidden.dtype  # autocast may have left scale and shift in another
    return functional.layer_norm(hidden, norm.normalized_shape, scale.to(dtype), shift.to(dtype), norm.eps)
