"""Timing on a shared machine.

One thread, CPU time of that thread (``time.thread_time``), the variants interleaved within one run, and the median of the
per-round ratios: other processes then disturb all variants alike. Absolute times depend on the machine; no test or regression
check uses them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any


def interleave(
    variants: Mapping[str, Callable[[], object]],
    rounds: int = 25,
    block_seconds: float = 0.004,
    warm_up: int = 5,
    clock: Callable[[], float] = time.thread_time,
) -> dict[str, list[float]]:
    """CPU seconds per call of each variant, one entry per round; every round runs all variants once.

    Args:
        variants: what to time, by name.
        rounds: how often.
        block_seconds: a variant is repeated within a round until about this much time has passed.
        warm_up: calls, after the first, that find out how often; 0 means once.
        clock: CPU seconds; of the process, for what computes in a thread of its own.
    """
    repeats = {}
    for name, call in variants.items():
        call()
        begin = clock()
        for _ in range(warm_up):
            call()
        each = (clock() - begin) / max(warm_up, 1)
        repeats[name] = max(1, int(block_seconds / max(each, 1e-7))) if warm_up else 1
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, call in variants.items():
            begin = clock()
            for _ in range(repeats[name]):
                call()
            seconds[name].append((clock() - begin) / repeats[name])
    return seconds


def interleave_once(
    variants: Mapping[str, Callable[[], Any]], rounds: int, clock: Callable[[], float] = time.thread_time
) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """For long calls: what each variant returned last, and the CPU seconds of one call per round."""
    outputs: dict[str, Any] = {}

    def keeping(name: str) -> Callable[[], None]:
        def call() -> None:
            outputs[name] = variants[name]()

        return call

    seconds = interleave({name: keeping(name) for name in variants}, rounds, warm_up=0, clock=clock)
    return outputs, seconds


def ratio(seconds: Mapping[str, list[float]], slow: str, fast: str) -> float:
    """How many times faster ``fast`` is than ``slow``: the median over rounds."""
    return statistics.median(a / b for a, b in zip(seconds[slow], seconds[fast], strict=True))


def spread(seconds: Mapping[str, list[float]], slow: str, fast: str) -> list[float]:
    """The smallest and the largest of the rounds' ratios: a measure of noise."""
    ratios = [a / b for a, b in zip(seconds[slow], seconds[fast], strict=True)]
    return [min(ratios), max(ratios)]
