"""Layer norms whose scale and shift come from elsewhere, such as the time of a denoising step."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional


def is_plain(norm: Any) -> bool:
    """A layer norm without weights of its own, so that scale and shift can take their place.

    >>> is_plain(nn.LayerNorm(8, elementwise_affine=False)), is_plain(nn.LayerNorm(8))
    (True, False)
    """
    return isinstance(norm, nn.LayerNorm) and norm.weight is None


def modulate(norm: Any, hidden: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Normalise (..., E), then scale and shift, both (E,): one operation instead of three."""
    kind = hidden.dtype  # autocast may have left the others in another type
    return functional.layer_norm(hidden, norm.normalized_shape, scale.to(kind), shift.to(kind), norm.eps)
