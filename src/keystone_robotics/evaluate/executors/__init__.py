"""Who rolls out the shards: this process, processes on this machine, or a Ray cluster. The results are the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from keystone_robotics.evaluate.config import EvaluationConfig, Shard
from keystone_robotics.evaluate.results import ShardResult

if TYPE_CHECKING:
    from keystone_robotics.evaluate.worker import Worker

#: Yields the result of every shard once, in any order.
Executor = Callable[[EvaluationConfig, Sequence[Shard]], Iterator[ShardResult]]

#: How often a shard is tried whose worker dies.
TRIES = 3


def in_process(
    settings: EvaluationConfig, shards: Sequence[Shard], worker: Worker | None = None
) -> Iterator[ShardResult]:
    """One after the other, here; with a worker that is ready, if there is one."""
    from keystone_robotics.evaluate.worker import Worker

    if not shards:
        return
    worker = worker or Worker(settings)
    try:
        for shard in shards:
            yield worker.run(shard)
    finally:
        worker.close()
