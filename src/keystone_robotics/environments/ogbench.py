"""OGBench: a simulated UR5e arm moves cubes or presses buttons (MuJoCo), with states as observations."""

from __future__ import annotations

import functools
import importlib
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from keystone_robotics.environments.benchmark import Array, Benchmark, Observation
from keystone_robotics.environments.mujoco import MuJoCoEnv, hand_path, importing, simulator_state
from keystone_robotics.errors import KeystoneError, nearest_name

#: Numbers in ``agent_pos``: the hand's position (m), its yaw (rad), how far the gripper is closed (0 to 1).
ROBOT = 5
ACTION = 5  #: numbers in an action
STEP = 0.05  #: metres that an action of 1 moves the hand's target
TASKS = 5  #: tasks of each scene
CENTRE, SCALE = (0.425, 0.0, 0.0), 10.0  #: of positions in OGBench's observations
FRAME = 256  #: pixels of a rendered image, in both directions


@dataclass(frozen=True)
class Scene:
    """One scene of OGBench with its five tasks.

    Attributes:
        module: of its class.
        name: of its class.
        options: of the class.
        max_steps: OGBench's own limit.
    """

    module: str
    name: str
    options: dict[str, Any]
    max_steps: int


#: The order of cubes is not permuted: with it the goal would not follow from the task.
SCENES: dict[str, Scene] = {
    "cube-single": Scene("cube_env", "CubeEnv", {"env_type": "single", "permute_blocks": False}, 200),
    "cube-double": Scene("cube_env", "CubeEnv", {"env_type": "double", "permute_blocks": False}, 500),
    "puzzle-3x3": Scene("puzzle_env", "PuzzleEnv", {"env_type": "3x3"}, 500),
}


@functools.cache
def _simulator(scene: str) -> Any:
    """The class of a scene, whose resets follow from their seed alone."""
    with importing("OGBench", '"ogbench>=1.2.2" "mujoco<3.9"'):
        module = importlib.import_module(f"ogbench.manipspace.envs.{SCENES[scene].module}")
    original: Any = getattr(module, SCENES[scene].name)

    class Seeded(original):  # type: ignore[misc]
        """OGBench's reset executes a few random actions, which it draws from a new, unseeded space each time."""

        @property
        def action_space(self) -> gymnasium.spaces.Box:
            return gymnasium.spaces.Box(-1.0, 1.0, (ACTION,), np.float32, seed=int(self.np_random.integers(2**31)))

    return Seeded


class OGBenchEnv(MuJoCoEnv):
    """One task of one scene. Actions are (5,), each in [-1, 1]: the hand moves in x, y, z and turns, the gripper closes.

    Observations are ``agent_pos`` (5,), proprioception, and ``environment_state``: OGBench's own observation, then the goal
    (of each cube its position in the same units, of each button its state). Success is OGBench's own: all cubes within 4 cm
    of their goals, all buttons in their states.

    >>> env = OGBenchEnv("cube-single-task1")
    >>> observation, info = env.reset(seed=0)
    >>> observation["environment_state"].shape
    (31,)
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012 (gymnasium's own form)

    def __init__(self, task: str, render: bool = False) -> None:
        scene, number = split_task(task)
        self.render_mode = "rgb_array" if render else None
        self.sim: Any = _simulator(scene)(**SCENES[scene].options, width=FRAME, height=FRAME)
        self._number = number
        info = self.sim.task_infos[number - 1]
        if "goal_xyzs" in info:
            self.goal: Array = ((info["goal_xyzs"] - np.array(CENTRE)) * SCALE).ravel().astype(np.float32)
        else:
            self.goal = info["goal_button_states"].astype(np.float32)
        size = len(self.sim_reset(seed=0)[0]) + len(self.goal)
        self._set_spaces(gymnasium.spaces.Box(-1.0, 1.0, (ACTION,), np.float32), ROBOT, size)

    def sim_reset(self, seed: int | None) -> tuple[NDArray[np.float64], dict[str, Any]]:
        """OGBench's observation and info after a reset to this task."""
        state, info = self.sim.reset(seed=seed, options={"task_id": self._number})
        return state, info

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        state, info = self.sim_reset(seed)
        self.info = info
        return self._observation(state), {"success": False, "initial_state": self._physics()}

    def step(self, action: NDArray[np.float32]) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        clipped = np.clip(np.asarray(action, np.float64), -1.0, 1.0)
        state, reward, _, truncated, info = self.sim.step(clipped)
        self.info = info
        success = bool(info["success"])
        return self._observation(state), float(reward), success, bool(truncated), {"success": success}

    def _image(self) -> NDArray[np.uint8]:
        return self.sim.render()  # type: ignore[no-any-return]

    def _observation(self, state: NDArray[np.float64]) -> Observation:
        info = self.info
        robot = [info["proprio/effector_pos"], info["proprio/effector_yaw"], info["proprio/gripper_opening"]]
        return {
            "agent_pos": np.concatenate(robot).astype(np.float32),
            "environment_state": np.concatenate([state.astype(np.float32), self.goal]),
        }

    def _physics(self) -> NDArray[np.float64]:
        """Everything that an episode follows from, buttons' states and the goal included."""
        state = simulator_state(self.sim.model, self.sim.data)
        return np.concatenate([state, self.info.get("button_states", np.empty(0)), self.goal])


def split_task(task: str) -> tuple[str, int]:
    """Scene and number of a task.

    >>> split_task("cube-single-task3")
    ('cube-single', 3)
    """
    known = OGBench().tasks()
    if task not in known:
        raise KeystoneError(f"OGBench has no task {task!r}: {nearest_name(task, known)}")
    scene, _, number = task.rpartition("-task")
    return scene, int(number)


class OGBench(Benchmark):
    """The five tasks of each scene. A policy for several tasks needs them to be of one scene: observations differ in size.

    >>> OGBench().tasks()[0]
    'cube-single-task1'
    """

    name = "ogbench"

    def tasks(self) -> tuple[str, ...]:
        return tuple(f"{scene}-task{number}" for scene in SCENES for number in range(1, TASKS + 1))

    def make(self, task: str, render: bool = False) -> OGBenchEnv:
        return OGBenchEnv(task, render)

    def max_steps(self, task: str) -> int:
        return SCENES[split_task(task)[0]].max_steps

    def tool_path(self, chunks: Array, observation: Observation) -> tuple[Array, NDArray[np.bool_]]:
        return hand_path(chunks, observation, STEP, gripper=4)
