"""Action-chunk entropy, after FIPER (Römer et al., 2025)."""

from __future__ import annotations

import numpy as np

from keystone_robotics.monitor.observed import Observed
from keystone_robotics.monitor.scores.base import Score
from keystone_robotics.select.metrics import motion

CELL = 0.25  #: edge of a cell, in typical motions per number


def ace(now: Observed, before: Observed | None = None) -> float:
    """Entropy in nats of the candidates over a grid, for each step and dimension by itself, averaged.

    FIPER's grid has a fixed edge in the units of its robots. Units of actions are not known here: the edge is `CELL` times the
    typical motion of the medoid per number. 0 if all candidates share a cell; at most log K.
    """
    counted = now.counted
    medoid = int(now.distances.sum(1).argmin())
    edge = CELL * motion(counted[medoid].ravel(), counted.shape[1], "l2") / np.sqrt(counted[0].size)
    offsets = counted - np.median(counted, axis=0)
    if edge <= 0.0:  # it does not move: everything that differs lies in a cell of its own
        edge = 1e-9
    cells = np.sort(np.clip(np.rint(offsets / edge), -1e9, 1e9).reshape(len(counted), -1), axis=0)
    # runs of equal cells in the sorted columns
    begins = np.concatenate([np.ones_like(cells[:1], bool), cells[1:] != cells[:-1]])
    run = np.cumsum(begins, axis=0) - 1 + len(cells) * np.arange(cells.shape[1])
    sizes = np.bincount(run.ravel().astype(np.int64), minlength=cells.size)
    share = sizes[sizes > 0] / len(cells)
    return float(-(share * np.log(share)).sum() / cells.shape[1])


SCORE = Score("ace", "entropy of the candidates over a grid, as FIPER", ace)
