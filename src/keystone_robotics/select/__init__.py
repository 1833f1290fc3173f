"""From K candidate chunks to the one to execute. Knows chunks only: no policy, no environment, no file."""

from keystone_robotics.select.api import select
from keystone_robotics.select.device import DeviceSelection, select_on_device
from keystone_robotics.select.rounds import Choice, Round
from keystone_robotics.select.rules import RULES
from keystone_robotics.select.selection import Selection
from keystone_robotics.select.space import ActionSpace

__all__ = [
    "RULES",
    "ActionSpace",
    "Choice",
    "DeviceSelection",
    "Round",
    "Selection",
    "select",
    "select_on_device",
]
