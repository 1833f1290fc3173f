"""STAC: statistical consistency of successive candidate sets (Agia et al., 2024)."""

from __future__ import annotations

import numpy as np

from keystone_robotics.monitor.observed import Observed, distances
from keystone_robotics.monitor.overlap import overlap
from keystone_robotics.monitor.scores.base import Score


def stac(now: Observed, before: Observed | None = None) -> float:
    """Squared maximum mean discrepancy between this round's candidates and the previous round's, on the steps both plan.

    RBF kernel exp(−d² / 2h²), with h the median distance between all of them; the biased estimate, 0 to 2. Its authors draw 256
    candidates. What is compared where actions are relative: see `overlap`.
    """
    both = overlap(now, before)
    if both is None:
        return float("nan")
    joint = np.concatenate(both)
    n = len(both[0])
    apart = distances(joint, joint)
    width = float(np.median(apart[np.triu_indices(len(joint), 1)]))
    if width == 0.0:
        return 0.0 if not apart.any() else float("nan")
    kernel = np.exp(-np.square(apart / width) / 2)
    return float(max(0.0, kernel[:n, :n].mean() + kernel[n:, n:].mean() - 2 * kernel[:n, n:].mean()))


SCORE = Score("stac", "MMD between successive candidate sets on their overlap, as STAC", stac, uses_previous=True)
