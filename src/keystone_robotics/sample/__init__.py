"""From one observation to K candidates: a policy's own sampler, run K wide on a context that is encoded once.

Knows policies only by their shape (duck typing): nothing of LeRobot or any other framework is imported here unless the
policy at hand has imported it already.
"""

from keystone_robotics.sample.adapter import Adapter, Seam, find_adapter
from keystone_robotics.sample.kit.widen import widen
from keystone_robotics.sample.noise import GivenNoise, initial_noise
from keystone_robotics.sample.session import Session

__all__ = ["Adapter", "GivenNoise", "Seam", "Session", "find_adapter", "initial_noise", "widen"]
