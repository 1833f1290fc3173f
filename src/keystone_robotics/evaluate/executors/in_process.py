"""Executor in this process. A worker process is one of these, too."""

from __future__ import annotations

import gc
import json
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from keystone_robotics.errors import KeystoneError
from keystone_robotics.evaluate.config import EvaluationConfig, Shard
from keystone_robotics.evaluate.executors import Executor, T
from keystone_robotics.evaluate.results import ShardResult
from keystone_robotics.evaluate.worker import Worker, checked_worker
from keystone_robotics.policies.fingerprint import checkpoint_fingerprint


@dataclass(frozen=True)
class _Loaded:
    """A worker, for which evaluation, and the fingerprint of its policy's files when it was loaded."""

    identity: str
    fingerprint: str
    worker: Worker


class InProcess(Executor):
    """Rolls out shards one after the other in this process: for debugging, and where a crash may end it."""

    def __init__(self) -> None:
        self._loaded: _Loaded | None = None

    def check(self, settings: EvaluationConfig) -> None:
        with self:
            checked_worker(settings, self.worker)

    def __call__(self, settings: EvaluationConfig, shards: Sequence[Shard]) -> Iterator[ShardResult]:
        with self:
            for shard in shards:
                yield self.worker(settings).run(shard)

    def run_in_worker(self, settings: EvaluationConfig, function: Callable[[Worker], T]) -> T:
        with self:
            return function(self.worker(settings))

    def worker(self, settings: EvaluationConfig) -> Worker:
        """The worker of the previous call if policy and evaluation are the same, else a new one.

        Raises:
            KeystoneError: if the policy's files are not those that the evaluation was started with.
        """
        identity = json.dumps([settings.policy, settings.identity()])
        wanted = settings.fingerprint
        if self._loaded is None or self._loaded.identity != identity or wanted not in (None, self._loaded.fingerprint):
            self.close()  # before the next policy is loaded: both may not fit into memory
            worker = Worker(settings)
            self._loaded = _Loaded(identity, checkpoint_fingerprint(settings.policy), worker)
        if wanted not in (None, self._loaded.fingerprint):
            raise KeystoneError(
                f"policy {settings.policy!r} on {socket.gethostname()} differs from the one this evaluation was started with: "
                "its files have another hash"
            )
        self._loaded.worker.settings = settings  # what is not in the identity (latency, arms) may have changed
        return self._loaded.worker

    def close(self) -> None:
        if self._loaded is None:
            return
        self._loaded.worker.close()
        self._loaded = None
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
