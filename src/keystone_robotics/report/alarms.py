"""The score of an alarm over a stored episode, for pictures."""

from __future__ import annotations

from collections.abc import Sequence

from keystone_robotics.monitor.calibration import Calibration
from keystone_robotics.monitor.conformal import smooth
from keystone_robotics.monitor.run import score_rounds
from keystone_robotics.monitor.scores import find_score
from keystone_robotics.records import RoundRecord


def alarm_series(alarm: Calibration, rounds: Sequence[RoundRecord]) -> list[tuple[float, float]]:
    """Averaged score and limit of every round; the score is nan where it says nothing."""
    scores = score_rounds(rounds, [find_score(alarm.score)])[alarm.score]
    return [(float(value), alarm.limit_at(number)) for number, value in enumerate(smooth(scores, alarm.window))]
