"""``python -m benchmarks.whole_round [--quick]``: K = 16 through every adapter, encoding and selection included.

Against sixteen separate calls, against a batch of sixteen rows, and against one call. The policies are the tests' tiny ones,
real LeRobot classes with random weights: at that size a round is mostly the overhead of its many small operations, as it is on
a GPU, and not arithmetic; what arithmetic is saved at real sizes, ``denoise_*.py`` measure.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks import denoising
from benchmarks.timing import interleave_once, ratio

K = 16


def rows(quick: bool) -> Iterator[dict[str, Any]]:
    """One for each adapter."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from keystone.sample.adapters import ADAPTERS
    from tiny import POLICIES

    for name, adapter in ADAPTERS.items():
        if name in POLICIES and not adapter.refusal and (not quick or name in ("smolvla", "pi05", "groot")):
            yield compare(name, POLICIES[name], rounds=2 if quick else 7)


def compare(name: str, recipe: Any, rounds: int) -> dict[str, Any]:
    """Ratios of the times of a whole call of ``predict_action_chunk``."""
    import torch

    import keystone

    policies = {variant: recipe.build().requires_grad_(False) for variant in ("alone", "plain", "fast")}
    handles = {path: keystone.attach(policies[path], k=K, seed=0, fast=path == "fast") for path in ("plain", "fast")}
    one, many = recipe.batch(1), recipe.batch(K)  # sixteen different rows cost what one repeated costs
    calls = {
        "single": ("alone", [one]),
        "separate": ("alone", [one] * K),
        "repeated": ("alone", [many]),
        "plain": ("plain", [one]),
        "fast": ("fast", [one]),
    }

    def variant(policy: str, batches: list[Any]) -> Callable[[], list[Any]]:
        return lambda: [recipe.predict(policies[policy], batch) for batch in batches]

    with torch.no_grad():
        _, seconds = interleave_once({name: variant(*call) for name, call in calls.items()}, rounds)
    return {
        "case": f"{name}, K = {K}",
        "k": K,
        "rounds": rounds,
        "path": handles["fast"].path,
        "ratio": ratio(seconds, "separate", "fast"),
        "repeated_ratio": ratio(seconds, "repeated", "fast"),
        "plain_ratio": ratio(seconds, "separate", "plain"),
        "fast_over_single": ratio(seconds, "fast", "single"),
    }


def main(quick: bool) -> None:
    """Measure and write ``whole_round.json``."""
    denoising.run("whole_round", rows, quick)


if __name__ == "__main__":
    main(denoising.quick_wanted("whole_round", __doc__))
