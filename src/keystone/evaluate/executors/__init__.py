"""Who rolls out the shards: this process, processes on this machine, or a Ray cluster. The results are the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from keystone.evaluate.results import ShardResult
from keystone.evaluate.settings import Settings, Shard

#: Yields the result of every shard once, in any order.
Executor = Callable[[Settings, Sequence[Shard]], Iterator[ShardResult]]


def in_process(settings: Settings, shards: Sequence[Shard]) -> Iterator[ShardResult]:
    """One after the other, here."""
    from keystone.evaluate.worker import Worker

    if not shards:
        return
    worker = Worker(settings)
    try:
        for shard in shards:
            yield worker.run(shard)
    finally:
        worker.close()
