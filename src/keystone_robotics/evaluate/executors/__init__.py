"""Executors roll out shards: in this process (for debugging), in supervised processes of this machine, or on a Ray cluster. The
results are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from keystone_robotics.errors import KeystoneError
from keystone_robotics.evaluate.config import EvaluationConfig, Shard
from keystone_robotics.evaluate.results import ShardResult

if TYPE_CHECKING:
    from keystone_robotics.evaluate.worker import Worker

#: Yields the result of every shard once, in any order.
Executor = Callable[[EvaluationConfig, Sequence[Shard]], Iterator[ShardResult]]

#: Deaths of workers after which the episode that they had in common is an error.
TRIES = 3


def in_process(
    settings: EvaluationConfig, shards: Sequence[Shard], worker: Worker | None = None
) -> Iterator[ShardResult]:
    """Roll out shards one after the other in this process, with ``worker`` if one was made already."""
    from keystone_robotics.evaluate.worker import Worker

    if not shards:
        return
    worker = worker or Worker(settings)
    try:
        for shard in shards:
            yield worker.run(shard)
    finally:
        worker.close()


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
        return in_process
    from keystone_robotics.evaluate.executors.processes import LocalProcesses

    return LocalProcesses(workers or 1, episode_timeout)
