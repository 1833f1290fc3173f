"""Sample variance of the candidates."""

from __future__ import annotations

from keystone_robotics.monitor.observed import Observed
from keystone_robotics.monitor.scores.base import Score


def variance(now: Observed, before: Observed | None = None) -> float:
    """Variance over the candidates, averaged over steps and dimensions, in squared units of the actions."""
    return float(now.counted.var(0, ddof=1).mean())


SCORE = Score("variance", "sample variance of the candidates", variance)
