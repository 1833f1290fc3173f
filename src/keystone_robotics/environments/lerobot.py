"""LeRobot's environments (LIBERO, Meta-World, PushT, ALOHA, …), made by LeRobot's own factory, one at a time."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import io
import random
import typing
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qsl

import gymnasium
import numpy as np
from numpy.typing import NDArray

from keystone_robotics.environments.benchmark import Array, Benchmark, Observation
from keystone_robotics.errors import KeystoneError, nearest_name

LEROBOT = "lerobot:"  #: prefix of these benchmarks' names
INSTRUCTION = "task"  #: key of the language instruction in an observation


class LeRobotEnv(gymnasium.Wrapper[Observation, Array, Any, Any]):
    """A LeRobot environment, taken out of its vector environment, which would reset it automatically.

    Observations are LeRobot's plus the instruction under "task". Actions are unbounded, as in LeRobot's own evaluation: some
    environments declare bounds of 1 but take joint angles.

    Args:
        vector: a vector environment of size one from LeRobot's factory.
    """

    def __init__(self, vector: Any) -> None:
        super().__init__(_single(vector))
        self._vector = vector  # it closes the environment when it is garbage-collected
        shape = self.env.action_space.shape
        self.action_space = gymnasium.spaces.Box(-np.inf, np.inf, shape, np.float32)

    @property
    def instruction(self) -> str:
        """The language instruction, "" if there is none; some environments know it only after a reset."""
        for name in ("task_description", "task"):
            if self.env.has_wrapper_attr(name):
                return str(self.env.get_wrapper_attr(name))
        return ""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        from lerobot.envs.utils import NEW_ROLLOUT_OPTION

        if seed is not None:
            choose_initial_state(self.env.unwrapped, seed)
        with _global_generators(seed):
            observation, info = self.env.reset(seed=seed, options={**(options or {}), NEW_ROLLOUT_OPTION: True})
        named = self._instructed(observation)
        # Pixels differ between graphics drivers although the state is the same.
        numbers = {name: value for name, value in named.items() if name != "pixels"}
        info = {"initial_state": numbers if len(numbers) > 1 else named, **info}
        return named, _with_success(info)

    def step(self, action: Array) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        with _no_reset(self.env.unwrapped):
            observation, reward, terminated, truncated, info = self.env.step(np.asarray(action))
        return self._instructed(observation), float(reward), bool(terminated), bool(truncated), _with_success(info)

    def render(self) -> NDArray[np.uint8]:
        """(height, width, 3) the image that LeRobot records."""
        return np.ascontiguousarray(self.env.render(), np.uint8)

    def close(self) -> None:
        self.env.close()
        self._vector.close()

    def _instructed(self, observation: Any) -> Observation:
        if not isinstance(observation, dict):
            raise KeystoneError(
                f"{self.env.unwrapped} returns observations without keys: choose another obs_type, such as pixels_agent_pos"
            )
        return {**observation, INSTRUCTION: self.instruction}


class LeRobotBenchmark(Benchmark):
    """A LeRobot environment type, with the options of LeRobot's ``--env.…``.

    Tasks are named as in the results of `lerobot-eval`: ``libero_10/3``, ``pusht/0``.

    Args:
        name: ``lerobot:TYPE`` or ``lerobot:TYPE?option=value&…``, such as ``lerobot:libero?task=libero_10``.

    Attributes:
        config: LeRobot's EnvConfig.
    """

    def __init__(self, name: str) -> None:
        self.name = name  # with its options: other options are another benchmark
        kind, _, query = name.removeprefix(LEROBOT).partition("?")
        given = dict(parse_qsl(query, keep_blank_values=True))
        self.config = _make_config(kind, given)
        self._steps_given = "episode_length" in given

    def tasks(self) -> tuple[str, ...]:
        return tuple(self._table)

    def make(self, task: str, render: bool = False) -> LeRobotEnv:
        """One environment; LeRobot's always render."""
        suite, number, _ = self._find(task)
        config = copy.deepcopy(self.config)
        if hasattr(config, "task_ids"):  # not the whole suite
            config.task, config.task_ids = suite, [number]
        suites = _make_all(self.name, config)
        chosen = suites[suite].pop(number)
        _close(suites)
        return LeRobotEnv(chosen)

    def max_steps(self, task: str) -> int:
        steps = self.config.episode_length if self._steps_given else self._find(task)[2]
        if steps is None:
            raise KeystoneError(f"{self.name} has no maximum number of steps for {task}: give --max-steps")
        return int(steps)

    def _find(self, task: str) -> tuple[str, int, int | None]:
        if task not in self._table:
            raise KeystoneError(f"{self.name} has no task {task!r}: {nearest_name(task, self._table)}")
        return self._table[task]

    @functools.cached_property
    def _table(self) -> dict[str, tuple[str, int, int | None]]:
        """Suite, number in the suite and maximum number of steps of each task."""
        suites = _make_all(self.name, self.config)
        table = {}
        for suite, members in suites.items():
            for number, vector in members.items():
                table[f"{suite}/{number}"] = (suite, number, self._steps(_single(vector)))
        _close(suites)
        return table

    def _steps(self, env: gymnasium.Env[Any, Any]) -> int | None:
        """The limit of LeRobot's evaluation: the environment's, which may differ from the configuration's (Meta-World)."""
        if env.has_wrapper_attr("_max_episode_steps"):
            return int(env.get_wrapper_attr("_max_episode_steps"))
        return getattr(self.config, "episode_length", None)


def choose_initial_state(env: Any, seed: int) -> None:
    """Make the seed determine the initial state in environments that count resets instead.

    LIBERO takes the next of its stored states at every reset, RoboMME always the same episode: seed n is state n, modulo the
    number of states.
    """
    if hasattr(env, "init_state_id"):
        env.init_state_id = seed
    elif hasattr(env, "_episode_idx") and hasattr(env, "_builder"):
        env._episode_idx = seed % env._builder.get_episode_num()


def _with_success(info: dict[str, Any]) -> dict[str, Any]:
    """Adds ``success`` from LeRobot's ``is_success``, which is a bool, a number or an array of one."""
    return {**info, "success": bool(np.any(info.get("is_success", False)))}


@contextlib.contextmanager
def _global_generators(seed: int | None) -> Iterator[None]:
    """Seed NumPy's and Python's global generators, which some scenes use, and restore them afterwards."""
    if seed is None:
        yield
        return
    states = np.random.get_state(), random.getstate()
    np.random.seed(seed)
    random.seed(seed)
    try:
        yield
    finally:
        np.random.set_state(states[0])
        random.setstate(states[1])


@contextlib.contextmanager
def _no_reset(env: Any) -> Iterator[None]:
    """Keep an environment from resetting itself in its last step, as some do: slow, and the end cannot be rendered."""
    vars(env)["reset"] = lambda *args, **kwargs: None
    try:
        yield
    finally:
        del vars(env)["reset"]


def _single(vector: Any) -> gymnasium.Env[Any, Any]:
    """The environment in a vector environment of one."""
    envs = getattr(vector, "envs", None) or [make() for make in getattr(vector, "_env_fns", [])[:1]]
    if not envs:
        raise KeystoneError(
            f"{type(vector).__name__} runs its environments in other processes: use_async_envs is not supported"
        )
    env: gymnasium.Env[Any, Any] = envs[0]
    return env


def _close(suites: dict[str, dict[int, Any]]) -> None:
    for members in suites.values():
        for vector in members.values():
            vector.close()


def _make_all(name: str, config: Any) -> dict[str, dict[int, Any]]:
    """A vector environment of one for every task of every suite."""
    from lerobot.envs.factory import make_env

    try:
        with contextlib.redirect_stdout(io.StringIO()):  # LeRobot prints a line for each
            suites: dict[str, dict[int, Any]] = make_env(config, n_envs=1, use_async_envs=False)
    except ImportError as error:
        raise KeystoneError(
            f'{name} needs a package that is not installed ({error}): pip install "lerobot[{config.type}]", or as LeRobot\'s '
            "documentation of this benchmark says"
        ) from error
    except Exception as error:
        raise KeystoneError(
            f"LeRobot cannot make {name} with task {config.task!r} ({type(error).__name__}: {error}): choose another task with "
            f"{LEROBOT}{config.type}?task=…"
        ) from error
    return suites


def _make_config(kind: str, given: dict[str, str]) -> Any:
    """LeRobot's configuration of an environment type, with options from text."""
    try:
        from lerobot.envs.configs import EnvConfig
        from lerobot.envs.factory import make_env_config
    except ImportError as error:
        raise KeystoneError(
            f'LeRobot is needed for {LEROBOT}{kind} ({error}): pip install "keystone-robotics[lerobot]"'
        ) from error
    kinds = EnvConfig.get_known_choices()
    if kind not in kinds:
        raise KeystoneError(f"LeRobot has no environment type {kind!r}: {nearest_name(kind, kinds)}")
    types = typing.get_type_hints(kinds[kind])
    fields = {field.name for field in dataclasses.fields(kinds[kind])} - {"features", "features_map"}
    for option in given:
        if option not in fields:
            raise KeystoneError(f"{LEROBOT}{kind} has no option {option!r}: {nearest_name(option, fields)}")
    try:
        return make_env_config(kind, **{option: _decode(types[option], text) for option, text in given.items()})
    except Exception as error:
        raise KeystoneError(f"{LEROBOT}{kind} with {given}: {error}") from error


def _decode(kind: Any, text: str) -> Any:
    """Parse an option's value as LeRobot's command line does."""
    from draccus.cfgparsing import parse_string
    from draccus.parsers.decoding import decode

    return decode(kind, text if str in (kind, *typing.get_args(kind)) else parse_string(text))
