"""``python -m benchmarks.whole_round [--quick]``: K = 16 through every adapter, encoding and selection included.

Against sixteen separate calls, against a batch of sixteen rows, and against one call. The policies are the tests' tiny ones,
real LeRobot classes with random weights: at that size a round is mostly the overhead of its many small operations, as it is on
a GPU, and not arithmetic; what arithmetic is saved at real sizes, ``denoise_*.py`` measure.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.timing import interleave_once, ratio, spread

K = 16


def rows(quick: bool) -> Iterator[dict[str, Any]]:
    """One for each adapter."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from keystone_robotics.sample.families import ADAPTERS
    from tiny import POLICIES

    for name, adapter in ADAPTERS.items():
        if name in POLICIES and not adapter.refusal and (not quick or name in ("smolvla", "pi05", "groot")):
            recipe = POLICIES[name]
            batches = {rows: recipe.batch(rows) for rows in (1, K)}  # sixteen rows cost what one repeated costs

            def predict(policy: Any, rows: int, recipe: Any = recipe, batches: Any = batches) -> Any:
                return recipe.predict(policy, batches[rows])

            yield compare(name, recipe.build, predict, rounds=2 if quick else 7)


def compare(
    name: str,
    build: Callable[[], Any],
    predict: Callable[[Any, int], Any],
    rounds: int,
    batches: bool = True,
    clock: Callable[[], float] = time.thread_time,
    **options: Any,
) -> dict[str, Any]:
    """Ratios of the times of a whole call of a policy.

    Args:
        name: of the case.
        build: a policy.
        predict: a chunk for each of so many observations.
        rounds: of interleaved measurements.
        batches: the policy takes more than one observation at a time.
        clock: see `benchmarks.timing.interleave`.
        options: for `keystone.attach`.
    """
    import torch

    import keystone_robotics as keystone

    alone, plain, fast = (build() for _ in range(3))
    keystone.attach(plain, k=K, seed=0, fast=False, **options)
    handle = keystone.attach(fast, k=K, seed=0, **options)
    calls = {
        "single": lambda: predict(alone, 1),
        "separate": lambda: [predict(alone, 1) for _ in range(K)],
        "plain": lambda: predict(plain, 1),
        "fast": lambda: predict(fast, 1),
        **({"repeated": lambda: predict(alone, K)} if batches else {}),
    }
    with torch.no_grad():
        _, seconds = interleave_once(calls, rounds, clock)
    return {
        "case": f"{name}, K = {K}",
        "k": K,
        "rounds": rounds,
        "path": handle.path,
        "ratio": ratio(seconds, "separate", "fast"),
        "range": spread(seconds, "separate", "fast"),
        **({"repeated_ratio": ratio(seconds, "repeated", "fast")} if batches else {}),
        "plain_ratio": ratio(seconds, "separate", "plain"),
        "fast_over_single": ratio(seconds, "fast", "single"),
    }


def main(quick: bool) -> None:
    """Measure and write ``whole_round.json``."""
    harness.run("whole_round", rows, quick)


if __name__ == "__main__":
    main(harness.parse_quick("whole_round", __doc__))
