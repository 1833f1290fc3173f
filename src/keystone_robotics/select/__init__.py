"""From K candidate chunks to the one to execute. Knows chunks only: no policy, no environment, no file."""

from keystone_robotics.select.api import select
from keystone_robotics.select.rounds import Round, RuleResult
from keystone_robotics.select.rules import RULES, Scored
from keystone_robotics.select.selection import Selection
from keystone_robotics.select.space import ActionSpace

__all__ = ["RULES", "ActionSpace", "Round", "RuleResult", "Scored", "Selection", "select"]
