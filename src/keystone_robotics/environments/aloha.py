"""ALOHA's simulation (gym-aloha): two ViperX arms with fourteen joints hand over a cube (MuJoCo), with states as observations.

LeRobot's own environment, ``lerobot:aloha``, renders a camera in every step. Here there are none, which makes it about a
hundred times faster.
"""

from __future__ import annotations

import os
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from keystone_robotics.environments.benchmark import Benchmark, Observation
from keystone_robotics.environments.graphics import OFF, choose_backend, no_graphics
from keystone_robotics.errors import KeystoneError, nearest_name

JOINTS = 14  #: of each arm six angles (rad) and the gripper (0 closed, 1 open); left, then right
ARMS = ("left", "right")
REACH = 0.135  #: from the origin of the gripper along its x axis to between the fingertips (m)
#: of the left gripper, by MuJoCo's names
FINGERS = {f"vx300s_left/10_{side}_gripper_finger" for side in ARMS}
HOLD = 10  #: steps (of 0.02 s) that the left gripper has to hold the cube alone
FRAME = (240, 320)  #: height and width of a rendered image


def _load() -> Any:
    """gym-aloha and what it stands on."""
    choose_backend()
    try:
        from dm_control import mujoco
        from dm_control.rl import control
        from gym_aloha import constants, utils
        from gym_aloha.tasks import sim
    except ImportError as error:
        raise KeystoneError(f'gym-aloha is not installed ({error}): pip install "gym-aloha>=0.1.5"') from error
    except Exception as error:  # MuJoCo loads OpenGL at import, and fails in many ways
        raise no_graphics(error) from error
    return mujoco, control, constants, utils, sim


class AlohaEnv(gymnasium.Env[Observation, NDArray[np.float32]]):
    """The right arm picks up the cube and hands it to the left one. Actions are (14,) targets of the joints, see ``JOINTS``.

    Observations:
        agent_pos: (14,) the joints.
        environment_state: (47,) joints, their velocities, the cube's position (m) and quaternion, the position (m) of both
            fingertips, and where the cube is relative to each.

    The reward is gym-aloha's, 0 to 4. Its success, a touch of the left gripper while the cube is off the table, is met in
    passing by an arm that pushes the cube about. Here both fingers of the left gripper have to hold the cube alone, off the
    table, for 0.2 s. If the physics diverges, the episode has failed.

    >>> observation, info = AlohaEnv().reset(seed=0)
    >>> observation["environment_state"].shape
    (47,)
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 50}  # noqa: RUF012 (gymnasium's own form)

    def __init__(self, render: bool = False) -> None:
        mujoco, control, constants, utils, sim = _load()
        original: Any = sim.TransferCubeTask

        class Blind(original):  # type: ignore[misc]
            """Without the three images of every step."""

            def get_observation(self, physics: Any) -> dict[str, Any]:
                return {}

        self.render_mode = "rgb_array" if render else None
        self._pose, self._sample_pose = sim.BOX_POSE, utils.sample_box_pose
        self._diverged: type[Exception] = control.PhysicsError
        self.task = Blind()
        path = constants.ASSETS_DIR / "bimanual_viperx_transfer_cube.xml"
        self.physics: Any = mujoco.Physics.from_xml_path(str(path))
        self.sim: Any = control.Environment(self.physics, self.task, control_timestep=constants.DT)
        self._held = 0
        self.action_space = gymnasium.spaces.Box(-np.pi, np.pi, (JOINTS,), np.float32)
        inf = np.inf
        self.observation_space = gymnasium.spaces.Dict(
            agent_pos=gymnasium.spaces.Box(-inf, inf, (JOINTS,), np.float32),
            environment_state=gymnasium.spaces.Box(-inf, inf, (2 * JOINTS + 7 + 12,), np.float32),
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        self._pose[0] = self._sample_pose(int(self.np_random.integers(2**31)))  # the task takes it from there
        self.sim.reset()
        self._held = 0
        self._last = self._observation()
        return self._last, {"success": False, "initial_state": self._state()}

    def step(self, action: NDArray[np.float32]) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        target = np.asarray(action, np.float64)
        if target.shape != (JOINTS,) or not np.isfinite(target).all():
            raise ValueError(f"an action is {JOINTS} finite numbers, targets of the joints, not {action!r}")
        try:
            reward = self.sim.step(target).reward
        except self._diverged:
            return self._last, 0.0, False, True, {"success": False, "diverged": True}
        self._held = self._held + 1 if self._left_holds() else 0
        success = self._held >= HOLD
        self._last = self._observation()
        return self._last, float(reward), success, False, {"success": success}

    def tips(self) -> NDArray[np.float64]:
        """(2, 3) between the fingertips of the left and the right gripper, in metres."""
        data = self.physics.named.data
        links = [f"vx300s_{arm}/gripper_link" for arm in ARMS]
        return np.stack([data.xpos[link] + REACH * data.xmat[link].reshape(3, 3)[:, 0] for link in links])

    def cube(self) -> NDArray[np.float64]:
        """(7,) position (m) and quaternion of the cube."""
        pose: NDArray[np.float64] = self.physics.data.qpos[-7:].copy()
        return pose

    def touches(self) -> set[str]:
        """What touches the cube: names of MuJoCo's geoms."""
        model, data = self.physics.model, self.physics.data
        cube = model.name2id("red_box", "geom")
        pairs = [(one.geom1, one.geom2) for one in data.contact[: data.ncon]]
        return {model.id2name(pair[pair[0] == cube], "geom") for pair in pairs if cube in pair}

    def render(self) -> NDArray[np.uint8]:
        """(240, 320, 3) view from the front of the table."""
        if os.environ.get("MUJOCO_GL") == OFF:
            raise no_graphics("no OpenGL library was found")
        try:
            image: NDArray[np.uint8] = self.physics.render(*FRAME, camera_id="front_close")
        except Exception as error:
            raise no_graphics(error) from error
        return image

    def close(self) -> None:
        self.sim.close()

    def _left_holds(self) -> bool:
        touching = self.touches()
        return touching >= FINGERS and not any("right/" in one or one == "table" for one in touching)

    def _observation(self) -> Observation:
        joints, tips, cube = self.task.get_qpos(self.physics), self.tips(), self.cube()
        velocities = self.task.get_qvel(self.physics)
        parts = [joints, velocities, cube, tips.ravel(), (cube[:3] - tips).ravel()]
        return {
            "agent_pos": joints.astype(np.float32),
            "environment_state": np.concatenate(parts).astype(np.float32),
        }

    def _state(self) -> NDArray[np.float64]:
        """Everything that an episode follows from."""
        import mujoco

        everything = mujoco.mjtState.mjSTATE_INTEGRATION
        model, data = self.physics.model.ptr, self.physics.data.ptr
        state = np.empty(mujoco.mj_stateSize(model, everything))
        mujoco.mj_getState(model, data, state, everything)
        return state


class Aloha(Benchmark):
    """One task, ``transfer-cube``."""

    name = "aloha"

    def tasks(self) -> tuple[str, ...]:
        return ("transfer-cube",)

    def make(self, task: str, render: bool = False) -> AlohaEnv:
        self._check(task)
        return AlohaEnv(render)

    def max_steps(self, task: str) -> int:
        self._check(task)
        return 400

    def _check(self, task: str) -> None:
        if task not in self.tasks():
            raise KeystoneError(f"ALOHA has no task {task!r}: {nearest_name(task, self.tasks())}")
