"""A worker process: loads the policy once, attaches each arm once, and makes the environments of a task once."""

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

from keystone_robotics.attachment import attach, detach, reattach
from keystone_robotics.environments import Benchmark, find_benchmark
from keystone_robotics.errors import KeystoneError, nearest_name
from keystone_robotics.evaluate.config import EvaluationConfig, Shard
from keystone_robotics.evaluate.results import ShardResult, failed_shard
from keystone_robotics.evaluate.rollout import LiveEpisode, roll_out
from keystone_robotics.handle import Handle
from keystone_robotics.named import is_reference
from keystone_robotics.policies import Agent, load_agent
from keystone_robotics.policies.fingerprint import checkpoint_fingerprint
from keystone_robotics.policies.load import check_device, trained_for, trained_on
from keystone_robotics.records import EpisodeRecord
from keystone_robotics.sample.weights import weights_fingerprint
from keystone_robotics.spec import Spec

log = logging.getLogger("keystone")


class Worker:
    """Rolls out shards, one after the other.

    Attributes:
        execute: steps of a chunk that an arm executes unless it says otherwise.
    """

    def __init__(self, settings: EvaluationConfig) -> None:
        self.settings = settings
        self.benchmark = find_benchmark(settings.env)
        self.agent = _load(settings, self.benchmark)
        self.execute = settings.execute or self.agent.execute
        self._task = ""
        self._envs: list[gymnasium.Env[Any, Any]] = []
        self._handles: dict[str, Handle] = {}  # by arm
        self._weights = ""

    def run(self, shard: Shard) -> ShardResult:
        """Roll out one shard. Errors of the shard itself become errors of its episodes.

        Raises:
            KeystoneError: if the setup is wrong, so that every shard would fail.
            ImportError: if a package is missing, likewise.
        """
        torch.set_num_threads(1)  # work is parallel over processes; results must not depend on threads
        begin = time.perf_counter()
        try:
            results = self._roll_out(shard)
        except (KeystoneError, ImportError):
            raise
        except Exception as error:
            self.close()
            reason = "".join(traceback.format_exception(error))
            return failed_shard(self.settings, shard, reason, time.perf_counter() - begin)
        if any(result.error for result in results):
            self.close()  # the error may have left the environments in a broken state
        return ShardResult(shard, tuple(results), time.perf_counter() - begin, self._weights)

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
            except Exception as error:  # noqa: PERF203 (the others must be closed too)
                log.warning("an environment of %s could not be closed: %r", self._task, error)
        self._envs.clear()

    @contextlib.contextmanager
    def attached(self, arm: Spec) -> Iterator[Handle]:
        """The policy with an arm attached. Each arm is attached and self-checked once per worker: a handle is used again in
        later shards, with the paths that its self-check settled on, unless an error interrupted it or a fast path failed.
        """
        self.agent.execute = arm.execute or self.execute
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

    def _roll_out(self, shard: Shard) -> list[EpisodeRecord]:
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
                for number, env in zip(shard.episodes, self._environments(shard.task, shard.count), strict=True)
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
            )

    def _environments(self, task: str, count: int) -> list[gymnasium.Env[Any, Any]]:
        if task != self._task:
            self.close()
            self._task = task
        while len(self._envs) < count:
            self._envs.append(self.benchmark.make(task))
        return self._envs[:count]


def _load(settings: EvaluationConfig, benchmark: Benchmark) -> Agent:
    """The policy, prepared for the benchmark, after comparing its fingerprint with that of the evaluation."""
    with _as_setup_error(f"policy {settings.policy!r} cannot be loaded"):
        trust = {"trust_remote_code": True} if settings.trust_remote_code else {}
        agent = load_agent(settings.policy, settings.device, **trust)
    if settings.fingerprint is not None and settings.fingerprint != checkpoint_fingerprint(settings.policy):
        raise KeystoneError(
            f"policy {settings.policy!r} on {socket.gethostname()} differs from the one this evaluation was started with: "
            "its files have another hash"
        )
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
    except Exception as error:
        raise KeystoneError(f"{problem}: {type(error).__name__}: {error}") from error


_latest: tuple[str, Worker] | None = None


def start(settings: EvaluationConfig) -> Worker:
    """The worker of this process: the one of the previous shard if the evaluation is the same, else a new one."""
    global _latest
    key = json.dumps([settings.policy, settings.fingerprint, settings.identity()])
    if _latest is None or _latest[0] != key:
        if _latest is not None:
            _latest[1].close()
        _latest = key, Worker(settings)
    _latest[1].settings = settings  # what is not in the key (latency, arms) may have changed
    return _latest[1]


def run_shard(settings: EvaluationConfig, shard: Shard) -> ShardResult:
    """Roll out a shard in this process."""
    return start(settings).run(shard)


def checked_worker(settings: EvaluationConfig) -> Worker:
    """A worker, after checking that policy, tasks and arms fit together.

    Raises:
        KeystoneError: if they do not.
    """
    known, trained_env = find_benchmark(settings.env).tasks(), trained_for(settings.policy)
    for task in settings.tasks:
        mismatch = (task in known) != (task in trained_on(settings.policy))
        if trained_env not in (None, settings.env) and mismatch and not settings.allow_untrained_tasks:
            raise KeystoneError(
                f"policy {settings.policy!r} was trained for {trained_env}, not for {settings.env}: --env {trained_env}"
            )
        if task not in known:
            raise KeystoneError(f"{settings.env} has no task {task!r}: {nearest_name(task, known)}")
    worker = Worker(settings)
    for task in settings.tasks:
        if worker.agent.tasks and task not in worker.agent.tasks and not settings.allow_untrained_tasks:
            raise KeystoneError(
                f"policy {settings.policy!r} was not trained on {task!r} (--allow-untrained-tasks evaluates it anyway): "
                f"{nearest_name(task, worker.agent.tasks)}"
            )
    worker.check_arms()
    return worker


def check_for_workers(settings: EvaluationConfig) -> None:
    """The same check where other processes roll out: the policy is loaded on the CPU if possible, and released.

    Raises:
        KeystoneError: if policy, tasks and arms do not fit together.
    """
    if settings.device is not None:
        check_device(settings.device)
    # A user's own function may not take a device.
    checked_worker(settings if is_reference(settings.policy) else replace(settings, device="cpu"))
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
