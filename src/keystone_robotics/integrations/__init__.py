"""Integrations with other tools: openpi, vla-eval, and the log of rounds that they share."""

from keystone_robotics.integrations.round_log import RoundLog, attach_with_log

__all__ = ["RoundLog", "attach_with_log"]
