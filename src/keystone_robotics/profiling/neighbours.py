"""Other clients of the device: processes that make rounds with the same policy all the time.

Each is ``python -m keystone_robotics.profiling.neighbours`` with its task on the command line. The process that measures writes
the number of candidates to its standard input, and it answers after its first round with them. It ends when the pipe closes.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from types import TracebackType
from typing import IO, Any

from keystone_robotics.errors import KeystoneError
from keystone_robotics.profiling.measure import OutOfMemory, is_out_of_memory

#: Prefix of a neighbour's answers, to tell them from what its interpreter may have printed before.
ANSWER = "keystone-neighbour "


class NeighbourProcesses:
    """N processes, each with the policy of this name loaded. To be used in a ``with`` block."""

    def __init__(
        self, count: int, policy: str, device: str | None, batch: int | None, threads: int, trust: bool = False
    ) -> None:
        self._task = json.dumps(
            {"policy": policy, "device": device, "batch": batch, "threads": threads, "trust": trust}
        )
        self._count = count
        self._processes: list[subprocess.Popen[str]] = []
        self._errors: list[IO[str]] = []
        self._k = -1

    def __enter__(self) -> NeighbourProcesses:
        command = [sys.executable, "-m", "keystone_robotics.profiling.neighbours", self._task]
        for _ in range(self._count):
            errors = tempfile.TemporaryFile("w+")
            process = subprocess.Popen(  # noqa: S603 (ourselves)
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
            )  # Ctrl-C is for the process that measures, which ends the others
            self._errors.append(errors)
            self._processes.append(process)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):  # it has ended already, or hangs
                process.communicate(timeout=30)
            process.kill()
            process.wait()
        for errors in self._errors:
            errors.close()

    def run(self, k: int) -> None:
        """See `keystone_robotics.profiling.measure.Neighbours`."""
        if k == self._k:
            return
        self._k = -1
        for process in self._processes:
            assert process.stdin is not None
            with contextlib.suppress(OSError):  # it has ended; its answer will be missing
                process.stdin.write(f"{k}\n")
                process.stdin.flush()
        answers = [self._answer(number) for number in range(self._count)]
        if "out of memory" in answers:
            raise OutOfMemory
        self._k = k

    def _answer(self, number: int) -> str:
        output = self._processes[number].stdout
        assert output is not None
        for line in output:
            if line.startswith(ANSWER):
                return line.removeprefix(ANSWER).strip()
        self._errors[number].seek(0)
        said = self._errors[number].read().strip().splitlines() or ["(none)"]
        raise KeystoneError(f"a client that shares the device ended; its last line: {said[-1]}")


def serve(task: dict[str, Any], orders: IO[str], answers: IO[str]) -> None:
    """Make rounds as ordered until the orders end."""
    import torch

    from keystone_robotics.attachment import attach, attached
    from keystone_robotics.profiling.subject import load_subject, round_of

    torch.set_num_threads(task["threads"])
    policy, observation, call = load_subject(task["policy"], task["device"], task["batch"], task.get("trust", False))
    handle = attached(policy) or attach(policy, k=1)
    prepare, act = round_of(policy, observation, call)
    inbox: queue.SimpleQueue[int | None] = queue.SimpleQueue()

    def listen() -> None:
        for line in orders:
            inbox.put(int(line))
        inbox.put(None)

    threading.Thread(target=listen, daemon=True).start()
    k: int | None = 0
    with torch.no_grad():
        while True:
            answer = ""
            if not k or not inbox.empty():
                k, answer = inbox.get(), "ready"
            if k is None:
                return
            if k:
                answer, k = _round(handle, k, prepare, act, answer)
            if answer:
                answers.write(f"{ANSWER}{answer}\n")
                answers.flush()


def _round(handle: Any, k: int, prepare: Any, act: Any, answer: str) -> tuple[str, int]:
    """One round; where memory is too small for it, or the engine went on with fewer candidates, say so and wait."""
    try:
        handle.k = k
        prepare()
        act()
        if k > 1 and handle.last.labels.shape[-1] < k:
            raise OutOfMemory
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return "out of memory", 0
    return answer, k


if __name__ == "__main__":
    # The pipe is for answers only: what a policy prints would fill it, and the process would block.
    answers_alone = os.fdopen(os.dup(sys.stdout.fileno()), "w")  # closed last, after a traceback is written
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    serve(json.loads(sys.argv[1]), sys.stdin, answers_alone)
