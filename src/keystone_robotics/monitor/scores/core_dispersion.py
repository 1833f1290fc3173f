"""Dispersion of the core: the tightest half of the candidates."""

from __future__ import annotations

import numpy as np

from keystone_robotics.monitor.observed import Observed
from keystone_robotics.monitor.scores.base import Score
from keystone_robotics.select.metrics import motion


def core_dispersion(now: Observed, before: Observed | None = None) -> float:
    """As `Selection.dispersion`, d / (d + m), with d the median distance within the core: a second mode does not count."""
    half = (now.valid + 1) // 2
    nearest = np.argsort(now.distances, axis=1, kind="stable")[:, :half]
    reach = np.take_along_axis(now.distances, nearest, 1)
    core = nearest[int(reach.sum(1).argmin())]
    apart = now.distances[np.ix_(core, core)][np.triu_indices(half, 1)]
    d = float(np.median(apart)) if len(apart) else 0.0
    medoid = int(now.distances.sum(1).argmin())
    m = motion(now.counted[medoid].ravel(), now.counted.shape[1], "l2")
    return d / (d + m) if d else 0.0


SCORE = Score("core-dispersion", "dispersion of the tightest half of the candidates", core_dispersion)
