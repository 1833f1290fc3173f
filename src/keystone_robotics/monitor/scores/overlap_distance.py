"""Mean distance between successive candidate sets."""

from __future__ import annotations

from keystone_robotics.monitor.observed import Observed, distances
from keystone_robotics.monitor.overlap import overlap
from keystone_robotics.monitor.scores.base import Score


def overlap_distance(now: Observed, before: Observed | None = None) -> float:
    """Mean distance of a candidate of this round to one of the previous round, on the steps both plan, per number."""
    both = overlap(now, before)
    return float("nan") if both is None else float(distances(*both).mean())


SCORE = Score(
    "overlap-distance",
    "mean distance between successive candidate sets on their overlap",
    overlap_distance,
    uses_previous=True,
)
