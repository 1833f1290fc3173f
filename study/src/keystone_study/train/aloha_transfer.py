"""ALOHA's ``transfer-cube``: the right arm picks up the cube, again if it missed it, and the left one takes it over."""

from __future__ import annotations

import numpy as np

from keystone_robotics.environments.aloha import AlohaEnv
from keystone_study.train.aloha_arms import ABOVE, PATIENCE, TURN, Command, Script, is_near
from keystone_study.train.imperfection import ImperfectDemonstrator

MEETING = np.array([0.0, 0.5, 0.25])  #: where the cube is handed over (m)
GRASP = np.array([0.005, 0.0, 0.01])  #: of the cube (m)
#: Of the meeting, where an arm waits or retires to: the right one, or the left one mirrored.
BESIDE = np.array([0.1, 0.0, 0.0])
CLOSING, OPENING = 18, 12  #: steps that grippers take
GRIPPED = 0.035  #: distance (m) between fingertips and cube at which it is taken to be gripped


class TransferScript(Script):
    """The right gripper points down at 60 degrees, the left one lies on its side, so that their fingers do not collide."""

    def __init__(self, env: AlohaEnv, demonstrator: ImperfectDemonstrator) -> None:
        super().__init__(env, demonstrator, pitch=(0.0, np.pi / 3), roll=(np.pi / 2, 0.0))
        self._waited = 0
        self._phase = "above"

    def _command(self, aiming_error: float) -> Command:
        cube, tips = self._env.objects()[0, :3], self._env.tips()
        believed = cube + np.array([aiming_error, 0.0, 0.0])
        self._waited += 1
        waiting = MEETING - BESIDE
        left, right, grippers = waiting, tips[1], (1.0, 1.0)
        if self._phase == "above":
            right = believed + ABOVE
            self._advance("down", is_near(tips[1], right) and self._steps > TURN)
        elif self._phase == "down":
            right = believed + GRASP
            self._advance("close", is_near(tips[1], right))
        elif self._phase == "close":
            right, grippers = self._tips[1], (1.0, 0.0)
            self._advance("lift", self._waited > CLOSING)
        elif self._phase == "lift":
            right, grippers = MEETING, (1.0, 0.0)
            missed = bool(np.linalg.norm(cube - tips[1]) > GRIPPED)
            self._advance("above" if missed else "meet", missed or is_near(tips[1], right))
        elif self._phase == "meet":
            left, right, grippers = cube, MEETING, (1.0, 0.0)
            self._advance("take", is_near(tips[0], left))
        elif self._phase == "take":
            left, right, grippers = self._tips[0], MEETING, (0.0, 0.0)
            self._advance("release", self._waited > CLOSING)
        elif self._phase == "release":
            left, right, grippers = self._tips[0], MEETING, (0.0, 1.0)
            self._advance("part", self._waited > OPENING)
        else:
            left, right, grippers = waiting, MEETING + BESIDE, (0.0, 1.0)
        return Command(np.stack([left, right]), np.array(grippers), np.ones(2))

    def _advance(self, phase: str, done: bool) -> None:
        if done or self._waited > PATIENCE:
            self._phase, self._waited = phase, 0
