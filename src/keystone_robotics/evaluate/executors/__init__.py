"""Executors roll out shards: in this process, in local processes, or on a Ray cluster. The results are the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from keystone_robotics.evaluate.results import ShardResult
from keystone_robotics.evaluate.settings import Settings, Shard

if TYPE_CHECKING:
    from keystone_robotics.evaluate.worker import Worker

#: Yields the result of every shard once, in any order.
Executor = Callable[[Settings, Sequence[Shard]], Iterator[ShardResult]]

#: Attempts at a shard whose worker dies.
TRIES = 3


def in_process(settings: Settings, shards: Sequence[Shard], worker: Worker | None = None) -> Iterator[ShardResult]:
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
