"""ALOHA's two arms under a script: waypoints of both fingertips, inverse kinematics, human-like errors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from keystone_robotics.environments.aloha import ARMS, JOINTS, REACH, AlohaEnv
from keystone_robotics.environments.benchmark import Array
from keystone_study.train.imperfection import ImperfectDemonstrator

Vector = NDArray[np.float64]

MOTION = 6  #: displacements of the two fingertips, whose errors are those of a demonstrator's hands
FASTEST = 0.008  #: metres that a fingertip moves in a step (0.02 s) at full speed
TURN = 60  #: steps in which the grippers turn from the start to how they work
ARRIVED = 0.012  #: distance (m) at which a waypoint counts as reached
PATIENCE = 70  #: steps after which a waypoint that is hard to reach is taken for reached
ABOVE = np.array([0.0, 0.0, 0.08])  #: of an object (m), before it is grasped
DAMPING, SWEEPS = 0.02, 3  #: of the inverse kinematics: of the least squares (m or rad), and iterations of a step
BIAS, MOST = 0.04, 0.2  #: gain and limit (rad) of the integrator that makes up for arms that sag under their weight


class Kinematics:
    """Joints of one arm for a pose of its fingertips, by damped least squares on a private copy of the physics."""

    def __init__(self, physics: Any, arm: str) -> None:
        self._physics = physics.copy(share_model=True)
        self._link = self._physics.model.name2id(f"vx300s_{arm}/gripper_link", "body")
        self.first = 8 * ARMS.index(arm)  # each arm has six joints and two fingers
        data, base = self._physics.named.data, f"vx300s_{arm}"
        self._base, self._axes = data.xpos[base].copy(), data.xmat[base].reshape(3, 3).copy()
        self._limits = self._physics.model.jnt_range[self.first : self.first + 6]

    def yaw(self, tip: Vector) -> Vector:
        """(3, 3) the turn about the vertical that the waist alone makes for these fingertips.

        A gripper that follows it keeps the forearm from rolling, which has two solutions.
        """
        away = self._axes.T @ (tip - self._base)
        return rotation([0.0, 0.0, np.arctan2(away[1], away[0])])

    def pose(self, joints: Vector) -> tuple[Vector, Vector]:
        """Fingertips (3,) in metres and orientation (3, 3) of the gripper for six joints (rad)."""
        import mujoco

        model, data = self._physics.model.ptr, self._physics.data.ptr
        data.qpos[self.first : self.first + 6] = joints
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        turn = data.xmat[self._link].reshape(3, 3).copy()
        return data.xpos[self._link] + REACH * turn[:, 0], turn

    def solve(self, joints: Vector, tip: Vector, turn: Vector) -> Vector:
        """(6,) joints near ``joints`` whose fingertips are nearer the wanted pose."""
        import mujoco

        model, data = self._physics.model.ptr, self._physics.data.ptr
        for _ in range(SWEEPS):
            at, now = self.pose(joints)
            error = np.concatenate([tip - at, rotation_vector(turn @ now.T)])
            jacobian = np.zeros((2, 3, model.nv))
            mujoco.mj_jac(model, data, jacobian[0], jacobian[1], at, self._link)
            moves = jacobian.reshape(6, -1)[:, self.first : self.first + 6]
            change = np.linalg.solve(moves.T @ moves + DAMPING**2 * np.eye(6), moves.T @ error)
            joints = np.clip(joints + change, *self._limits.T)
        return joints


class Command(NamedTuple):
    """What both arms are to do now.

    Attributes:
        goals: (2, 3) where the fingertips go (m).
        grippers: (2,) 0 closed, 1 open.
        pace: (2,) share of full speed; a slower hand is steadier.
    """

    goals: Vector
    grippers: Vector
    pace: Vector


class Script(ABC):
    """Both arms in one episode.

    Args:
        env: after its reset.
        demonstrator: errs.
        pitch: (2,) how far the grippers point down (rad).
        roll: (2,) how far they lie on their side (rad).
    """

    def __init__(
        self, env: AlohaEnv, demonstrator: ImperfectDemonstrator, pitch: tuple[float, float], roll: tuple[float, float]
    ) -> None:
        self._env, self._demonstrator = env, demonstrator
        self._arms = [Kinematics(env.physics, arm) for arm in ARMS]
        self._joints = [env.physics.data.qpos[arm.first : arm.first + 6].copy() for arm in self._arms]
        self._bias = [np.zeros(6), np.zeros(6)]
        self._tips = env.tips()
        #: (2, 3) rotation vectors (rad) by which a script turns its grippers besides
        self._correction: Vector = np.zeros((2, 3))
        self._starts = [arm.pose(joints)[1] for arm, joints in zip(self._arms, self._joints, strict=True)]
        turned = [rotation([roll[index], side * pitch[index], 0]) for index, side in enumerate((1, -1))]
        self._ends = [turn @ arm.pose(np.zeros(6))[1] for turn, arm in zip(turned, self._arms, strict=True)]
        self._steps = 0

    def action(self) -> Array:
        """(14,) targets of the joints. Call once per step."""
        goals, grippers, pace = self._command(self._demonstrator.aiming_error())
        wanted = np.clip((goals - self._tips) / FASTEST / pace[:, None], -1.0, 1.0)
        moved = self._demonstrator.move(np.concatenate([wanted.ravel(), grippers]))
        self._tips = self._tips + FASTEST * moved[:MOTION].reshape(2, 3) * pace[:, None]
        self._steps += 1
        share = min(1.0, self._steps / TURN)
        action = np.empty(JOINTS)
        for index, arm in enumerate(self._arms):
            start, end = self._starts[index], self._ends[index]
            turn = arm.yaw(self._tips[index]) @ rotation(share * rotation_vector(end @ start.T)) @ start
            turn = rotation(self._correction[index]) @ turn
            self._joints[index] = arm.solve(self._joints[index], self._tips[index], turn)
            sag = self._joints[index] - self._env.physics.data.qpos[arm.first : arm.first + 6]
            self._bias[index] = np.clip(self._bias[index] + BIAS * sag, -MOST, MOST)
            action[7 * index : 7 * index + 6] = self._joints[index] + self._bias[index]
            action[7 * index + 6] = grippers[index]
        result: Array = action.astype(np.float32)
        return result

    @abstractmethod
    def _command(self, aiming_error: float) -> Command: ...


def is_near(place: Vector, goal: Vector) -> bool:
    """Whether fingertips have reached a waypoint."""
    return bool(np.linalg.norm(place - goal) <= ARRIVED)


def rotation(vector: Any) -> Vector:
    """(3, 3) the rotation by a rotation vector (3,) in rad."""
    from scipy.spatial.transform import Rotation

    matrix: Vector = Rotation.from_rotvec(vector).as_matrix()
    return matrix


def rotation_vector(matrix: Vector) -> Vector:
    """(3,) rotation vector (rad) of a rotation (3, 3)."""
    from scipy.spatial.transform import Rotation

    vector: Vector = Rotation.from_matrix(matrix).as_rotvec()
    return vector
