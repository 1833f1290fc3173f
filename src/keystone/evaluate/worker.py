"""One process's share of an evaluation: the policy is loaded once, and environments are made once per task."""

from __future__ import annotations

import functools
import json
import time
from typing import Any

import gymnasium

from keystone.attach import detach
from keystone.environments import find_benchmark
from keystone.errors import KeystoneError
from keystone.evaluate.arms import Arm
from keystone.evaluate.results import ShardResult
from keystone.evaluate.rollout import Episode, roll_out
from keystone.evaluate.settings import Settings, Shard
from keystone.policies import load_agent


class Worker:
    """Rolls out shards, one after the other."""

    def __init__(self, settings: Settings) -> None:
        import torch

        torch.set_num_threads(1)  # parallel work is a matter of processes; results must not depend on threads
        self.settings = settings
        self.benchmark = find_benchmark(settings.env)
        self.agent = load_agent(settings.policy, settings.device)
        self.agent.fit(self.benchmark)
        self._execute = settings.execute or self.agent.execute
        self._checked: set[Arm] = set()
        self._task = ""
        self._envs: list[gymnasium.Env[Any, Any]] = []

    def run(self, shard: Shard) -> ShardResult:
        """Roll out one shard."""
        begin = time.perf_counter()
        settings = self.settings
        self.agent.execute = shard.arm.execute or self._execute
        handle = shard.arm.attach(self.agent.policy, check=shard.arm not in self._checked)
        try:
            episodes = [
                Episode(
                    number,
                    env,
                    settings.initial_seed(number),
                    functools.partial(settings.noise_seed, shard.repeat, shard.task, number),
                )
                for number, env in zip(shard.episodes, self._environments(shard.task, shard.count), strict=True)
            ]
            limit = settings.max_steps or self.benchmark.max_steps(shard.task)
            results = roll_out(self.agent, handle, episodes, shard.task, limit, keep_rounds=settings.keep_rounds)
        finally:
            detach(self.agent.policy)
        self._checked.add(shard.arm)
        if any(result.error for result in results):
            self.close()  # whatever went wrong may have left them broken
        return ShardResult(shard, tuple(results), time.perf_counter() - begin)

    def close(self) -> None:
        """Let the environments go."""
        for env in self._envs:
            env.close()
        self._envs.clear()

    def _environments(self, task: str, count: int) -> list[gymnasium.Env[Any, Any]]:
        if task != self._task:
            self.close()
            self._task = task
        while len(self._envs) < count:
            self._envs.append(self.benchmark.make(task))
        return self._envs[:count]


_latest: tuple[str, Worker] | None = None


def run_shard(settings: Settings, shard: Shard) -> ShardResult:
    """Roll out a shard in this process, with the worker of the shard before if it was of the same evaluation."""
    global _latest
    key = json.dumps([settings.policy, settings.device, settings.identity()])
    if _latest is None or _latest[0] != key:
        if _latest is not None:
            _latest[1].close()
        _latest = key, Worker(settings)
    return _latest[1].run(shard)


def check(settings: Settings) -> None:
    """Find out now, not in a worker hours later, whether policy, tasks and arms go together.

    Raises:
        KeystoneError: if they do not.
    """
    from keystone.errors import nearest_name

    benchmark = find_benchmark(settings.env)
    known = benchmark.tasks()
    for task in settings.tasks:
        if task not in known:
            raise KeystoneError(f"{settings.env} has no task {task!r}: {nearest_name(task, known)}")
    agent = load_agent(settings.policy, settings.device)
    for task in settings.tasks:
        if agent.tasks and task not in agent.tasks:
            raise KeystoneError(
                f"policy {settings.policy!r} was not trained on {task!r}: {nearest_name(task, agent.tasks)}"
            )
    agent.fit(benchmark)
    for arm in settings.arms:
        agent.execute = arm.execute or settings.execute or agent.execute
        arm.attach(agent.policy, check=False)
        detach(agent.policy)
