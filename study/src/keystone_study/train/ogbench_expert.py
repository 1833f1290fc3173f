"""OGBench's own oracles in its tasks, with human-like errors."""

from __future__ import annotations

import functools
import itertools
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from keystone_robotics.environments import BENCHMARKS, Observation
from keystone_robotics.environments.benchmark import Array
from keystone_robotics.environments.ogbench import OGBenchEnv, split_task
from keystone_study.train.demonstration import Demonstration
from keystone_study.train.expert import Expert, attempt_random
from keystone_study.train.imperfection import REGIMES, ImperfectDemonstrator

MOTION = 4  #: the first dimensions of an action, the hand's motion and turn; what follows is the gripper
MIN_NORM = 0.1  #: least distance (m) that the oracles drive at, so that they do not slow down in front of the object
HELD = 0.5  #: contact of the gripper (0 to 1) above which it holds a cube, as the oracle has it
PLACED = 0.02  #: distance (m) at which the oracle takes a cube for placed
ABOVE = 0.16  #: height (m) at which the hand is out of the way
PARKING = np.array([0.5, 0.0, 0.02])  #: where a cube goes that is in the way of another one


class Script(Protocol):
    """An oracle that goes through the parts of a task: one cube or one button after the other."""

    def action(self, info: dict[str, Any], aiming_error: float) -> NDArray[np.float64]:
        """(5,) for OGBench's ``info``, if the object seems to be ``aiming_error`` (m) farther along x than it is."""


class CubeScript:
    """Cubes one after the other, the lowest goals first; if they are in each other's way, one is parked."""

    def __init__(self, env: OGBenchEnv) -> None:
        from ogbench.manipspace.oracles.markov.cube_markov import CubeMarkovOracle

        self._oracle = CubeMarkovOracle(env=env.sim, min_norm=MIN_NORM)
        _reset(self._oracle)
        self._goals = env.sim.cur_task_info["goal_xyzs"]
        self._target: tuple[int, NDArray[np.float64]] | None = None

    def action(self, info: dict[str, Any], aiming_error: float) -> NDArray[np.float64]:
        cube, goal = self._target = self._next(info)
        held = bool(info["proprio/gripper_contact"][0] > HELD)
        believed = info[f"privileged/block_{cube}_pos"] + np.array([0.0 if held else aiming_error, 0.0, 0.0])
        seen = {
            **info,
            f"privileged/block_{cube}_pos": believed,
            "privileged/target_block": cube,
            "privileged/target_block_pos": goal,
            "privileged/target_block_yaw": np.zeros(1),
        }
        action: NDArray[np.float64] = self._oracle.select_action(None, seen)
        return action

    def _next(self, info: dict[str, Any]) -> tuple[int, NDArray[np.float64]]:
        """The cube to be moved and where to: the same until it is placed and the hand is out of its way."""
        places = [info[f"privileged/block_{cube}_pos"] for cube in range(len(self._goals))]
        if self._target is not None:
            cube, goal = self._target
            away = info["proprio/effector_pos"][2] > ABOVE and info["proprio/gripper_contact"][0] < HELD
            if not (away and _near(places[cube], goal)):
                return self._target
        order = np.argsort(self._goals[:, 2], kind="stable")
        left = [cube for cube in order if not _near(places[cube], self._goals[cube])]
        for cube in left:
            others = [place for other, place in enumerate(places) if other != cube and other in left]
            if not any(np.linalg.norm(place[:2] - self._goals[cube][:2]) < 2.5 * PLACED for place in others):
                return int(cube), self._goals[cube]
        return (int(left[0]), PARKING) if left else (int(order[-1]), self._goals[order[-1]])


class ButtonScript:
    """Presses what is left of the solution of "Lights Out", the nearest button first."""

    def __init__(self, env: OGBenchEnv) -> None:
        from ogbench.manipspace.oracles.markov.button_markov import ButtonMarkovOracle

        self._oracle = ButtonMarkovOracle(env=env.sim, min_norm=MIN_NORM, gripper_always_closed=True)
        _reset(self._oracle)
        self._sim = env.sim
        self._rows, self._columns = env.sim._num_rows, env.sim._num_cols
        self._goal = env.sim.cur_task_info["goal_button_states"]
        self._target: tuple[int, int] | None = None

    def action(self, info: dict[str, Any], aiming_error: float) -> NDArray[np.float64]:
        button, state = self._target = self._next(info)
        seen = {
            **info,
            "privileged/target_button": button,
            "privileged/target_button_state": state,
            "privileged/target_button_top_pos": self._top(button) + np.array([aiming_error, 0.0, 0.0]),
        }
        action: NDArray[np.float64] = self._oracle.select_action(None, seen)
        return action

    def _top(self, button: int) -> NDArray[np.float64]:
        place: NDArray[np.float64] = self._sim.data.site_xpos[self._sim._button_site_ids[button]]
        return place

    def _next(self, info: dict[str, Any]) -> tuple[int, int]:
        """The button to press and the state it then has: the same until it is pressed and the hand is out of its way."""
        states = info["button_states"]
        hand = info["proprio/effector_pos"]
        if self._target is not None and not (states[self._target[0]] == self._target[1] and hand[2] > ABOVE):
            return self._target
        left = presses(tuple(states != self._goal), self._rows, self._columns)
        if not left:
            return self._target or (0, int(states[0]))
        button = min(left, key=lambda one: float(np.linalg.norm(self._top(one)[:2] - hand[:2])))
        return button, 1 - int(states[button])


@functools.cache
def presses(wrong: tuple[bool, ...], rows: int, columns: int) -> tuple[int, ...]:
    """The fewest buttons that change exactly the ``wrong`` ones; each changes itself and its neighbours.

    >>> presses((True, True, False, True, False, False, False, False, False), 3, 3)
    (0,)
    """
    count = rows * columns
    changed = np.zeros((count, count), bool)
    for one, other in itertools.product(range(count), repeat=2):
        changed[one, other] = abs(one // columns - other // columns) + abs(one % columns - other % columns) <= 1
    for number in range(count + 1):
        for buttons in itertools.combinations(range(count), number):
            if (changed[list(buttons)].sum(0) % 2 == wrong).all():
                return buttons
    raise ValueError(f"no buttons of {rows} x {columns} change {wrong}")


class OGBenchExpert(Expert):
    """The oracles that OGBench collects its datasets with, and the errors of `keystone_study.train.imperfection`."""

    benchmark = BENCHMARKS["ogbench"]
    default_tasks = tuple(f"cube-single-task{number}" for number in range(1, 6))
    regimes = tuple(REGIMES)
    motion = tuple(range(MOTION))
    packages = ("ogbench", "mujoco")
    patience: ClassVar[float] = 1.5  # slow demonstrations may take longer than a policy is given
    tail: ClassVar[int] = 4  # steps after success: a policy that is a little short of it goes on

    def describe(self, regime: str) -> str:
        return f"{REGIMES[regime]} min_norm={MIN_NORM} patience={self.patience} tail={self.tail}"

    def demonstrate(self, task: str, regime: str, seed: int, index: int) -> Demonstration:
        random, state_seed = attempt_random(task, regime, seed, index)
        env, demonstrator = _env(task), ImperfectDemonstrator(REGIMES[regime], random, MOTION)
        observation, _ = env.reset(seed=state_seed)
        script: Script = CubeScript(env) if split_task(task)[0].startswith("cube") else ButtonScript(env)
        seen: list[Observation] = []
        actions: list[Array] = []
        last = round(self.patience * self.benchmark.max_steps(task))
        success = False
        while len(actions) < last:
            action = demonstrator.move(script.action(env.info, demonstrator.aiming_error()))
            seen.append(observation)
            actions.append(action)
            observation, _, done, _, _ = env.step(action)
            if done and not success:
                success, last = True, min(last, len(actions) + self.tail)
        return Demonstration(
            agent_pos=np.stack([one["agent_pos"] for one in seen]),
            environment_state=np.stack([one["environment_state"] for one in seen]),
            actions=np.stack(actions),
            success=success,
        )


def _near(place: NDArray[np.float64], goal: NDArray[np.float64]) -> bool:
    return bool(np.linalg.norm(place - goal) <= PLACED)


def _reset(oracle: Any) -> None:
    """An oracle draws where the hand goes in the end from numpy's global generator; that must not depend on what ran before."""
    state = np.random.get_state()
    np.random.seed(0)
    oracle.reset(None, None)
    np.random.set_state(state)


@functools.lru_cache(maxsize=1)  # making one takes as long as several episodes
def _env(task: str) -> OGBenchEnv:
    return OGBenchEnv(task)
