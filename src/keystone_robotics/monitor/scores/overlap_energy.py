"""Energy distance between successive candidate sets."""

from __future__ import annotations

from keystone_robotics.monitor.observed import Observed, distances
from keystone_robotics.monitor.overlap import overlap
from keystone_robotics.monitor.scores.base import Score


def overlap_energy(now: Observed, before: Observed | None = None) -> float:
    """2 E|X − Y| − E|X − X′| − E|Y − Y′|, X of this round's candidates, Y of the previous round's, where both plan."""
    both = overlap(now, before)
    if both is None:
        return float("nan")
    x, y = both
    return float(2 * distances(x, y).mean() - distances(x, x).mean() - distances(y, y).mean())


SCORE = Score(
    "overlap-energy",
    "energy distance between successive candidate sets on their overlap",
    overlap_energy,
    uses_previous=True,
)
