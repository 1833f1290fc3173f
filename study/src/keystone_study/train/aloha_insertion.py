"""ALOHA's ``insertion``: the right arm picks up the peg, the left one the socket, and the peg goes in as far as the pin."""

from __future__ import annotations

import numpy as np

from keystone_robotics.environments.aloha import AlohaEnv
from keystone_study.train.aloha_arms import ABOVE, PATIENCE, TURN, Command, Script, Vector, is_near
from keystone_study.train.imperfection import ImperfectDemonstrator

MEETING = np.array([0.0, 0.5, 0.2])  #: between socket and peg (m)
APART = 0.16  #: centres of socket and peg (m) before the insertion
DEEP = 0.098  #: the same at its end; the pin stops it at 0.1
DOWN = np.array([0.0, 0.0, -0.005])  #: of an object (m), where it is grasped
PITCH = np.radians(65)  #: with which the fingers get down to the peg, which is 2 cm high
CLOSING = 24  #: steps that grippers take
LIFTING = 150  #: steps after which objects are taken to be where they meet
GRIPPED, LOST = 0.07, 0.09  #: distances (m) between fingertips and object at which it is gripped, or was lost
LIFT_PACE, FINE_PACE = 0.2, 0.25  #: the fingers hold the peg so weakly that they drop it when lifted faster
GAIN, TURN_GAIN = 0.06, 0.03  #: of the corrections of where objects are, and of how they lie, in one step
LARGEST_TURN = 0.5  #: of such a correction (rad)
STRAIGHT = 0.004  #: distance (m) between the axes at which the insertion begins
LYING = 0.06  #: their angle to x (rad) at which it begins
ASKEW = 0.012  #: distance (m) between the axes at which it is given up before the peg is in the mouth ...
MOUTH = 0.118  #: ... which it is at this distance (m) of the centres
HURRY = 150  #: steps after which the insertion begins all the same
INWARD = 0.001  #: metres that the peg advances in a step


class InsertionScript(Script):
    """Each arm grasps its object, again if it missed it. Then both are watched: how they lie corrects where the hands go."""

    def __init__(self, env: AlohaEnv, demonstrator: ImperfectDemonstrator) -> None:
        super().__init__(env, demonstrator, pitch=(PITCH, PITCH), roll=(0.0, 0.0))
        self._picking, self._waited = ["above", "above"], [0, 0]
        self._phase, self._since = "pick", 0

    def _command(self, aiming_error: float) -> Command:
        self._since += 1
        objects, tips = self._env.held(), self._env.tips()
        meeting = MEETING + np.outer([-0.5, 0.5], [APART, 0.0, 0.0])
        if self._phase == "pick":
            believed = objects + np.array([aiming_error, 0.0, 0.0])
            goals, grippers = self._pick(believed, objects, tips, meeting)
            if self._picking == ["ready", "ready"]:
                self._begin("align")
            return Command(goals, grippers, np.where(grippers == 0, LIFT_PACE, 1.0))
        skew = self._straighten()
        between = objects[1] - objects[0]
        beside = np.abs(between[1:]).max()
        errors = meeting - objects
        if self._phase == "align":
            if self._since > HURRY or (beside < STRAIGHT and skew < LYING):
                self._begin("insert")
        else:
            errors[1] = [max(DEEP, APART - INWARD * self._since), 0.0, 0.0] - between
            if beside > ASKEW and between[0] > MOUTH:
                self._begin("align")
        lost = np.linalg.norm(objects - tips, axis=1) > LOST
        if lost.any():
            self._begin("pick")
            self._correction[:] = 0.0
            for arm in np.flatnonzero(lost):
                self._picking[arm], self._waited[arm] = "above", 0
        return Command(self._tips + GAIN * errors, np.zeros(2), np.full(2, FINE_PACE))

    def _pick(self, believed: Vector, objects: Vector, tips: Vector, meeting: Vector) -> tuple[Vector, Vector]:
        """Where both hands go (2, 3), and their grippers (2,). ``tips``, ``objects`` and where they meet are (2, 3)."""
        goals, grippers = self._tips.copy(), np.ones(2)
        for arm in range(2):
            self._waited[arm] += 1
            away = float(np.linalg.norm(objects[arm] - tips[arm]))
            phase = self._picking[arm]
            if phase == "above":
                goals[arm] = believed[arm] + ABOVE
                self._advance(arm, "down", is_near(tips[arm], goals[arm]) and self._steps > TURN)
            elif phase == "down":
                goals[arm] = believed[arm] + DOWN
                self._advance(arm, "close", is_near(tips[arm], goals[arm]))
            else:
                grippers[arm] = 0.0
                if phase == "close":
                    self._advance(arm, "lift", self._waited[arm] > CLOSING)
                elif away > GRIPPED:
                    self._advance(arm, "above", True)
                elif phase == "lift":
                    goals[arm] = meeting[arm] + (tips[arm] - objects[arm]) * [1.0, 0.0, 0.0]
                    self._advance(arm, "ready", is_near(tips[arm], goals[arm]), LIFTING)
        return goals, grippers

    def _straighten(self) -> float:
        """Turn both grippers so that peg and socket lie along x; the larger of the angles that they are off (rad)."""
        from scipy.spatial.transform import Rotation

        poses = self._env.objects()[[1, 0]]
        axes = Rotation.from_quat(poses[:, [4, 5, 6, 3]]).as_matrix()[:, :, 0]
        off = np.cross(axes * np.sign(axes[:, :1]), [1.0, 0.0, 0.0])
        self._correction = np.clip(self._correction + TURN_GAIN * off, -LARGEST_TURN, LARGEST_TURN)
        return float(np.linalg.norm(off, axis=1).max())

    def _advance(self, arm: int, phase: str, done: bool, patience: int = PATIENCE) -> None:
        if done or self._waited[arm] > patience:
            self._picking[arm], self._waited[arm] = phase, 0

    def _begin(self, phase: str) -> None:
        self._phase, self._since = phase, 0
