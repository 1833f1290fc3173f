"""``python -m benchmarks.rerun_log [--quick]``: what `keystone.RerunLog` costs a round, against `keystone.select`.

Writes rerun_log.json to benchmarks/results. ``listener_ms`` is the CPU time of the listener in the thread of the policy;
``all_ms`` the CPU time of the whole process, with the thread that draws and writes: what a round can lose at most, where that
thread finds no core of its own; both of rounds without a pause. ``wall_ms`` is the median wall-clock time of the listener
when the thread sleeps before each round, as between the rounds of a robot, and so has to be woken. ``ratio`` is ``all_ms``
over the time of selecting (core-mean) from the same candidates.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keystone_robotics as keystone
from benchmarks import harness
from benchmarks.monitor import DIMS, STEPS, event
from benchmarks.select_clouds import draw
from benchmarks.timing import interleave

ROUNDS = 64  #: as many as may wait for the thread


def rows(quick: bool) -> Iterator[dict[str, Any]]:
    """One row for each K and kind of picture."""
    space = keystone.ActionSpace(dims=DIMS, steps=range(8))
    for k in (16,) if quick else (16, 256):
        inputs = draw("two ways", (1, k, STEPS, DIMS), 4)
        events = [event(one, space) for one in inputs]
        select = interleave({"select": lambda inputs=inputs: keystone.select(inputs[0], "core-mean", space)}, 5)[
            "select"
        ]
        for kind, path in (("paths", lambda chunks: chunks[..., :3].cumsum(-2)), ("lanes", None)):
            runs = [_record(events, path) for _ in range(3 if quick else 9)]
            listener, everything = (statistics.median(one[place] for one in runs) for place in (0, 1))
            yield {
                "case": f"{kind}, K = {k}",
                "ratio": everything / statistics.median(select),
                "better": "lower",
                "listener_ms": 1e3 * listener,
                "all_ms": 1e3 * everything,
                "wall_ms": 1e3 * statistics.median(_wall(events, path)),
                "bytes": runs[0][2],
            }


def _record(events: list[Any], path: Any) -> tuple[float, float, float]:
    """CPU seconds of a round in its thread and in the process, after the first; bytes of a round."""
    with tempfile.TemporaryDirectory() as folder:
        log = keystone.RerunLog(Path(folder) / "rounds.rrd", path=path)
        log(events[0])  # starts the thread, which opens the file
        while not log.idle:
            time.sleep(0.001)
        process, thread = time.process_time(), time.thread_time()
        for number in range(ROUNDS):
            log(events[number % len(events)])
        thread = time.thread_time() - thread
        log.close()
        process = time.process_time() - process
        assert not log.dropped
        return thread / ROUNDS, process / ROUNDS, log.files[0].stat().st_size / (ROUNDS + 1)


def _wall(events: list[Any], path: Any) -> list[float]:
    """Wall-clock seconds of the listener in each round, after the thread has drawn the one before."""
    with tempfile.TemporaryDirectory() as folder, keystone.RerunLog(Path(folder) / "rounds.rrd", path=path) as log:
        found = []
        for number in range(4 * ROUNDS):
            while not log.idle:
                time.sleep(0.001)
            begin = time.perf_counter()
            log(events[number % len(events)])
            found.append(time.perf_counter() - begin)
        return found[1:]  # the first starts the thread


def main(quick: bool) -> None:
    """Measure and write."""
    harness.run("rerun_log", rows, quick)


if __name__ == "__main__":
    main(harness.parse_quick("rerun_log", __doc__))
