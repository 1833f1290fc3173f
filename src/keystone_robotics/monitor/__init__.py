"""Knowing when: scores of disagreement, alarms calibrated on successful episodes, and how well they do."""

from keystone_robotics.monitor.alarm import Alarm, AlarmEvent
from keystone_robotics.monitor.calibration import Calibration, NoSeparation, calibrate
from keystone_robotics.monitor.detection import Detection, detect
from keystone_robotics.monitor.observed import Observed, observe
from keystone_robotics.monitor.run import RunScores, read_run
from keystone_robotics.monitor.scores import SCORES, Score

__all__ = [
    "SCORES",
    "Alarm",
    "AlarmEvent",
    "Calibration",
    "Detection",
    "NoSeparation",
    "Observed",
    "RunScores",
    "Score",
    "calibrate",
    "detect",
    "observe",
    "read_run",
]
