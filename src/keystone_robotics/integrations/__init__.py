"""How other tools start KeyStone. What they share is here: settings, the environment, the log of rounds."""

from keystone_robotics.integrations.round_log import RoundLog
from keystone_robotics.integrations.settings import Settings

__all__ = ["RoundLog", "Settings"]
