"""How well a score tells failures from successes of the same task, at the same time into the episode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from keystone_robotics.monitor.conformal import Floats

RESAMPLES = 2000


class Estimate(NamedTuple):
    """A number and its interval, of 95 % unless said otherwise, by bootstrap over initial states."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return "–" if np.isnan(self.value) else f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"

    @property
    def separates(self) -> bool:
        """The whole interval lies above 0.5."""
        return self.low > 0.5


@dataclass(frozen=True)
class Series:
    """One episode.

    Attributes:
        task: of the episode.
        state: its initial state; repeats of one are resampled together.
        success: its outcome.
        values: (rounds,) a score, smoothed; higher is worse.
    """

    task: str
    state: int
    success: bool
    values: Floats


def auroc(episodes: Sequence[Series], whole: bool = False, seed: int = 0, level: float = 0.95) -> Estimate:
    """Probability that the score of a failure exceeds that of a success of the same task, ties counted half.

    Two episodes are compared by the highest score up to the end of the shorter one: a failure runs to the time limit, and the
    highest of more rounds is higher, whatever the score. Pairs are pooled over tasks, so that a score that only knows the task
    has 0.5. nan without a task that has both.

    Args:
        episodes: smoothed series.
        whole: compare the highest scores of whole episodes instead, as most papers do; above 0.5 for noise.
        seed: of the bootstrap.
        level: of the interval.
    """
    return estimate(*_pooled_wins(episodes, whole, seed), level)


def auroc_difference(a: Sequence[Series], b: Sequence[Series], seed: int = 0) -> Estimate:
    """How much higher the AUROC of one score is than that of another on the same episodes; initial states are resampled
    together.
    """
    if [(one.task, one.state) for one in a] != [(one.task, one.state) for one in b]:
        raise ValueError("the episodes are not the same")
    (wins, pairs), (others, other_pairs) = (_pooled_wins(one, False, seed) for one in (a, b))
    known = (pairs > 0) & (other_pairs > 0)
    if not known[0]:
        return Estimate(np.nan, np.nan, np.nan)
    difference = np.where(known, wins / np.maximum(pairs, 1) - others / np.maximum(other_pairs, 1), 0.0)
    return estimate(difference, known.astype(np.float64))


def _pooled_wins(episodes: Sequence[Series], whole: bool, seed: int) -> tuple[Floats, Floats]:
    """(1 + RESAMPLES,) pairs that the failure wins, and all pairs of one task: of the data, then of resamples."""
    random = np.random.default_rng(seed)
    wins, pairs = np.zeros(RESAMPLES + 1), np.zeros(RESAMPLES + 1)
    for task in sorted({one.task for one in episodes}):
        own = [one for one in episodes if one.task == task]
        matrix = _wins([one for one in own if not one.success], [one for one in own if one.success], whole)
        weights = resampled_weights(own, random)
        failed = weights[:, [not one.success for one in own]]
        succeeded = weights[:, [one.success for one in own]]
        wins += ((failed @ matrix) * succeeded).sum(1)
        pairs += failed.sum(1) * succeeded.sum(1)
    return wins, pairs


def resampled_weights(episodes: Sequence[Any], random: np.random.Generator) -> Floats:
    """(1 + RESAMPLES, n) how often each episode counts: once, and in each resample of the initial states."""
    states = sorted({one.state for one in episodes})
    column = {state: place for place, state in enumerate(states)}
    drawn = random.multinomial(len(states), np.full(len(states), 1 / len(states)), RESAMPLES)
    every = np.concatenate([np.ones((1, len(states))), drawn])
    return np.asarray(every[:, [column[one.state] for one in episodes]], np.float64)


def estimate(sums: Floats, counts: Floats, level: float = 0.95) -> Estimate:
    """A ratio whose first entry is of the data and the others of resamples."""
    if counts[0] == 0:
        return Estimate(np.nan, np.nan, np.nan)
    ratios = sums[1:][counts[1:] > 0] / counts[1:][counts[1:] > 0]
    low, high = np.quantile(ratios, [(1 - level) / 2, (1 + level) / 2])
    return Estimate(float(sums[0] / counts[0]), float(low), float(high))


def _wins(failed: Sequence[Series], succeeded: Sequence[Series], whole: bool) -> Floats:
    """(failures, successes) 1 where the failure's score is higher, 1/2 where it is equal."""
    if not failed or not succeeded:
        return np.zeros((len(failed), len(succeeded)))
    length = max(len(one.values) for one in (*failed, *succeeded))
    a, b = _running_highest(failed, length), _running_highest(succeeded, length)
    ends_a, ends_b = (np.array([max(len(one.values), 1) for one in group]) - 1 for group in (failed, succeeded))
    end: NDArray[np.int64] = np.minimum(ends_a[:, None], ends_b[None])
    if whole:
        end = np.full_like(end, length - 1)
    first = a[np.arange(len(a))[:, None], end]
    second = b[np.arange(len(b))[None], end]
    return np.asarray(np.where(first > second, 1.0, np.where(first == second, 0.5, 0.0)))


def _running_highest(episodes: Sequence[Series], length: int) -> Floats:
    """(n, length) the highest score so far; −∞ before there is one, held after the end."""
    table = np.full((len(episodes), max(length, 1)), -np.inf)
    for row, one in zip(table, episodes):
        row[: len(one.values)] = np.where(np.isnan(one.values), -np.inf, one.values)
    return np.maximum.accumulate(table, axis=1)
