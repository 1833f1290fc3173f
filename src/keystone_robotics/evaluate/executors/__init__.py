"""Executors roll out shards: in this process (for debugging), in supervised processes of this machine, or on a Ray cluster. The
results are the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from keystone_robotics.errors import KeystoneError
from keystone_robotics.evaluate.config import EvaluationConfig, Shard
from keystone_robotics.evaluate.results import ShardResult

if TYPE_CHECKING:
    from keystone_robotics.evaluate.worker import Worker

#: Deaths of workers after which the episode that they had in common is an error.
TRIES = 3

E = TypeVar("E", bound="Executor")
T = TypeVar("T")


class WorkerFailed(KeystoneError):
    """A worker process died three times, or hung, in `Executor.run_in_worker`.

    Attributes:
        reason: one sentence.
        episode: the number that the worker noted (`Activity`) for what it was doing; None if it noted none.
    """

    def __init__(self, reason: str, episode: int | None = None) -> None:
        super().__init__(reason)
        self.reason, self.episode = reason, episode

    def __reduce__(self) -> Any:
        return type(self), (self.reason, self.episode)


class Executor(ABC):
    """Rolls out shards. Workers, and the policy that each has loaded, live until the call ends; within ``with executor:`` they
    live until the block ends, so that several evaluations of a policy load it once. Blocks can be nested.
    """

    _blocks = 0

    def __enter__(self: E) -> E:
        self._blocks += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._blocks -= 1
        if not self._blocks:
            self.close()

    @abstractmethod
    def check(self, settings: EvaluationConfig) -> None:
        """Check that policy, tasks and arms fit together, before anything is stored. What is loaded for that is kept.

        Raises:
            KeystoneError: if they do not fit.
        """

    @abstractmethod
    def __call__(self, settings: EvaluationConfig, shards: Sequence[Shard]) -> Iterator[ShardResult]:
        """Yield the result of every shard once, in any order."""

    @abstractmethod
    def run_in_worker(self, settings: EvaluationConfig, function: Callable[[Worker], T]) -> T:
        """Call a function with a worker, where shards are rolled out: on the same machine or one of the same cluster.

        Args:
            settings: of the worker.
            function: a function of a module, or a `functools.partial` of one; it and its result are pickled.

        Raises:
            WorkerFailed: if the worker dies again and again, or hangs.
        """

    @abstractmethod
    def close(self) -> None:
        """End the workers; called when the outermost block ends."""


def make_executor(
    workers: int | None = None,
    ray: str | None = None,
    gpus: float | None = None,
    episode_timeout: float | None = None,
) -> Executor:
    """Who rolls out the shards.

    Args:
        workers: processes; None is one on this machine, and one for each CPU of a Ray cluster. 0 is this process.
        ray: address of a Ray cluster; None is this machine.
        gpus: share of a GPU for each worker on Ray.
        episode_timeout: see `LocalProcesses`.
    """
    least = 0 if ray is None else 1
    if workers is not None and workers < least:
        raise KeystoneError(f"--workers {workers}: expected {least} or more")
    if workers == 0 and episode_timeout is not None:
        raise KeystoneError("--episode-timeout needs a worker process, which can be killed: --workers 1 or more")
    if ray is not None:
        from keystone_robotics.evaluate.executors.cluster import RayCluster

        return RayCluster(ray, workers, gpus or 0.0, episode_timeout)
    if gpus is not None:
        raise KeystoneError(f"--gpus {gpus:g} is for workers on Ray: add --ray, or choose a device with --device")
    if workers == 0:
        from keystone_robotics.evaluate.executors.in_process import InProcess

        return InProcess()
    from keystone_robotics.evaluate.executors.processes import LocalProcesses

    return LocalProcesses(workers or 1, episode_timeout)
