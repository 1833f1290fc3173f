"""From one observation to K candidates: a policy's own sampler, run K wide on a context that is encoded once.

Knows policies only by their shape (duck typing): nothing of LeRobot or any other framework is imported here unless the
policy at hand has imported it already.
"""

from keystone_robotics.sample.adapter import Adapter, Window, find_adapter
from keystone_robotics.sample.engine import Engine
from keystone_robotics.sample.event import RoundEvent
from keystone_robotics.sample.noise import FixedNoise, initial_noise
from keystone_robotics.sample.override import SamplerOverride
from keystone_robotics.sample.request import NoiseSpec, SampleRequest

__all__ = [
    "Adapter",
    "Engine",
    "FixedNoise",
    "NoiseSpec",
    "RoundEvent",
    "SampleRequest",
    "SamplerOverride",
    "Window",
    "find_adapter",
    "initial_noise",
]
