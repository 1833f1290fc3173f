"""A robot of two joints and a camera for LeRobot's `RobotClient`, which finds the class by the name of its config."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from lerobot.robots.config import RobotConfig
from lerobot.robots.robot import Robot


@RobotConfig.register_subclass("two_joints")
@dataclass
class TwoJointsConfig(RobotConfig):
    pass


class TwoJoints(Robot):
    config_class = TwoJointsConfig
    name = "two_joints"
    observation_features: ClassVar = {"x": float, "y": float, "image": (96, 96, 3)}
    action_features: ClassVar = {"x": float, "y": float}
    is_calibrated = True
    is_connected = True

    def __init__(self, config):
        self.sent = []

    def connect(self, calibrate=True):
        pass

    def calibrate(self):
        pass

    def configure(self):
        pass

    def get_observation(self):
        image = np.random.default_rng(0).integers(0, 255, (96, 96, 3), dtype=np.uint8)
        return {"x": 100.0, "y": np.float32(200.0), "image": image}

    def send_action(self, action):
        self.sent.append(action)
        return action

    def disconnect(self):
        pass
