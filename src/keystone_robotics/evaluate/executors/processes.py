"""Executor with supervised processes on this machine: one that dies or hangs is replaced, and the episode at fault is found."""

from __future__ import annotations

import logging
import math
import multiprocessing.connection
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from keystone_robotics.errors import KeystoneError
from keystone_robotics.evaluate.activity import Doing
from keystone_robotics.evaluate.config import EvaluationConfig, Shard
from keystone_robotics.evaluate.executors import TRIES, Executor, T, WorkerFailed
from keystone_robotics.evaluate.executors.process import Failure, Job, Reply, WorkerCall, WorkerProcess
from keystone_robotics.evaluate.results import ShardResult, failed_episodes
from keystone_robotics.evaluate.worker import Worker

log = logging.getLogger("keystone")

START_FAILED = (
    "the worker processes died while starting; nothing was rolled out. In a script, call `evaluate` below "
    '`if __name__ == "__main__":`, because every worker imports the script. Otherwise the policy may not fit into memory once '
    "per worker (use fewer --workers), or an import ends the process: see what the workers printed"
)
RESTART_FAILED = (
    f"worker processes died {TRIES} times in a row while loading the policy, which worked before; finished shards are stored. "
    "It may not fit into memory once per worker: run the same command again with fewer --workers"
)

#: Seconds until a call is taken for a hang where there is nothing to go by: before the first episode has ended, for rounds (the
#: first may compile) and for making an environment (the first may compile shaders).
DEFAULT_TIMEOUT = 1800.0
#: Without a limit of the user's, an episode may spend this many times what the slowest one so far spent in its environment …
FACTOR = 20.0
#: … and at least these seconds.
LEAST = 60.0
#: Seconds between two looks at the workers.
INTERVAL = 0.25
#: A longer time between two looks means that this process was stopped or suspended, and its workers with it.
STOPPED = 5.0


class LocalProcesses(Executor):
    """An executor with worker processes.

    - A worker that **dies** is replaced and its shard tried again. If that one dies too, the episodes are told apart: the one
      whose environment ran is rolled out alone, or each half if the policy ran for several. An episode that is alone with the
      third death is an error.
    - A worker that **hangs** is killed. The episode whose environment ran is an error, the others are rolled out again. If the
      policy ran for several, they are told apart as above.
    - A worker whose **memory** grew too much is replaced between two shards.

    Args:
        workers: number of processes.
        episode_timeout: seconds that an episode may spend in its environment (all of ``reset`` and ``step`` together), and that
            one round may take. None: 20 times what the slowest episode so far spent in its environment, at least a minute; half
            an hour for the first episodes and for rounds.
        memory_growth: GiB of resident memory that a worker may add to what it had after its first shard.
    """

    def __init__(self, workers: int = 1, episode_timeout: float | None = None, memory_growth: float = 2.0) -> None:
        if episode_timeout is not None and not 0 < episode_timeout < math.inf:
            raise KeystoneError(f"--episode-timeout {episode_timeout:g}: expected seconds, more than 0")
        self.workers, self.episode_timeout, self.memory_growth = workers, episode_timeout, memory_growth
        self._crew: list[WorkerProcess] = []
        self._loaded = False  # a worker has loaded the policy
        self._failed_starts = 0  # in a row
        self._slowest = 0.0  # seconds of an episode in its environment; 0 until one has ended
        self._looked = 0.0

    def close(self) -> None:
        self._dismiss(self._crew)

    def check(self, settings: EvaluationConfig) -> None:
        """Let one worker load the policy, which it keeps, and check that policy, tasks and arms fit together. This process does
        not load it: a GPU may not hold it twice.

        Raises:
            KeystoneError: if they do not fit, or the worker dies.
        """
        with self:
            self._dismiss_the_dead()
            if not self._crew:
                self._crew.append(WorkerProcess())
            outcome = self._crew[0].check(settings)
            if isinstance(outcome, Failure):
                self._dismiss(self._crew[:1])
                raise KeystoneError(START_FAILED)
            if outcome.error is not None:
                raise outcome.error
            self._loaded = True

    def __call__(self, settings: EvaluationConfig, shards: Sequence[Shard]) -> Iterator[ShardResult]:
        waiting = deque(Job(shard, tuple(shard.episodes)) for shard in shards)
        done: dict[Shard, list[ShardResult]] = {shard: [] for shard in shards}
        with self:
            try:
                while waiting or self._busy:
                    self._hand_out(settings, waiting)
                    self._wait()
                    for process in self._busy:
                        outcome, job, seconds = process.outcome(self._limit), process.job, process.seconds
                        if outcome is None or not isinstance(job, Job):
                            continue
                        if isinstance(outcome, Reply):
                            part, again = replace(self._finish(process, outcome), seconds=seconds), list[Job]()
                        else:
                            self._dismiss([process])
                            failed, again = self._judge(job, outcome)
                            episodes = (
                                failed_episodes(settings, job.shard, failed, _error(outcome, job)) if failed else ()
                            )
                            part = ShardResult(job.shard, episodes, seconds)
                        waiting.extendleft(reversed(again))
                        done[job.shard].append(part)
                        if result := _whole(done[job.shard]):
                            yield result
            finally:
                self._dismiss(self._busy)  # after an error or an interrupt their results are not wanted

    def run_in_worker(self, settings: EvaluationConfig, function: Callable[[Worker], T]) -> T:
        deaths = 0
        with self:
            while True:
                outcome = self._call(settings, WorkerCall(function))
                if isinstance(outcome, Reply):
                    if outcome.error is not None:
                        raise outcome.error
                    self._loaded = True
                    value: T = outcome.value
                    return value
                if outcome.note.doing in (Doing.NOTHING, Doing.LOADING) and not self._loaded:
                    raise KeystoneError(START_FAILED)
                log.warning("%s", outcome.reason)
                deaths += 1
                if outcome.hung or deaths == TRIES:
                    raise WorkerFailed(outcome.reason, outcome.note.episode)

    def _call(self, settings: EvaluationConfig, call: WorkerCall) -> Reply | Failure:
        """Let one worker make a call, and wait for it. A worker that fails is dismissed."""
        self._dismiss_the_dead()
        if not self._crew:
            self._crew.append(WorkerProcess())
        process = self._crew[0]
        process.give(settings, call)
        outcome: Reply | Failure | None = None
        try:
            while outcome is None:
                self._looked = time.monotonic()
                self._wait()
                outcome = process.outcome(self._limit)
        finally:
            if isinstance(outcome, Reply):
                process.job = None
            else:
                self._dismiss([process])  # it failed, or this process was interrupted
        return outcome

    @property
    def _busy(self) -> list[WorkerProcess]:
        return [process for process in self._crew if process.job]

    def _hand_out(self, settings: EvaluationConfig, waiting: deque[Job]) -> None:
        """Give jobs to workers that wait, and start those that are missing."""
        self._dismiss_the_dead()
        for process in self._crew:
            if waiting and not process.job:
                process.give(settings, waiting.popleft())
        while waiting and len(self._crew) < self.workers:
            self._crew.append(WorkerProcess())
            self._crew[-1].give(settings, waiting.popleft())
        self._looked = time.monotonic()

    def _wait(self) -> None:
        """Until a worker has something to say, or for a moment."""
        multiprocessing.connection.wait([one for process in self._busy for one in process.waits_for], INTERVAL)
        gap = time.monotonic() - self._looked
        if gap > STOPPED:
            for process in self._busy:
                process.allowance += gap

    def _limit(self, doing: Doing) -> float:
        """Seconds after which it is taken for a hang."""
        if doing in (Doing.NOTHING, Doing.LOADING):
            return math.inf
        if doing is Doing.PREPARING:
            return DEFAULT_TIMEOUT
        if self.episode_timeout is not None:
            return self.episode_timeout
        if doing is Doing.POLICY or not self._slowest:
            return DEFAULT_TIMEOUT
        return max(LEAST, FACTOR * self._slowest)

    def _finish(self, process: WorkerProcess, reply: Reply) -> ShardResult:
        """The result in a reply. A worker that has grown too much is dismissed."""
        process.job = None
        if reply.error is not None:
            raise reply.error
        assert reply.result is not None
        self._loaded, self._failed_starts = True, 0
        self._slowest = max(self._slowest, reply.slowest)
        if process.first_memory is None:
            process.first_memory = reply.memory
        grown = (reply.memory - process.first_memory) / 2**30
        if grown > self.memory_growth:
            log.warning("a worker has grown by %.1f GiB and is replaced: the environment or the policy may leak", grown)
            self._dismiss([process])
        return reply.result

    def _judge(self, job: Job, failure: Failure) -> tuple[tuple[int, ...], list[Job]]:
        """Which episodes are at fault, and what is to be done again."""
        note = failure.note
        if note.doing in (Doing.NOTHING, Doing.LOADING):  # no episode's fault
            self._failed_starts += 1
            if not self._loaded or self._failed_starts >= TRIES:
                raise KeystoneError(RESTART_FAILED if self._loaded else START_FAILED)
            return (), [job]
        self._loaded = True
        log.warning("%s: %s", job.shard, failure.reason)
        alone = len(job.episodes) == 1 or note.doing is Doing.PREPARING  # there is nobody, or nothing, to tell apart
        suspect = note.episode if note.episode in job.episodes else None
        if not failure.hung:
            job = replace(job, deaths=job.deaths + 1)
            if job.deaths < (TRIES if alone else 2):  # it may have been killed from outside
                return (), [job]
        if alone:
            return job.episodes, []
        if failure.hung and suspect is not None:
            return (suspect,), job.split(suspect)[1:]
        return (), job.split(suspect)

    def _dismiss_the_dead(self) -> None:
        """Those that died while they waited."""
        self._dismiss([process for process in self._crew if not process.job and not process.is_alive])

    def _dismiss(self, processes: Sequence[WorkerProcess]) -> None:
        """End workers."""
        processes = list(processes)
        for process in processes:
            process.request_stop()
        for process in processes:
            process.stop()
            self._crew.remove(process)


def _error(failure: Failure, job: Job) -> str:
    """What is stored with the episode: the stack, and the reason below it, as in a traceback."""
    deaths = job.deaths + (not failure.hung)
    again = f" ({deaths} died with this episode)" if deaths > 1 else ""
    return f"{failure.stack}{failure.reason}{again}"


def _whole(parts: Sequence[ShardResult]) -> ShardResult | None:
    """A shard from its parts, if all are there."""
    episodes = sorted((one for part in parts for one in part.episodes), key=lambda one: one.episode)
    shard = parts[0].shard
    if len(episodes) < shard.count:
        return None
    weights = next((part.weights for part in parts if part.weights), "")
    return ShardResult(shard, tuple(episodes), sum(part.seconds for part in parts), weights)
