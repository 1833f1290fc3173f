"""Any environment of gymnasium's registry with Box actions: ``gymnasium:ID?option=value``."""

from __future__ import annotations

import difflib
import functools
import json
from typing import Any
from urllib.parse import parse_qsl

import gymnasium
import numpy as np
from numpy.typing import NDArray

from keystone_robotics.environments.benchmark import Benchmark, Observation
from keystone_robotics.errors import KeystoneError, nearest_name

GYMNASIUM = "gymnasium:"  #: prefix of these benchmarks' names
MIN_RETURN = "min_return"  #: option: an episode has succeeded if the sum of its rewards is at least this
MAX_STEPS = "max_episode_steps"  #: option of ``gymnasium.make``
SUCCESS = ("success", "is_success")  #: keys of an environment's info


class RegisteredEnv(gymnasium.Wrapper[Observation, NDArray[Any], Any, Any]):
    """A registered environment with observations by name and ``info["success"]``.

    A flat observation is named ``agent_pos`` and ``environment_state``, an image ``pixels``; a Dict keeps its names.

    Args:
        env: the environment.
        min_return: success is a return of at least this when the episode ends; None: as the environment's info says.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], min_return: float | None) -> None:
        super().__init__(env)
        self.min_return = min_return
        self._return, self._knows_success = 0.0, False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        self._return, self._knows_success = 0.0, False
        data: Any = getattr(self.env.unwrapped, "data", None)
        if hasattr(data, "qpos") and hasattr(data, "qvel"):  # MuJoCo: observations may leave out part of the state
            info = {"initial_state": np.concatenate([data.qpos, data.qvel]), **info}
        return _named(observation), {**info, "success": False}

    def step(self, action: NDArray[Any]) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """One step of the environment.

        Raises:
            KeystoneError: if the episode ends and nothing says whether it succeeded.
        """
        dtype = self.env.action_space.dtype
        observation, reward, terminated, truncated, info = self.env.step(np.asarray(action, dtype))
        self._return += float(reward)
        over = bool(terminated or truncated)
        success = bool(np.any([info.get(name, False) for name in SUCCESS]))
        self._knows_success |= any(name in info for name in SUCCESS)
        if self.min_return is not None:
            success = over and self._return >= self.min_return
        elif over and not self._knows_success:
            raise KeystoneError(f"{self._id} has no success in its info: give a return, {_suggestion(self.env.spec)}")
        return _named(observation), float(reward), bool(terminated), bool(truncated), {**info, "success": success}

    @property
    def _id(self) -> str:
        return self.env.spec.id if self.env.spec else type(self.env.unwrapped).__name__


class Registered(Benchmark):
    """One environment of gymnasium's registry, as one task.

    Args:
        name: ``gymnasium:ID`` or ``gymnasium:ID?option=value&…``; ``module:ID`` imports the module that registers it. The
            option ``min_return`` is the return of a success; all others go to ``gymnasium.make``, read as JSON where they are.
        max_steps: gymnasium truncates episodes after this many steps, if its own limit is not lower: their return is judged
            when they end.
    """

    def __init__(self, name: str, max_steps: int | None = None) -> None:
        self.name = name
        self.id, _, query = name.removeprefix(GYMNASIUM).partition("?")
        if not self.id:
            raise KeystoneError(f"{name} names no environment: expected {GYMNASIUM}ID or {GYMNASIUM}ID?{MIN_RETURN}=R")
        self.options = {option: _value(text) for option, text in parse_qsl(query, keep_blank_values=True)}
        given = self.options.pop(MIN_RETURN, None)
        if given is not None and (isinstance(given, bool) or not isinstance(given, (int, float))):
            raise KeystoneError(f"{name}: {MIN_RETURN}={given}: expected a number")
        self.min_return = None if given is None else float(given)
        try:
            self.spec = gymnasium.spec(self.id)
        except ModuleNotFoundError as error:
            raise KeystoneError(f"{name}: {error}") from error
        except gymnasium.error.Error as error:
            close = difflib.get_close_matches(self.id, gymnasium.registry, n=5, cutoff=0.5)
            hint = f"did you mean {' or '.join(map(repr, close))}?" if close else str(error)
            raise KeystoneError(f"gymnasium has no environment {self.id!r}: {hint}") from None
        if max_steps is not None:
            own = self.options.get(MAX_STEPS, self.spec.max_episode_steps)
            self.options[MAX_STEPS] = max_steps if own is None else min(max_steps, own)

    def tasks(self) -> tuple[str, ...]:
        """The ID. Makes the environment once, so that one that cannot be used is refused before anything runs."""
        self._check()
        return (self.id,)

    def make(self, task: str, render: bool = False) -> RegisteredEnv:
        if task != self.id:
            raise KeystoneError(f"{self.name} has no task {task!r}: {nearest_name(task, [self.id])}")
        options = {"render_mode": "rgb_array", **self.options} if render else self.options
        try:
            env = gymnasium.make(self.id, **options)
        except Exception as error:  # a wrong option, a missing package: whatever its constructor raises
            raise KeystoneError(f"gymnasium cannot make {self.name} ({type(error).__name__}: {error})") from error
        space = env.action_space
        if not isinstance(space, gymnasium.spaces.Box) or len(space.shape) != 1:
            env.close()
            raise KeystoneError(f"{self.name}: its actions are {space}, expected a flat Box: policies draw numbers")
        return RegisteredEnv(env, self.min_return)

    def max_steps(self, task: str) -> int:
        steps = self.options.get(MAX_STEPS, self.spec.max_episode_steps)
        if steps is None:
            raise KeystoneError(f"{self.name} has no maximum number of steps: give {MAX_STEPS}=500 among its options")
        return int(steps)

    @functools.lru_cache(maxsize=1)  # noqa: B019 (benchmarks live as long as the process)
    def _check(self) -> None:
        self.make(self.id).close()


def _value(text: str) -> Any:
    """A number, true, false, null or JSON; else the text.

    >>> _value("0.5"), _value("true"), _value("state")
    (0.5, True, 'state')
    """
    try:
        return json.loads(text)
    except ValueError:
        return text


def _named(observation: Any) -> Observation:
    if isinstance(observation, dict):
        return observation
    array = np.asarray(observation)
    if array.ndim == 3:
        return {"pixels": array}
    flat = array.astype(np.float32).reshape(-1)
    return {"agent_pos": flat, "environment_state": flat}


def _suggestion(spec: Any) -> str:
    known = getattr(spec, "reward_threshold", None)
    name = getattr(spec, "id", "ID")
    about = " (the threshold that it is registered with)" if known is not None else ""
    return f"{GYMNASIUM}{name}?{MIN_RETURN}={'R' if known is None else format(known, 'g')}{about}"
