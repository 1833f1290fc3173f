"""Adaptive K in a batch: some rows are selected from the first few candidates, the others from all."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from keystone_robotics.errors import KeystoneError
from keystone_robotics.sample.adapter import Adapter
from keystone_robotics.sample.site import SiteAdapter
from keystone_robotics.select import Selection
from keystone_robotics.select.selection import NOT_DRAWN


def refuse_adaptive_k(adapter: Adapter) -> None:
    """Raise if the noise of a candidate depends on how many are drawn with it, so that the rest cannot be drawn later."""
    if isinstance(adapter, SiteAdapter):
        raise KeystoneError(
            "k=LEAST..MOST does not work with site=: torch draws the noise of all candidates at once there; give a number"
        )


def merge_rows(few: Selection, every: Selection, agreed: NDArray[np.bool_]) -> Selection:
    """Rows of two selections of one batch: of the first few candidates where they agreed, else of all.

    Args:
        few: selection among the first candidates of every row.
        every: among all.
        agreed: (B,) which rows take the former; their other candidates count as not drawn.
    """

    def rows(a: NDArray[Any], b: NDArray[Any], fill: int = 0) -> NDArray[Any]:
        missing = b.shape[-1] - a.shape[-1] if a.ndim > 1 else 0  # fewer candidates or clusters
        padded = np.pad(a, [(0, 0), (0, missing)], constant_values=fill) if missing else a
        return np.where(agreed.reshape(-1, *[1] * (a.ndim - 1)), padded, b)

    own: dict[str, Any] = {
        name: None if getattr(few, name) is None else rows(getattr(few, name), getattr(every, name))
        for name in (
            "index", "sizes", "clustered", "consensus", "spread", "median_distance", "dispersion", "agreed_steps",
        )
    }  # fmt: skip
    which = torch.as_tensor(agreed, device=few.chunk.device)[:, None, None]
    return every._replace(
        chunk=torch.where(which, few.chunk, every.chunk), labels=rows(few.labels, every.labels, NOT_DRAWN), **own
    )
