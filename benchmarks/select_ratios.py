"""How much faster `keystone.select` is than the reference, and how its time grows with the number of candidates."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.select_clouds import Shape, draw
from benchmarks.select_paths import SELECTORS, on_each
from benchmarks.timing import interleave, ratio

STEPS, DIMS = 50, 7
#: The case that all times of the scaling curves are relative to: compiled, one round, K = 16.
BASE: Shape = (1, 16, STEPS, DIMS)


@dataclass(frozen=True)
class Effort:
    """How long to measure.

    Attributes:
        inputs: different inputs of one round each; larger batches hold different rounds already and need fewer.
        repeats: interleaved runs over all inputs, in each session; the median of all is taken.
        sessions: `interleave` finds out anew in each how often to repeat a call. A busy neighbour spoils that now and then, and
            a call that is repeated too seldom is timed with cold caches: of three sessions the median does not mind one.
        sizes: numbers of candidates in the table of speed-ups.
        batches: rounds per call in it.
        candidates: numbers of candidates on the scaling curve.
        dims: action dimensions on the scaling curve, with 50 steps each.
        trials: rounds per cell of the exactness tables.
    """

    inputs: int = 32
    repeats: int = 7
    sessions: int = 3
    sizes: tuple[int, ...] = (4, 16, 64)
    batches: tuple[int, ...] = (1, 8, 32)
    candidates: tuple[int, ...] = (4, 8, 16, 32, 64, 128, 256)
    dims: tuple[int, ...] = (1, 2, 4, 7, 14, 28, 50, 100)
    trials: int = 40


QUICK = Effort(
    inputs=8, repeats=3, sessions=1, sizes=(4, 16), batches=(1, 8), candidates=(4, 16, 64), dims=(1, 7, 100), trials=3
)


def speedups(cloud: str, k: int, batch: int, effort: Effort) -> dict[str, Any]:
    """How many times faster than the reference each selector is, with the quartiles over repeats."""
    inputs = draw(cloud, (batch, k, STEPS, DIMS), max(effort.inputs // batch, 4))
    seconds = _seconds({name: on_each(name, inputs) for name in SELECTORS}, effort)
    row: dict[str, Any] = {"cloud": cloud, "k": k, "batch": batch}
    for name in SELECTORS:
        if name != "reference":
            low, _, high = statistics.quantiles(
                [slow / fast for slow, fast in zip(seconds["reference"], seconds[name], strict=True)], n=4
            )
            row[name] = {"median": ratio(seconds, "reference", name), "quartiles": [low, high]}
    return row


def relative_times(shape: Shape, effort: Effort) -> dict[str, Any]:
    """Time of each selector on two modes of the given shape, in units of the compiled one at `BASE`."""
    inputs, base = draw("two ways", shape, effort.inputs), draw("two ways", BASE, effort.inputs)
    calls = {name: on_each(name, inputs) for name in SELECTORS}
    seconds = _seconds({"base": on_each("compiled", base), **calls}, effort)
    _, k, steps, dims = shape
    return {"k": k, "numbers": steps * dims, **{name: ratio(seconds, name, "base") for name in SELECTORS}}


def core_mean(cloud: str, batch: int, effort: Effort) -> dict[str, Any]:
    """Time of rule "core-mean" in units of rule "keystone", both compiled, at K = 16."""
    inputs = draw(cloud, (batch, 16, STEPS, DIMS), max(effort.inputs // batch, 4))
    seconds = _seconds({rule: on_each("compiled", inputs, rule=rule) for rule in ("keystone", "core-mean")}, effort)
    return {"cloud": cloud, "k": 16, "batch": batch, "ratio": ratio(seconds, "core-mean", "keystone")}


def _seconds(calls: dict[str, Callable[[], object]], effort: Effort) -> dict[str, list[float]]:
    """CPU seconds per call, over all sessions."""
    sessions = [interleave(calls, effort.repeats) for _ in range(effort.sessions)]
    return {name: [seconds for session in sessions for seconds in session[name]] for name in calls}
