"""STAC-single, as in SAFE: STAC's comparison with one sample a round."""

from __future__ import annotations

import numpy as np

from keystone_robotics.monitor.observed import Observed
from keystone_robotics.monitor.overlap import overlap
from keystone_robotics.monitor.scores.base import Score


def stac_single(now: Observed, before: Observed | None = None) -> float:
    """Distance of candidate 0 to candidate 0 of the previous round, on the steps both plan, per number.

    Candidate 0 is the sample that the policy draws with K = 1, so that this needs no further candidates.
    """
    if before is None or now.labels[0] < 0 or before.labels[0] < 0:
        return float("nan")
    both = overlap(now, before)
    return float("nan") if both is None else float(np.linalg.norm(both[0][0] - both[1][0]))


SCORE = Score(
    "stac-single",
    "distance of successive single samples on their overlap, as SAFE",
    stac_single,
    uses_previous=True,
    min_candidates=1,
)
