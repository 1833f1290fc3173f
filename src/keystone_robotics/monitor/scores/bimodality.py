"""How clearly the candidates fall into two groups."""

from __future__ import annotations

import numpy as np

from keystone_robotics.monitor.observed import Observed
from keystone_robotics.monitor.scores.base import Score


def bimodality(now: Observed, before: Observed | None = None) -> float:
    """Share of the variance along the first principal axis that lies between two groups, split where it is largest.

    About 0.64 for one Gaussian mode (2/π) of many candidates, 1 for two points. It has no unit: how far apart the groups are
    does not matter.
    """
    flat = now.counted.reshape(now.valid, -1)
    centred = flat - flat.mean(0)
    gram = centred @ centred.T
    value, vector = np.linalg.eigh(gram)
    if value[-1] <= 1e-12 * (1.0 + np.square(flat).sum()):  # all are equal up to rounding
        return 0.0
    line = np.sort(vector[:, -1])
    line -= line.mean()
    left = np.cumsum(line)[:-1]
    counts = np.arange(1, len(line))
    between = np.square(left) / counts + np.square(left) / (len(line) - counts)  # the right side sums to −left
    return float(between.max() / np.square(line).sum())


SCORE = Score("bimodality", "how clearly the candidates fall into two groups", bimodality, min_candidates=3)
