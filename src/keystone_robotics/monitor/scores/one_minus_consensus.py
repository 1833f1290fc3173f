"""The share of the candidates outside of the winning group."""

from __future__ import annotations

from keystone_robotics.monitor.observed import Observed
from keystone_robotics.monitor.scores.base import Score


def one_minus_consensus(now: Observed, before: Observed | None = None) -> float:
    """1 − `Selection.consensus`."""
    return 1.0 - now.consensus


SCORE = Score("one-minus-consensus", "share of the candidates outside of the winning group", one_minus_consensus)
