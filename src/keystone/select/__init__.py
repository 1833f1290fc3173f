"""From K candidate chunks to the one to execute. Knows chunks only: no policy, no environment, no file."""

from keystone.select.api import select
from keystone.select.device import DeviceSelection, select_on_device
from keystone.select.rounds import Choice, Round
from keystone.select.rules import RULES
from keystone.select.selection import Selection
from keystone.select.space import ActionSpace

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
