"""A demonstrator for ALOHA's two arms: waypoints of both fingertips, inverse kinematics, human-like errors."""

from __future__ import annotations

import functools
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from keystone_robotics.environments import BENCHMARKS, Observation
from keystone_robotics.environments.aloha import ARMS, JOINTS, REACH, AlohaEnv
from keystone_robotics.environments.benchmark import Array
from keystone_study.train.demonstration import Demonstration
from keystone_study.train.expert import Expert, attempt_random
from keystone_study.train.imperfection import REGIMES, ImperfectDemonstrator

Vector = NDArray[np.float64]

MOTION = 6  #: displacements of the two fingertips, whose errors are those of a demonstrator's hands
FASTEST = 0.008  #: metres that a fingertip moves in a step (0.02 s) at full speed
TURN = 60  #: steps in which the grippers turn from the start to how they work
ARRIVED = 0.012  #: distance (m) at which a waypoint counts as reached
MEETING = np.array([0.0, 0.5, 0.25])  #: where the cube is handed over (m)
ABOVE, GRASP = np.array([0.0, 0.0, 0.08]), np.array([0.005, 0.0, 0.01])  #: of the cube (m)
#: Of the meeting, where an arm waits or retires to: the right one, or the left one mirrored.
BESIDE = np.array([0.1, 0.0, 0.0])
CLOSING, OPENING = 18, 12  #: steps that grippers take
PATIENCE = 70  #: steps after which a waypoint that is hard to reach is taken for reached
GRIPPED = 0.035  #: distance (m) between fingertips and cube at which it is taken to be gripped
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
        return _turned([0.0, 0.0, np.arctan2(away[1], away[0])])

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
            error = np.concatenate([tip - at, _rotation_vector(turn @ now.T)])
            jacobian = np.zeros((2, 3, model.nv))
            mujoco.mj_jac(model, data, jacobian[0], jacobian[1], at, self._link)
            moves = jacobian.reshape(6, -1)[:, self.first : self.first + 6]
            change = np.linalg.solve(moves.T @ moves + DAMPING**2 * np.eye(6), moves.T @ error)
            joints = np.clip(joints + change, *self._limits.T)
        return joints


class TransferScript:
    """Both arms: the right one picks up the cube, again if it missed it, and the left one takes it over."""

    def __init__(self, env: AlohaEnv, demonstrator: ImperfectDemonstrator) -> None:
        self._env, self._demonstrator = env, demonstrator
        self._arms = [Kinematics(env.physics, arm) for arm in ARMS]
        self._joints = [env.physics.data.qpos[arm.first : arm.first + 6].copy() for arm in self._arms]
        self._bias = [np.zeros(6), np.zeros(6)]
        self._tips = env.tips()
        straight = [arm.pose(np.zeros(6))[1] for arm in self._arms]
        self._starts = [arm.pose(joints)[1] for arm, joints in zip(self._arms, self._joints, strict=True)]
        # the right gripper points down at 60 degrees, the left one lies on its side, so that their fingers do not collide
        self._ends = [_turned([np.pi / 2, 0, 0]) @ straight[0], _turned([0, -np.pi / 3, 0]) @ straight[1]]
        self._steps = self._waited = 0
        self._phase = "above"

    def action(self) -> Array:
        """(14,) targets of the joints. Call once per step."""
        goals, grippers = self._goals(self._demonstrator.aiming_error())
        wanted = np.clip((goals - self._tips) / FASTEST, -1.0, 1.0)
        moved = self._demonstrator.move(np.concatenate([wanted.ravel(), grippers]))
        self._tips = self._tips + FASTEST * moved[:MOTION].reshape(2, 3)
        self._steps += 1
        share = min(1.0, self._steps / TURN)
        action = np.empty(JOINTS)
        for index, arm in enumerate(self._arms):
            start, end = self._starts[index], self._ends[index]
            turn = arm.yaw(self._tips[index]) @ _turned(share * _rotation_vector(end @ start.T)) @ start
            self._joints[index] = arm.solve(self._joints[index], self._tips[index], turn)
            sag = self._joints[index] - self._env.physics.data.qpos[arm.first : arm.first + 6]
            self._bias[index] = np.clip(self._bias[index] + BIAS * sag, -MOST, MOST)
            action[7 * index : 7 * index + 6] = self._joints[index] + self._bias[index]
            action[7 * index + 6] = grippers[index]
        result: Array = action.astype(np.float32)
        return result

    def _goals(self, aiming_error: float) -> tuple[Vector, Vector]:
        """(2, 3) where the fingertips of both arms go, and (2,) whether their grippers are open."""
        cube, tips = self._env.cube()[:3], self._env.tips()
        believed = cube + np.array([aiming_error, 0.0, 0.0])
        self._waited += 1
        waiting = MEETING - BESIDE
        left, right, grippers = waiting, tips[1], (1.0, 1.0)
        if self._phase == "above":
            right = believed + ABOVE
            self._advance("down", _near(tips[1], right) and self._steps > TURN)
        elif self._phase == "down":
            right = believed + GRASP
            self._advance("close", _near(tips[1], right))
        elif self._phase == "close":
            right, grippers = self._tips[1], (1.0, 0.0)
            self._advance("lift", self._waited > CLOSING)
        elif self._phase == "lift":
            right, grippers = MEETING, (1.0, 0.0)
            missed = bool(np.linalg.norm(cube - tips[1]) > GRIPPED)
            self._advance("above" if missed else "meet", missed or _near(tips[1], right))
        elif self._phase == "meet":
            left, right, grippers = cube, MEETING, (1.0, 0.0)
            self._advance("take", _near(tips[0], left))
        elif self._phase == "take":
            left, right, grippers = self._tips[0], MEETING, (0.0, 0.0)
            self._advance("release", self._waited > CLOSING)
        elif self._phase == "release":
            left, right, grippers = self._tips[0], MEETING, (0.0, 1.0)
            self._advance("part", self._waited > OPENING)
        else:
            left, right, grippers = waiting, MEETING + BESIDE, (0.0, 1.0)
        return np.stack([left, right]), np.array(grippers)

    def _advance(self, phase: str, done: bool) -> None:
        if done or self._waited > PATIENCE:
            self._phase, self._waited = phase, 0


class AlohaExpert(Expert):
    """The two-armed script with the errors of `keystone_study.train.imperfection` on the motion of both hands."""

    benchmark = BENCHMARKS["aloha"]
    default_tasks = ("transfer-cube",)
    regimes = tuple(REGIMES)
    relative = tuple(joint for joint in range(JOINTS) if joint % 7 != 6)
    horizon, n_action_steps, width = 50, 25, 256
    packages = ("gym-aloha", "dm-control", "mujoco")
    max_steps: ClassVar[int] = 500  # slow demonstrations may take longer than a policy is given
    tail: ClassVar[int] = 10  # steps after success, in which the arms part

    def describe(self, regime: str) -> str:
        return f"{REGIMES[regime]} fastest={FASTEST} grasp={GRASP.tolist()} max_steps={self.max_steps} tail={self.tail}"

    def demonstrate(self, task: str, regime: str, seed: int, index: int) -> Demonstration:
        random, state_seed = attempt_random(task, regime, seed, index)
        env = _env()
        observation, _ = env.reset(seed=state_seed)
        script = TransferScript(env, ImperfectDemonstrator(REGIMES[regime], random, MOTION))
        seen: list[Observation] = []
        actions: list[Array] = []
        last = self.max_steps
        success = False
        while len(actions) < last:
            action = script.action()
            seen.append(observation)
            actions.append(action)
            observation, _, done, diverged, _ = env.step(action)
            if diverged:
                break
            if done and not success:
                success, last = True, min(last, len(actions) + self.tail)
        return Demonstration(
            agent_pos=np.stack([one["agent_pos"] for one in seen]),
            environment_state=np.stack([one["environment_state"] for one in seen]),
            actions=np.stack(actions),
            success=success,
        )


def _near(place: Vector, goal: Vector) -> bool:
    return bool(np.linalg.norm(place - goal) <= ARRIVED)


def _turned(vector: Any) -> Vector:
    """(3, 3) the rotation by a rotation vector (3,) in rad."""
    from scipy.spatial.transform import Rotation

    matrix: Vector = Rotation.from_rotvec(vector).as_matrix()
    return matrix


def _rotation_vector(matrix: Vector) -> Vector:
    from scipy.spatial.transform import Rotation

    vector: Vector = Rotation.from_matrix(matrix).as_rotvec()
    return vector


@functools.lru_cache(maxsize=1)  # making one takes as long as an episode
def _env() -> AlohaEnv:
    return AlohaEnv()
