"""Meta-World: fifty manipulation tasks of a simulated Sawyer arm (MuJoCo), with states as observations."""

from __future__ import annotations

import functools
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from keystone_robotics.environments.benchmark import Array, Benchmark, Observation
from keystone_robotics.environments.mujoco import MuJoCoEnv, hand_path, importing
from keystone_robotics.errors import KeystoneError, nearest_name

STATE = 39  #: numbers in Meta-World's own observation: hand, gripper and objects now and one step ago, and the goal
ROBOT = 4  #: the first of them: the hand's position (m) and the gripper's opening
STEP = 0.01  #: metres that an action of 1 moves the hand's target
FRAME = 256  #: pixels of a rendered image, in both directions
CAMERA = "corner2"  #: mounted upside down; the image is rotated
#: Position of that camera (m), as is usual for training on images: the table fills the image.
NEARER = (0.75, 0.075, 0.7)


@functools.cache
def _classes() -> dict[str, Any]:
    with importing("Meta-World", '"keystone-robotics[eval]"'):
        from metaworld.env_dict import ALL_V3_ENVIRONMENTS
    return dict(sorted(ALL_V3_ENVIRONMENTS.items()))


@functools.cache
def _listed() -> tuple[str, ...]:
    """The tasks that Meta-World's source lists, sorted; empty if it does not. Importing it loads MuJoCo and takes seconds."""
    package = find_spec("metaworld")
    for folder in (package and package.submodule_search_locations) or ():
        source = Path(folder) / "env_dict.py"
        text = source.read_text(encoding="utf-8") if source.is_file() else ""
        names = text.partition("\nALL_V3_ENVIRONMENTS = ")[2].partition(")")[0]
        return tuple(sorted(re.findall(r'"([\w-]+)"', names)))
    return ()


class MetaWorldEnv(MuJoCoEnv):
    """One task. Actions are (4,): end-effector displacement in x, y, z and gripper effort, each in [-1, 1].

    Observations are ``agent_pos`` (4,), proprioception, and ``environment_state`` (39 + 50,): Meta-World's observation with the
    goal visible, then the task as a one-hot vector, as in Meta-World's MT50.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 80}  # noqa: RUF012 (gymnasium's own form)

    def __init__(self, task: str, render: bool = False) -> None:
        classes = _classes()
        if task not in classes:
            raise KeystoneError(f"Meta-World has no task {task!r}: {nearest_name(task, classes)}")
        self.render_mode = "rgb_array" if render else None
        self.sim: Any = classes[task](
            render_mode=self.render_mode, camera_name=CAMERA if render else None, width=FRAME, height=FRAME
        )
        sim = self.sim
        if render:
            sim.model.camera(CAMERA).pos = NEARER
        sim._partially_observable = False  # the goal is in the observation, as in MT1 and MT50
        # cached while the goal was hidden: it would clip the goal to zero
        vars(sim).pop("sawyer_observation_space", None)
        sim._set_task_called = True  # no task object: the initial state follows from the seed alone
        sim._freeze_rand_vec, sim.seeded_rand_vec = False, True
        self._task = np.zeros(len(classes), np.float32)
        self._task[list(classes).index(task)] = 1.0
        self._set_spaces(gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32), ROBOT, STATE + len(classes))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.sim.seed(seed)
        state, _ = self.sim.reset()
        data = self.sim.data
        initial = np.concatenate([data.qpos, data.qvel, data.mocap_pos.ravel(), state])
        return self._observation(state), {"success": False, "initial_state": initial}

    def step(self, action: NDArray[np.float32]) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        state, reward, _, truncated, info = self.sim.step(np.asarray(action, np.float32))
        success = bool(info["success"])
        return self._observation(state), float(reward), success, truncated, {"success": success}

    def _image(self) -> NDArray[np.uint8]:
        return np.ascontiguousarray(self.sim.render()[::-1, ::-1])

    def _observation(self, state: NDArray[np.float64]) -> Observation:
        numbers = state.astype(np.float32)
        return {"agent_pos": numbers[:ROBOT].copy(), "environment_state": np.concatenate([numbers, self._task])}


class MetaWorld(Benchmark):
    """All fifty tasks of Meta-World 3.

    >>> MetaWorld().tasks()[0]
    'assembly-v3'
    """

    name = "metaworld"

    def tasks(self) -> tuple[str, ...]:
        return _listed() or tuple(_classes())

    def make(self, task: str, render: bool = False) -> MetaWorldEnv:
        return MetaWorldEnv(task, render)

    def max_steps(self, task: str) -> int:
        return 200

    def tool_path(self, chunks: Array, observation: Observation) -> tuple[Array, NDArray[np.bool_]]:
        return hand_path(chunks, observation, STEP, gripper=3)
