"""Processes on this machine."""

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
from keystone_robotics.evaluate.results import ShardResult, given_up
from keystone_robotics.evaluate.worker import run_shard, start

log = logging.getLogger("keystone")

_STILLBORN = (
    "the worker processes died while they started, so nothing was rolled out. In a script, what starts an evaluation must "
    'stand below `if __name__ == "__main__":`, because every worker imports the script; else the policy may not fit in memory '
    "so often (fewer --workers), or something that is imported ends the process. What they printed says more"
)


class Processes:
    """An executor with several processes. If one dies, what was under way is tried again, one shard at a time, so that the
    shard that kills its worker is known; after three times its episodes count as errors. If none of them lives long enough to
    load the policy, no shard is to blame, and a KeystoneError is raised.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def __call__(self, settings: EvaluationConfig, shards: Sequence[Shard]) -> Iterator[ShardResult]:
        waiting, suspects, deaths = deque(shards), deque[Shard](), Counter[Shard]()
        # Without a lock, which a worker that is killed could take with it.
        started = multiprocessing.get_context("spawn").RawValue(ctypes.c_bool, False)
        while waiting or suspects:
            # Shards that were under way when a worker died run one after the other, the others together.
            try:
                yield from _run(1 if suspects else self.workers, settings, suspects or waiting, started)
            except _Died as died:  # noqa: PERF203 (that is what the loop is for)
                if not started.value:
                    raise KeystoneError(_STILLBORN) from None
                log.warning("a worker died; %d shards are tried again", len(died.under_way))
                for shard in died.under_way:
                    deaths[shard] += len(died.under_way) == 1
                    if deaths[shard] >= TRIES:
                        yield given_up(settings, shard, f"its worker process died {TRIES} times")
                    else:
                        suspects.append(shard)


class _Died(Exception):
    """A worker is gone.

    Attributes:
        under_way: the shards that had been given to workers and not come back.
    """

    def __init__(self, under_way: list[Shard]) -> None:
        super().__init__()
        self.under_way = under_way


def _run(workers: int, settings: EvaluationConfig, queue: deque[Shard], started: Any) -> Iterator[ShardResult]:
    """Work off a queue with new processes; no more shards leave it than there are processes."""
    # A fork would copy threads and GL contexts in the middle of their work.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_begin, initargs=(started,))
    running: dict[Future[ShardResult], Shard] = {}
    try:
        while queue or running:
            while queue and len(running) < workers:
                with _deaf_children():
                    running[pool.submit(_run_shard, settings, queue[0])] = queue[0]
                queue.popleft()  # not before: a pool whose worker died meanwhile takes nothing
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
        raise _Died(list(running.values())) from None
    finally:
        for process in list((pool._processes or {}).values()):
            process.terminate()  # whatever they still do is not wanted: an error or an interrupt ended the work
        pool.shutdown(wait=True, cancel_futures=True)


@contextlib.contextmanager
def _deaf_children() -> Iterator[None]:
    """Processes that are started in this block do not hear Ctrl-C, not even before `_begin`: in the seconds in which they
    import, it would end them with a traceback. This process hears it after the block.
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
    """In a worker: roll out a shard, and let the parent know before that the policy could be loaded."""
    start(settings)
    _started.value = True
    return run_shard(settings, shard)


def _begin(started: Any) -> None:
    """In a worker: go when the parent goes, even if it was killed and could not say so."""
    global _started
    _started = started
    os.environ["OMP_NUM_THREADS"] = "1"
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears it too, and ends its workers

    def watch() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
