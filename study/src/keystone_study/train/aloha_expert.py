"""A demonstrator for ALOHA's two arms."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable
from typing import ClassVar

import numpy as np

from keystone_robotics.environments import BENCHMARKS, Observation
from keystone_robotics.environments.aloha import JOINTS, AlohaEnv
from keystone_robotics.environments.benchmark import Array
from keystone_study.train import aloha_arms, aloha_insertion, aloha_transfer
from keystone_study.train.aloha_arms import MOTION, Script
from keystone_study.train.aloha_insertion import InsertionScript
from keystone_study.train.aloha_transfer import TransferScript
from keystone_study.train.demonstration import Demonstration
from keystone_study.train.expert import Expert, attempt_random
from keystone_study.train.imperfection import REGIMES, ImperfectDemonstrator

SCRIPTS: dict[str, Callable[[AlohaEnv, ImperfectDemonstrator], Script]] = {
    "transfer-cube": TransferScript,
    "insertion": InsertionScript,
}


class AlohaExpert(Expert):
    """The two-armed scripts with the errors of `keystone_study.train.imperfection` on the motion of both hands."""

    benchmark = BENCHMARKS["aloha"]
    default_tasks = ("transfer-cube",)
    regimes = tuple(REGIMES)
    relative = tuple(joint for joint in range(JOINTS) if joint % 7 != 6)
    horizon, n_action_steps, width = 50, 25, 256
    packages = ("gym-aloha", "dm-control", "mujoco")
    patience: ClassVar[float] = 1.25  # slow demonstrations may take longer than a policy is given
    tail: ClassVar[int] = 10  # steps after success, in which the arms part, or hold

    def describe(self, regime: str) -> str:
        return f"{REGIMES[regime]} constants={_constants():08x} patience={self.patience} tail={self.tail}"

    def demonstrate(self, task: str, regime: str, seed: int, index: int) -> Demonstration:
        random, state_seed = attempt_random(task, regime, seed, index)
        env = _env(task)
        observation, _ = env.reset(seed=state_seed)
        script = SCRIPTS[task](env, ImperfectDemonstrator(REGIMES[regime], random, MOTION))
        seen: list[Observation] = []
        actions: list[Array] = []
        last = round(self.patience * self.benchmark.max_steps(task))
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


def _constants() -> int:
    """A hash of all waypoints, gains and limits of the scripts."""
    values = {
        f"{module.__name__}.{name}": np.asarray(value).tolist()
        for module in (aloha_arms, aloha_transfer, aloha_insertion)
        for name, value in vars(module).items()
        if name.isupper() and isinstance(value, (int, float, np.ndarray))
    }
    return zlib.crc32(repr(sorted(values.items())).encode())


@functools.lru_cache(maxsize=2)  # making one takes as long as an episode
def _env(task: str) -> AlohaEnv:
    return AlohaEnv(task)
