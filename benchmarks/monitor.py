"""``python -m benchmarks.monitor [--quick]``: what an alarm costs a round, for every score, against `keystone.select`.

Writes monitor.json to benchmarks/results. The alarm is called with the events of successive rounds of one episode, so that
scores that compare rounds compare; ``ratio`` is its time over that of selecting (core-mean) from the same candidates.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

import keystone_robotics as keystone
from benchmarks import harness
from benchmarks.select_clouds import draw
from benchmarks.timing import interleave, ratio
from keystone_robotics.monitor import SCORES, Alarm, Calibration
from keystone_robotics.sample.adapter import Window
from keystone_robotics.sample.event import RoundEvent, RoundTimes

STEPS, DIMS, EXECUTED = 16, 7, 8


def rows(quick: bool) -> Iterator[dict[str, Any]]:
    """One row for each score and K."""
    space = keystone.ActionSpace(dims=DIMS, steps=range(EXECUTED))
    for k in (16,) if quick else (16, 256):
        inputs = draw("two ways", (1, k, STEPS, DIMS), 4 if quick else 16)
        events = [event(candidates, space) for candidates in inputs]
        variants: dict[str, Callable[[], object]] = {
            "select": calling(lambda one: keystone.select(one, "core-mean", space), inputs)
        }
        for name in SCORES:
            alarm = Alarm(Calibration(name, "high", "constant", (1e9,), 3, 0.05, 19))
            variants[name] = calling(alarm, events)
        seconds = interleave(variants, rounds=5 if quick else 25)
        for name in SCORES:
            yield {
                "case": f"{name}, K = {k}",
                "ratio": 1 / ratio(seconds, "select", name),
                "better": "lower",
                "microseconds": 1e6 * statistics.median(seconds[name]),
            }


def event(candidates: torch.Tensor, space: keystone.ActionSpace) -> RoundEvent:
    """A round of one robot."""
    selection = keystone.select(candidates, "core-mean", space)
    times, window = RoundTimes(0.0, 0.0, 0.0), Window(DIMS, 0, EXECUTED, ())
    return RoundEvent(0, (0,), candidates, selection, "plain", candidates.shape[1], times, ("robot",), space, window)


def calling(function: Callable[[Any], object], values: list[Any]) -> Callable[[], object]:
    """Calls a function with one value after the other."""
    cycle = itertools.cycle(values)
    return lambda: function(next(cycle))


def main(quick: bool) -> None:
    """Measure and write."""
    np.seterr(all="raise", under="ignore")
    harness.run("monitor", rows, quick)


if __name__ == "__main__":
    main(harness.parse_quick("monitor", __doc__))
