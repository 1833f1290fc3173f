"""Measurements by others that the model can be held against."""

from __future__ import annotations

from typing import NamedTuple

#: Where the numbers come from.
SOURCE = (
    "NVIDIA, Isaac-GR00T, scripts/deployment/README.md of release N1.6 "
    "(GR00T-N1.6-3B, 4 denoising steps, one view): columns Backbone and Action Head"
)


class Published(NamedTuple):
    """Milliseconds of GR00T N1.6 at K = 1: backbone, action head eagerly, action head with torch.compile."""

    backbone: float
    eager: float
    compiled: float


GROOT: dict[str, Published] = {
    "h100": Published(23, 49, 11),
    "4090": Published(25, 55, 17),
    "5090": Published(18, 38, 16),
    "thor": Published(38, 74, 61),
    "orin": Published(93, 202, 101),
}
