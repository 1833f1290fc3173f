"""One process's share of an evaluation: the policy is loaded once, and environments are made once per task."""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import logging
import socket
import time
import traceback
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import gymnasium
import torch

from keystone_robotics.attach import attach, detach
from keystone_robotics.environments import Benchmark, find_benchmark
from keystone_robotics.errors import KeystoneError, nearest_name
from keystone_robotics.evaluate.config import EvaluationConfig, Shard
from keystone_robotics.evaluate.results import EpisodeResult, ShardResult, given_up
from keystone_robotics.evaluate.rollout import Episode, roll_out
from keystone_robotics.named import is_reference
from keystone_robotics.policies import Agent, load_agent
from keystone_robotics.policies.fingerprint import fingerprint_policy
from keystone_robotics.policies.load import check_device, trained_for, trained_on
from keystone_robotics.spec import Spec

log = logging.getLogger("keystone")


class Worker:
    """Rolls out shards, one after the other."""

    def __init__(self, settings: EvaluationConfig) -> None:
        self.settings = settings
        self.benchmark = find_benchmark(settings.env)
        self.agent = _load(settings, self.benchmark)
        self._execute = settings.execute or self.agent.execute
        self._task = ""
        self._envs: list[gymnasium.Env[Any, Any]] = []

    def run(self, shard: Shard) -> ShardResult:
        """Roll out one shard. What goes wrong with it, other than with the set-up, is the result of its episodes.

        Raises:
            KeystoneError: if the set-up is wrong, so that the same would happen to every shard.
            ImportError: if a package is missing, which is the same.
        """
        torch.set_num_threads(1)  # parallel work is a matter of processes; results must not depend on threads
        begin = time.perf_counter()
        try:
            results = self._roll_out(shard)
        except (KeystoneError, ImportError):
            raise
        except Exception as error:
            self.close()
            reason = "".join(traceback.format_exception(error))
            return given_up(self.settings, shard, reason, time.perf_counter() - begin)
        if any(result.error for result in results):
            self.close()  # whatever went wrong may have left them broken
        return ShardResult(shard, tuple(results), time.perf_counter() - begin)

    def check_arms(self) -> None:
        """Attach every arm once.

        Raises:
            KeystoneError: if one of them does not go with the policy.
        """
        for arm in self.settings.arms:
            self._attach(arm, check=False)
            detach(self.agent.policy)

    def close(self) -> None:
        """Let the environments go; one that cannot be closed keeps nobody from going on."""
        for env in self._envs:
            try:
                env.close()
            except Exception as error:  # noqa: PERF203 (each of them must be tried)
                log.warning("an environment of %s could not be closed: %r", self._task, error)
        self._envs.clear()

    def _attach(self, arm: Spec, check: bool) -> Any:
        self.agent.execute = arm.execute or self._execute
        return attach(self.agent.policy, arm, check=check)

    def _roll_out(self, shard: Shard) -> list[EpisodeResult]:
        settings = self.settings
        # Every shard is checked: which path its candidates are drawn on, fast or plain, then follows from the shard alone, not
        # from what its worker did before.
        handle = self._attach(shard.arm, check=True)
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
        return results

    def _environments(self, task: str, count: int) -> list[gymnasium.Env[Any, Any]]:
        if task != self._task:
            self.close()
            self._task = task
        while len(self._envs) < count:
            self._envs.append(self.benchmark.make(task))
        return self._envs[:count]


def _load(settings: EvaluationConfig, benchmark: Benchmark) -> Agent:
    """The policy, ready for the benchmark's environments, after making sure that it is the one that is meant."""
    with _as_set_up(f"policy {settings.policy!r} cannot be loaded"):
        agent = load_agent(settings.policy, settings.device)
    if settings.fingerprint is not None and settings.fingerprint != fingerprint_policy(settings.policy):
        raise KeystoneError(
            f"policy {settings.policy!r} on {socket.gethostname()} is not the one that this evaluation was begun with: "
            "its files differ"
        )
    with _as_set_up(f"policy {settings.policy!r} cannot be tried in {settings.env}"):
        agent.fit(benchmark)
    return agent


@contextlib.contextmanager
def _as_set_up(problem: str) -> Iterator[None]:
    """What would happen to every shard is said once, in a line; missing packages have a line of their own."""
    try:
        yield
    except (KeystoneError, ImportError):
        raise
    except Exception as error:
        raise KeystoneError(f"{problem}: {type(error).__name__}: {error}") from error


_latest: tuple[str, Worker] | None = None


def start(settings: EvaluationConfig) -> Worker:
    """The worker of this process: that of the shard before, if it was of the same evaluation, else a new one."""
    global _latest
    key = json.dumps([settings.policy, settings.fingerprint, settings.identity()])
    if _latest is None or _latest[0] != key:
        if _latest is not None:
            _latest[1].close()
        _latest = key, Worker(settings)
    return _latest[1]


def run_shard(settings: EvaluationConfig, shard: Shard) -> ShardResult:
    """Roll out a shard in this process."""
    return start(settings).run(shard)


def checked_worker(settings: EvaluationConfig) -> Worker:
    """A worker, after finding out now, not hours later, whether policy, tasks and arms go together.

    Raises:
        KeystoneError: if they do not.
    """
    known, home = find_benchmark(settings.env).tasks(), trained_for(settings.policy)
    for task in settings.tasks:
        strange = (task in known) != (task in trained_on(settings.policy))
        if home not in (None, settings.env) and strange and not settings.allow_untrained_tasks:
            raise KeystoneError(
                f"policy {settings.policy!r} was trained for {home} and its tasks, not for {settings.env}: --env {home}"
            )
        if task not in known:
            raise KeystoneError(f"{settings.env} has no task {task!r}: {nearest_name(task, known)}")
    worker = Worker(settings)
    for task in settings.tasks:
        if worker.agent.tasks and task not in worker.agent.tasks and not settings.allow_untrained_tasks:
            raise KeystoneError(
                f"policy {settings.policy!r} was not trained on {task!r} (--allow-untrained-tasks runs it nevertheless): "
                f"{nearest_name(task, worker.agent.tasks)}"
            )
    worker.check_arms()
    return worker


def check_for_others(settings: EvaluationConfig) -> None:
    """The same where other processes do the work: the policy is loaded on the CPU where one can choose, and not kept.

    Raises:
        KeystoneError: if policy, tasks and arms do not go together.
    """
    if settings.device is not None:
        check_device(settings.device)
    # A function of the user's own may know no device.
    checked_worker(settings if is_reference(settings.policy) else replace(settings, device="cpu"))
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
