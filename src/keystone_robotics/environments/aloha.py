"""ALOHA's simulation (gym-aloha): two ViperX arms with fourteen joints (MuJoCo), with states as observations.

LeRobot's own environment, ``lerobot:aloha``, renders a camera in every step. Here there are none, which makes it about a
hundred times faster.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from keystone_robotics.environments.benchmark import Benchmark, Observation
from keystone_robotics.environments.mujoco import MuJoCoEnv, importing, simulator_state
from keystone_robotics.errors import KeystoneError, nearest_name

JOINTS = 14  #: of each arm six angles (rad) and the gripper (0 closed, 1 open); left, then right
ARMS = ("left", "right")
REACH = 0.135  #: from the origin of the gripper along its x axis to between the fingertips (m)
FINGERS = {arm: {f"vx300s_{arm}/10_{side}_gripper_finger" for side in ARMS} for arm in ARMS}  #: MuJoCo's names
LENGTH, OPENING = 0.12, 0.018  #: of peg and socket, and from the socket's axis to its walls (m)
INSIDE = 0.015  #: depth (m) at which the peg counts as inserted; the pin stops it at 0.02
HOLD = 10  #: steps (of 0.02 s) for which success has to last
FRAME = (240, 320)  #: height and width of a rendered image


@dataclass(frozen=True)
class Scene:
    """What lies on the table.

    Attributes:
        model: file of gym-aloha.
        task: class of gym-aloha.
        sample: function of gym-aloha that draws where objects are.
        held: of the objects, in MuJoCo's order, which the left and which the right gripper is to take.
        max_steps: of an episode.
        success: whether a state is one of success; it has to last for ``HOLD`` steps.
    """

    model: str
    task: str
    sample: str
    held: tuple[int, int]
    max_steps: int
    success: Callable[[AlohaEnv], bool]


def _cube_is_handed_over(env: AlohaEnv) -> bool:
    touching = env.touches("red_box")
    return touching >= FINGERS["left"] and not any("right/" in one or one == "table" for one in touching)


def _peg_is_inserted(env: AlohaEnv) -> bool:
    peg, socket = env.touches("red_peg"), env.touches("socket-")
    return (
        env.depth() >= INSIDE and peg >= FINGERS["right"] and socket >= FINGERS["left"] and "table" not in peg | socket
    )


SCENES: dict[str, Scene] = {
    "transfer-cube": Scene(
        "bimanual_viperx_transfer_cube.xml", "TransferCubeTask", "sample_box_pose", (0, 0), 400, _cube_is_handed_over
    ),
    "insertion": Scene(
        "bimanual_viperx_insertion.xml", "InsertionTask", "sample_insertion_pose", (1, 0), 600, _peg_is_inserted
    ),
}


def _load() -> Any:
    """gym-aloha and what it stands on."""
    with importing("gym-aloha", '"gym-aloha>=0.1.5"'):
        from dm_control import mujoco
        from dm_control.rl import control
        from gym_aloha import constants, utils
        from gym_aloha.tasks import sim
    return mujoco, control, constants, utils, sim


class AlohaEnv(MuJoCoEnv):
    """Actions are (14,) targets of the joints, see ``JOINTS``.

    - ``transfer-cube``: the right arm picks up the cube and hands it to the left one.
    - ``insertion``: the right arm picks up a peg, the left one a socket, and the peg goes in as far as the pin.

    Observations:
        agent_pos: (14,) the joints.
        environment_state: (47,) joints, their velocities, the cube's position (m) and quaternion, the position (m) of both
            fingertips, and where the cube is relative to each. ``insertion`` has (54,): poses of peg and socket; the socket is
            relative to the left fingertips, the peg to the right ones.

    The reward is gym-aloha's, 0 to 4. Its success lasts a moment: a touch of the left gripper while the cube is off the
    table is met in passing by an arm that pushes the cube about, and a touch of the pin by a peg that is dropped at once. Here
    success has to last for 0.2 s: both fingers of the left gripper hold the cube alone, off the table; or the peg is 1.5 cm or
    more inside, with both fingers of the right gripper at the peg and of the left one at the socket, off the table. If the
    physics diverges, the episode has failed.

    >>> observation, info = AlohaEnv().reset(seed=0)
    >>> observation["environment_state"].shape
    (47,)
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 50}  # noqa: RUF012 (gymnasium's own form)

    def __init__(self, task: str = "transfer-cube", render: bool = False) -> None:
        mujoco, control, constants, utils, sim = _load()
        self._scene = SCENES[task]
        original: Any = getattr(sim, self._scene.task)

        class Blind(original):  # type: ignore[misc]
            """Without the images of every step."""

            def get_observation(self, physics: Any) -> dict[str, Any]:
                return {}

        self.render_mode = "rgb_array" if render else None
        self._pose, self._sample_pose = sim.BOX_POSE, getattr(utils, self._scene.sample)
        self._diverged: type[Exception] = control.PhysicsError
        self.task = Blind()
        self.physics: Any = mujoco.Physics.from_xml_path(str(constants.ASSETS_DIR / self._scene.model))
        self.sim: Any = control.Environment(self.physics, self.task, control_timestep=constants.DT)
        self._lasted = 0
        objects = max(self._scene.held) + 1
        actions = gymnasium.spaces.Box(-np.pi, np.pi, (JOINTS,), np.float32)
        self._set_spaces(actions, JOINTS, 2 * JOINTS + 7 * objects + 12)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        # The task takes it from there.
        self._pose[0] = np.hstack(self._sample_pose(int(self.np_random.integers(2**31))))
        self.sim.reset()
        self._lasted = 0
        self._last = self._observation()
        return self._last, {
            "success": False,
            "initial_state": simulator_state(self.physics.model.ptr, self.physics.data.ptr),
        }

    def step(self, action: NDArray[np.float32]) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        target = np.asarray(action, np.float64)
        if target.shape != (JOINTS,) or not np.isfinite(target).all():
            raise ValueError(f"an action is {JOINTS} finite numbers, targets of the joints, not {action!r}")
        try:
            reward = self.sim.step(target).reward
        except self._diverged:
            return self._last, 0.0, False, True, {"success": False, "diverged": True}
        self._lasted = self._lasted + 1 if self._scene.success(self) else 0
        success = self._lasted >= HOLD
        self._last = self._observation()
        return self._last, float(reward), success, False, {"success": success}

    def tips(self) -> NDArray[np.float64]:
        """(2, 3) between the fingertips of the left and the right gripper, in metres."""
        data = self.physics.named.data
        links = [f"vx300s_{arm}/gripper_link" for arm in ARMS]
        return np.stack([data.xpos[link] + REACH * data.xmat[link].reshape(3, 3)[:, 0] for link in links])

    def objects(self) -> NDArray[np.float64]:
        """(N, 7) positions (m) and quaternions: the cube; or peg and socket."""
        return np.array(self.physics.data.qpos[16:]).reshape(-1, 7)

    def held(self) -> NDArray[np.float64]:
        """(2, 3) position (m) of what the left and the right gripper are to take."""
        return self.objects()[list(self._scene.held), :3]

    def depth(self) -> float:
        """How far the peg is inside the socket (m)."""
        peg, socket = self.objects()
        between = np.abs(self.physics.named.data.xmat["socket"].reshape(3, 3).T @ (peg - socket)[:3])
        return float(LENGTH - between[0]) if between[1:].max() < OPENING else 0.0

    def touches(self, name: str) -> set[str]:
        """What touches an object: names of MuJoCo's geoms. Those of the object begin with ``name``."""
        model, data = self.physics.model, self.physics.data
        pairs = [[model.id2name(geom, "geom") for geom in (one.geom1, one.geom2)] for one in data.contact[: data.ncon]]
        return {other for pair in pairs for one, other in (pair, pair[::-1]) if one.startswith(name)}

    def _image(self) -> NDArray[np.uint8]:
        return self.physics.render(*FRAME, camera_id="front_close")  # type: ignore[no-any-return]

    def _observation(self) -> Observation:
        joints, tips = self.task.get_qpos(self.physics), self.tips()
        velocities = self.task.get_qvel(self.physics)
        parts = [joints, velocities, self.objects().ravel(), tips.ravel(), (self.held() - tips).ravel()]
        return {
            "agent_pos": joints.astype(np.float32),
            "environment_state": np.concatenate(parts).astype(np.float32),
        }


class Aloha(Benchmark):
    """The tasks of ``SCENES``."""

    name = "aloha"

    def tasks(self) -> tuple[str, ...]:
        return tuple(SCENES)

    def make(self, task: str, render: bool = False) -> AlohaEnv:
        self._check(task)
        return AlohaEnv(task, render)

    def max_steps(self, task: str) -> int:
        self._check(task)
        return SCENES[task].max_steps

    def _check(self, task: str) -> None:
        if task not in SCENES:
            raise KeystoneError(f"ALOHA has no task {task!r}: {nearest_name(task, SCENES)}")
