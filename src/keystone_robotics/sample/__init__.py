"""From one observation to K candidates: a policy's own sampler, run K wide on a context that is encoded once.

Policies are recognised by duck typing: LeRobot and other frameworks are imported only if the policy has imported them
already.
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
