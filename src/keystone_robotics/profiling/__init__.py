"""What K costs here: latency and memory of a round against K, measured, and the largest K worth having."""

from keystone_robotics.profiling.api import profile
from keystone_robotics.profiling.result import Cost, Profile

__all__ = ["Cost", "Profile", "profile"]
