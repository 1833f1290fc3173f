"""Rounds in Rerun's viewer: `RerunLog`, live, and recordings of stored episodes. Needs the extra ``rerun``."""

from keystone_robotics.view.live import RerunLog

__all__ = ["RerunLog"]
