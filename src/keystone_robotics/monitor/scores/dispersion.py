"""Dispersion of all candidates."""

from __future__ import annotations

from keystone_robotics.monitor.observed import Observed
from keystone_robotics.monitor.scores.base import Score


def dispersion(now: Observed, before: Observed | None = None) -> float:
    """`Selection.dispersion`: the median distance against the motion of the medoid, 0 to 1."""
    return now.dispersion


SCORE = Score("dispersion", "how far apart the candidates are, relative to how far they move", dispersion)
