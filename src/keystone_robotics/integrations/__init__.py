"""How other tools start KeyStone. What they share: the log of rounds, and what a server cannot do."""

from keystone_robotics.integrations.round_log import RoundLog, attach_with_log

__all__ = ["RoundLog", "attach_with_log"]
