"""One worker process, seen from its supervisor, and what runs in it."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from keystone_robotics.errors import KeystoneError
from keystone_robotics.evaluate.activity import SIZE, Activity, Doing, Note
from keystone_robotics.evaluate.config import EvaluationConfig, Shard
from keystone_robotics.evaluate.executors.in_process import InProcess
from keystone_robotics.evaluate.results import ShardResult, failed_episodes
from keystone_robotics.evaluate.worker import Worker

#: Seconds for a worker that has nothing to do to close its environments.
GRACE = 5.0
#: Bytes of a stack that are stored with an episode.
STACK = 20_000


@dataclass(frozen=True)
class Job:
    """Episodes of a shard for one worker.

    Attributes:
        shard: of the episodes.
        episodes: their numbers: all of the shard, until some are suspected of killing workers.
        deaths: workers that died with them.
    """

    shard: Shard
    episodes: tuple[int, ...]
    deaths: int = 0

    def split(self, suspect: int | None) -> list[Job]:
        """The suspect alone and the others, or halves if there is none."""
        first = self.episodes[: len(self.episodes) // 2] if suspect is None else (suspect,)
        others = tuple(number for number in self.episodes if number not in first)
        return [replace(self, episodes=first), replace(self, episodes=others)]


@dataclass(frozen=True)
class WorkerCall:
    """A function for one worker, see `Executor.run_in_worker`."""

    function: Callable[[Worker], Any]


@dataclass(frozen=True)
class Reply:
    """What a worker sends.

    Attributes:
        result: of its job; None after a check or a call.
        error: that every job would meet; it ends the evaluation.
        slowest: seconds that its slowest episode spent in its environment.
        memory: bytes of resident memory; 0 if unknown.
        value: what the function of a call returned.
    """

    result: ShardResult | None = None
    error: Exception | None = None
    slowest: float = 0.0
    memory: int = 0
    value: Any = None


@dataclass(frozen=True)
class Failure:
    """The end of a worker without a reply.

    Attributes:
        note: what it was doing.
        hung: it was killed because it took too long.
        reason: one sentence.
        stack: the Python stack at that moment, as far as there is one.
    """

    note: Note
    hung: bool
    reason: str
    stack: str


class WorkerProcess:
    """A worker process.

    Attributes:
        job: what it works on; None if it waits.
        first_memory: resident memory after its first job.
        allowance: seconds for which this machine was suspended during the job.
    """

    def __init__(self) -> None:
        context = _context()
        self._connection, theirs = context.Pipe()
        self._stack, stack = context.Pipe(duplex=False)
        memory = context.RawArray(ctypes.c_double, SIZE)
        self._activity = Activity(memory)
        self._process = context.Process(target=_serve, args=(theirs, stack, memory, dict(os.environ)))
        with _ignore_sigint_in_workers():
            self._process.start()
        theirs.close()
        stack.close()
        self.job: Job | WorkerCall | None = None
        self.first_memory: int | None = None
        self.allowance = 0.0
        self._begun = 0.0

    @property
    def is_alive(self) -> bool:
        return bool(self._process.is_alive())

    @property
    def seconds(self) -> float:
        """Since the job was given."""
        return time.monotonic() - self._begun

    @property
    def waits_for(self) -> list[Any]:
        """What becomes ready when there is something to say. Not the connection alone: processes that an environment starts may
        hold it open after the worker's death.
        """
        return [self._connection, self._process.sentinel]

    def check(self, settings: EvaluationConfig) -> Reply | Failure:
        """Load the policy and check that it fits, and wait for that."""
        self._send((settings, None))
        multiprocessing.connection.wait(self.waits_for)
        return self._receive() or self._death()

    def give(self, settings: EvaluationConfig, job: Job | WorkerCall) -> None:
        """Begin a job. If the worker has died meanwhile, its next `outcome` says so."""
        self.job, self.allowance, self._begun = job, 0.0, time.monotonic()
        self._send((settings, job))

    def outcome(self, limit: Callable[[Doing], float]) -> Reply | Failure | None:
        """What came of the job; None if it is still running.

        Args:
            limit: seconds after which that activity is taken for a hang.
        """
        if (reply := self._receive()) is not None:
            return reply
        if not self.is_alive:
            return self._receive() or self._death()  # it may have replied in between
        note = self._activity.read()
        seconds = limit(note.doing)
        over = time.monotonic() - note.since - self.allowance > seconds
        if over and self._activity.read() == note:  # else it was read while being written
            return self._hang(note, seconds)
        return None

    def _send(self, request: Any) -> None:
        with contextlib.suppress(OSError):
            self._connection.send(request)

    def _receive(self) -> Reply | None:
        try:
            return self._connection.recv() if self._connection.poll() else None
        except (EOFError, OSError):
            self._process.join(GRACE)
            return None

    def _death(self) -> Failure:
        code = self._process.exitcode
        how = f"with exit code {code}" if code is None or code >= 0 else f"of {signal.Signals(-code).name}"
        return Failure(self._activity.read(), False, f"its worker process died {how}", self._read_stack())

    def _hang(self, note: Note, seconds: float) -> Failure:
        """Ask for the stack, and kill it."""
        if _STACK_SIGNAL is not None and self._process.pid is not None:
            with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
                os.kill(self._process.pid, _STACK_SIGNAL)
            multiprocessing.connection.wait([self._stack], 1.0)
            time.sleep(0.1)  # it is written in pieces
        self.kill()
        whose = {Doing.ENVIRONMENT: "its environment", Doing.POLICY: "the policy"}.get(
            note.doing, "making environments"
        )
        reason = (
            f"{whose} took more than {seconds:g} s; its worker process was killed (--episode-timeout sets the limit)"
        )
        return Failure(note, True, reason, self._read_stack())

    def _read_stack(self) -> str:
        """What faulthandler wrote."""
        if _STACK_SIGNAL is None:
            return ""
        os.set_blocking(self._stack.fileno(), False)
        with contextlib.suppress(BlockingIOError):
            return os.read(self._stack.fileno(), STACK).decode(errors="replace")
        return ""

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.join(GRACE)

    def request_stop(self) -> None:
        """Ask it to close its environments and end; kill it if it is busy."""
        self._process.kill() if self.job else self._send(None)

    def stop(self) -> None:
        """Wait for its end after `request_stop`."""
        self._process.join(GRACE)
        if self.is_alive:
            self.kill()
        self._connection.close()
        self._stack.close()


def _context() -> Any:
    """How processes are started: not by a fork of this one, which may have threads, GL contexts or a GPU in use. On Linux they
    are forks of a server that has imported torch (`preload`): 0.02 s each instead of 2 s.
    """
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["keystone_robotics.evaluate.executors.preload"])
    return context


@contextlib.contextmanager
def _ignore_sigint_in_workers() -> Iterator[None]:
    """Processes started in this block inherit a blocked SIGINT: Ctrl-C during their imports, before `_serve`, would print a
    traceback. This process receives it after the block.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    resource_tracker.ensure_running()  # which unblocks SIGINT when it starts
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# ---- in the worker

#: Makes a worker write its stack; None where there are no such signals.
_STACK_SIGNAL: int | None = getattr(signal, "SIGUSR1", None)


def _serve(connection: Connection, stack: Connection, memory: Any, environ: dict[str, str]) -> None:
    """Answer requests until the supervisor ends or asks to stop."""
    os.environ.clear()  # the server that this process is a fork of has the environment of its own start
    os.environ.update(environ)
    os.environ["OMP_NUM_THREADS"] = "1"
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the supervisor receives it too, and ends its workers
    _end_with_supervisor()
    if _STACK_SIGNAL is not None:
        faulthandler.enable(stack.fileno())
        faulthandler.register(_STACK_SIGNAL, stack.fileno())
    activity = Activity(memory)
    with InProcess() as here, contextlib.suppress(EOFError, BrokenPipeError):  # the supervisor is gone
        while (request := connection.recv()) is not None:
            settings, job = request
            connection.send(_answer(here, settings, job, activity))


def _answer(here: InProcess, settings: EvaluationConfig, job: Job | WorkerCall | None, activity: Activity) -> Reply:
    try:
        with activity.doing(Doing.LOADING):
            if job is None:
                here.check(settings)
                return Reply()
            worker = here.worker(settings)
        worker.activity = activity
        if isinstance(job, WorkerCall):
            return Reply(value=job.function(worker))
        return Reply(worker.run(job.shard, job.episodes), None, activity.slowest, _resident_memory())
    except (KeystoneError, ImportError) as error:
        return Reply(error=error)
    except Exception:
        return Reply(error=RuntimeError(traceback.format_exc()))
    except BaseException:  # of an environment or a policy: a KeyboardInterrupt does not come from the keyboard here
        if not isinstance(job, Job):
            raise
        episodes = failed_episodes(settings, job.shard, job.episodes, traceback.format_exc())
        return Reply(ShardResult(job.shard, episodes, 0.0))


def _end_with_supervisor() -> None:
    """Exit when the supervisor exits, even if it was killed."""

    def watch() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _resident_memory() -> int:
    """Bytes of resident memory of this process; its peak where the system does not tell the present; 0 if unknown."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        pass
    try:
        import resource
    except ImportError:  # Windows
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
