"""Executors roll out shards: in this process, in local processes, or on a Ray cluster. The results are the same."""

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

#: Attempts at a shard whose worker dies.
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


def make_executor(workers: int | None = None, ray: str | None = None, gpus: float | None = None) -> Executor:
    """Who rolls out the shards.

    Args:
        workers: None is one on this machine, and one for each CPU of a Ray cluster.
        ray: address of a Ray cluster; None is this machine.
        gpus: share of a GPU for each worker on Ray.
    """
    if workers is not None and workers < 1:
        raise KeystoneError(f"--workers {workers}: expected 1 or more")
    if ray is not None:
        from keystone_robotics.evaluate.executors.cluster import RayCluster

        return RayCluster(ray, workers, gpus or 0.0)
    if gpus is not None:
        raise KeystoneError(f"--gpus {gpus:g} is for workers on Ray: add --ray, or choose a device with --device")
    if workers is not None and workers > 1:
        from keystone_robotics.evaluate.executors.processes import LocalProcesses

        return LocalProcesses(workers)
    return in_process
