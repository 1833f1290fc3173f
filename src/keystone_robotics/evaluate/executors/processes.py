"""Executor with processes on this machine."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import multiprocessing
import os
import signal
import threading
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from keystone_robotics.errors import KeystoneError
from keystone_robotics.evaluate.config import EvaluationConfig, Shard
from keystone_robotics.evaluate.executors import TRIES
from keystone_robotics.evaluate.results import ShardResult, failed_shard
from keystone_robotics.evaluate.worker import run_shard, start

log = logging.getLogger("keystone")

START_FAILED = (
    "the worker processes died while starting; nothing was rolled out. In a script, call `evaluate` below "
    '`if __name__ == "__main__":`, because every worker imports the script. Otherwise the policy may not fit into memory once '
    "per worker (use fewer --workers), or an import ends the process: see what the workers printed"
)


class LocalProcesses:
    """An executor with several processes. If one dies, the unfinished shards are retried one at a time, which shows the shard
    that kills its worker; after three attempts its episodes count as errors. If no worker lives long enough to load the
    policy, a KeystoneError is raised instead.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._keeps = False
        self._kept: _Pool | None = None

    def __enter__(self) -> LocalProcesses:
        """Within this block the processes, and the policy that each has loaded, outlive a call."""
        self._keeps = True
        return self

    def __exit__(self, *_: object) -> None:
        self._keeps = False
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def __call__(self, settings: EvaluationConfig, shards: Sequence[Shard]) -> Iterator[ShardResult]:
        waiting, suspects, deaths = deque(shards), deque[Shard](), Counter[Shard]()
        # Without a lock: a killed worker could hold it for ever.
        started = self._kept.started if self._kept else multiprocessing.get_context("spawn").RawValue(ctypes.c_bool, 0)
        while waiting or suspects:
            # Shards that were running when a worker died are retried one after the other, the rest run together.
            pool, self._kept = self._kept or _Pool(1 if suspects else self.workers, started), None
            healthy = False
            try:
                yield from pool.run(settings, suspects or waiting)
                healthy = True
            except _WorkerDied as died:
                if not started.value:
                    raise KeystoneError(START_FAILED) from None
                log.warning("a worker died; retrying %d shards", len(died.unfinished))
                for shard in died.unfinished:
                    deaths[shard] += len(died.unfinished) == 1
                    if deaths[shard] >= TRIES:
                        yield failed_shard(settings, shard, f"its worker process died {TRIES} times")
                    else:
                        suspects.append(shard)
            finally:
                if healthy and self._keeps and pool.workers == self.workers:
                    self._kept = pool
                else:
                    pool.close()


class _WorkerDied(Exception):
    """A worker process ended.

    Attributes:
        unfinished: shards submitted to workers without a result.
    """

    def __init__(self, unfinished: list[Shard]) -> None:
        super().__init__()
        self.unfinished = unfinished


class _Pool:
    """Worker processes.

    Attributes:
        workers: how many.
        started: shared with them: whether one of them has loaded the policy.
    """

    def __init__(self, workers: int, started: Any) -> None:
        self.workers, self.started = workers, started
        # A fork would copy running threads and GL contexts.
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_begin, initargs=(started,))

    def run(self, settings: EvaluationConfig, queue: deque[Shard]) -> Iterator[ShardResult]:
        """Run a queue of shards; at most one shard per process leaves the queue at a time."""
        running: dict[Future[ShardResult], Shard] = {}
        try:
            while queue or running:
                while queue and len(running) < self.workers:
                    with _ignore_sigint_in_workers():
                        running[self._pool.submit(_run_shard, settings, queue[0])] = queue[0]
                    queue.popleft()  # only now: submit raises if a worker died meanwhile
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    result = future.result()
                    del running[future]
                    yield result
        except BrokenProcessPool:
            finished = [future for future in running if future.done() and future.exception() is None]
            for future in finished:
                yield future.result()
                del running[future]
            raise _WorkerDied(list(running.values())) from None

    def close(self) -> None:
        """End the processes; after an error or an interrupt their results are not wanted."""
        for process in list((self._pool._processes or {}).values()):
            process.terminate()
        self._pool.shutdown(wait=True, cancel_futures=True)


@contextlib.contextmanager
def _ignore_sigint_in_workers() -> Iterator[None]:
    """Processes started in this block inherit a blocked SIGINT: Ctrl-C during their imports, before `_begin`, would print a
    traceback. This process receives it after the block.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_started: Any = None


def _run_shard(settings: EvaluationConfig, shard: Shard) -> ShardResult:
    """In a worker: roll out a shard; tells the parent that the policy was loaded first."""
    start(settings)
    _started.value = True
    return run_shard(settings, shard)


def _begin(started: Any) -> None:
    """In a worker: exit when the parent exits, even if it was killed."""
    global _started
    _started = started
    os.environ["OMP_NUM_THREADS"] = "1"
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent receives it too, and terminates its workers

    def watch() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
