"""A worker process: loads the policy once, attaches each arm once, and makes the environments of a task once."""

from __future__ import annotations

import contextlib
import functools
import logging
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gymnasium
import torch

from keystone_robotics.attachment import attach, detach, reattach
from keystone_robotics.environments import Benchmark, find_benchmark
from keystone_robotics.errors import KeystoneError, nearest_name
from keystone_robotics.evaluate.activity import Activity, Doing
from keystone_robotics.evaluate.config import EvaluationConfig, Shard
from keystone_robotics.evaluate.results import ShardResult, failed_episodes
from keystone_robotics.evaluate.rollout import EPISODE_ERRORS, LiveEpisode, roll_out
from keystone_robotics.handle import Handle
from keystone_robotics.policies import Agent, load_agent
from keystone_robotics.policies.load import check_tasks
from keystone_robotics.records import EpisodeRecord
from keystone_robotics.sample.weights import weights_fingerprint
from keystone_robotics.spec import Spec

log = logging.getLogger("keystone")


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Torch computes on one thread: work is parallel over processes, and results must not depend on the number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Worker:
    """Rolls out shards, one after the other.

    Attributes:
        activity: is told what it is doing.
        execute: steps of a chunk that an arm executes unless it says otherwise.
    """

    def __init__(self, settings: EvaluationConfig) -> None:
        self.settings = settings
        self.activity = Activity()
        with _as_setup_error(f"environment {settings.env!r} cannot be found"):
            self.benchmark = find_benchmark(settings.env, settings.max_steps)
        self.agent = _load(settings, self.benchmark)
        self.execute = settings.execute or self.agent.execute
        self._task = ""
        self._envs: list[gymnasium.Env[Any, Any]] = []
        self._handles: dict[str, Handle] = {}  # by arm
        self._weights = ""

    def run(self, shard: Shard, numbers: Sequence[int] | None = None) -> ShardResult:
        """Roll out one shard, or these of its episodes. Errors of the shard itself become errors of its episodes.

        Raises:
            KeystoneError: if the setup is wrong, so that every shard would fail.
            ImportError: if a package is missing, likewise.
        """
        begin = time.perf_counter()
        numbers = shard.episodes if numbers is None else numbers
        self.activity.begin_shard()
        with one_thread(), self.activity.doing(Doing.PREPARING):
            try:
                results = tuple(self._roll_out(shard, numbers))
            except (KeystoneError, ImportError):
                raise
            except EPISODE_ERRORS as error:
                results = failed_episodes(self.settings, shard, numbers, "".join(traceback.format_exception(error)))
            if any(result.error for result in results):
                self.close()  # the error may have left the environments in a broken state
        return ShardResult(shard, results, time.perf_counter() - begin, self._weights)

    def check_arms(self) -> None:
        """Attach every arm once, without a round.

        Raises:
            KeystoneError: if an arm cannot be attached to the policy.
        """
        for arm in self.settings.arms:
            with self.attached(arm):
                pass

    def close(self) -> None:
        """Close the environments; one that cannot be closed is only reported."""
        for env in self._envs:
            try:
                env.close()
            except EPISODE_ERRORS as error:  # noqa: PERF203 (the others must be closed too)
                log.warning("an environment of %s could not be closed: %r", self._task, error)
        self._envs.clear()

    @contextlib.contextmanager
    def attached(self, arm: Spec) -> Iterator[Handle]:
        """The policy with an arm attached. Each arm is attached and self-checked once per worker: a handle is used again in
        later shards, with the paths that its self-check found, unless an error interrupted it or a fast path failed.
        """
        self.agent.execute = arm.most_steps or self.execute
        handle = self._handles.pop(str(arm), None)
        if handle is None:
            handle = attach(self.agent.policy, arm)
        else:
            reattach(handle)
        try:
            yield handle
        finally:
            detach(self.agent.policy)
        paths = handle.engine.paths
        if not (paths.refused or paths.failed_once):  # else the path of a shard would depend on the shards before it
            self._handles[str(arm)] = handle

    def _roll_out(self, shard: Shard, numbers: Sequence[int]) -> list[EpisodeRecord]:
        settings = self.settings
        with self.attached(shard.arm) as handle:
            self._weights = self._weights or weights_fingerprint(handle.engine)
            episodes = [
                LiveEpisode(
                    number,
                    env,
                    settings.initial_seed(number),
                    functools.partial(settings.noise_seed, shard.repeat, shard.task, number),
                    str(shard.arm),
                    shard.repeat,
                )
                for number, env in zip(numbers, self._environments(shard.task, len(numbers)), strict=True)
            ]
            max_steps = settings.max_steps or self.benchmark.max_steps(shard.task)
            return roll_out(
                self.agent,
                handle,
                episodes,
                shard.task,
                max_steps,
                keep_rounds=settings.keep_rounds,
                latency=settings.latency,
                activity=self.activity,
            )

    def _environments(self, task: str, count: int) -> list[gymnasium.Env[Any, Any]]:
        if task != self._task:
            self.close()
            self._task = task
        while len(self._envs) < count:
            with self.activity.doing(Doing.PREPARING):  # the time limit is for one of them
                self._envs.append(self.benchmark.make(task))
        return self._envs[:count]


def _load(settings: EvaluationConfig, benchmark: Benchmark) -> Agent:
    """The policy, prepared for the benchmark."""
    with _as_setup_error(f"policy {settings.policy!r} cannot be loaded"):
        trust = {"trust_remote_code": True} if settings.trust_remote_code else {}
        agent = load_agent(settings.policy, settings.device, **trust)
    with _as_setup_error(f"policy {settings.policy!r} cannot be used in {settings.env}"):
        agent.fit(benchmark)
    return agent


@contextlib.contextmanager
def _as_setup_error(problem: str) -> Iterator[None]:
    """Errors that every shard would meet become one KeystoneError; missing packages are reported by the command line."""
    try:
        yield
    except (KeystoneError, ImportError):
        raise
    except EPISODE_ERRORS as error:
        raise KeystoneError(f"{problem}: {type(error).__name__}: {error}") from error


def checked_worker(settings: EvaluationConfig, make: Callable[[EvaluationConfig], Worker] = Worker) -> Worker:
    """A worker, after checking that policy, tasks and arms fit together.

    Args:
        settings: of the evaluation.
        make: makes the worker, or finds one.

    Raises:
        KeystoneError: if they do not.
    """
    with _as_setup_error(f"environment {settings.env!r} cannot be found"):
        check_tasks(settings.policy, settings.env, settings.tasks, settings.allow_untrained_tasks)
    worker = make(settings)
    for task in settings.tasks:
        if worker.agent.tasks and task not in worker.agent.tasks and not settings.allow_untrained_tasks:
            raise KeystoneError(
                f"policy {settings.policy!r} was not trained on {task!r} (--allow-untrained-tasks evaluates it anyway): "
                f"{nearest_name(task, worker.agent.tasks)}"
            )
    worker.check_arms()
    return worker
