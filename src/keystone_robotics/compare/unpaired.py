"""Unpaired arms: interval and test of their difference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from keystone_robotics.compare.intervals import wilson_rate
from keystone_robotics.compare.repeats import correlation, effective_number

#: For each task, for each initial state (repeats,) outcomes, 0 or 1.
StateOutcomes = Sequence[Sequence[NDArray[np.int64]]]

INTERVAL = "unpaired, Newcombe"
#: Episodes an arm up to which Barnard's test is quick.
BARNARD_LIMIT = 100


def newcombe(a: StateOutcomes, b: StateOutcomes) -> tuple[float, float]:
    """Newcombe's 95 % interval for the difference of two rates, over tasks and with repeats.

    Δ − √(Σ_t (p_B − l_B)² + (u_A − p_A)²) / T and Δ + √(Σ_t (u_B − p_B)² + (p_A − l_A)²) / T with each task's Wilson
    bounds l, u. One task and one repeat: Newcombe's hybrid score interval. Repeats enter Wilson's intervals by their
    effective number.

    >>> states = [np.array([value]) for value in [1] * 56 + [0] * 14], [np.array([value]) for value in [1] * 48 + [0] * 32]
    >>> low, high = newcombe([states[1]], [states[0]])
    >>> round(low, 4), round(high, 4)
    (0.0524, 0.3339)
    """
    correlated_a, correlated_b = correlation(a), correlation(b)
    below, above, difference = 0.0, 0.0, 0.0
    for states_a, states_b in zip(a, b, strict=True):
        rate_a, rate_b = task_rate(states_a), task_rate(states_b)
        low_a, high_a = wilson_rate(rate_a, effective_number(states_a, correlated_a))
        low_b, high_b = wilson_rate(rate_b, effective_number(states_b, correlated_b))
        difference += rate_b - rate_a
        below += (rate_b - low_b) ** 2 + (high_a - rate_a) ** 2
        above += (high_b - rate_b) ** 2 + (rate_a - low_a) ** 2
    count = len(a)
    return (difference - math.sqrt(below)) / count, (difference + math.sqrt(above)) / count


def task_rate(states: Sequence[NDArray[np.int64]]) -> float:
    """Mean over initial states of the mean over repeats.

    >>> task_rate([np.array([1, 0]), np.array([1, 1])])
    0.75
    """
    return float(np.mean([outcomes.mean() for outcomes in states]))


def unpaired_test(a: StateOutcomes, b: StateOutcomes) -> tuple[float, str]:
    """Two-sided p for "the arms do not differ in any task", and the name of the test.

    Under this hypothesis the initial states of a task are exchangeable between the arms. The distribution of B's successes
    over all assignments is computed exactly and convolved over tasks. With one repeat that is Fisher's exact test; for one
    small table it is Barnard's instead, which has more power. With several, states keep their repeats together, as many
    as every state has.

    >>> p, name = unpaired_test([[np.array([1])] * 7 + [np.array([0])] * 8], [[np.array([1])] * 12 + [np.array([0])] * 3])
    >>> round(p, 3), name
    (0.068, 'Barnard exact')
    """
    repeats = min(len(outcomes) for arm in (a, b) for states in arm for outcomes in states)
    single = all(len(outcomes) == 1 for arm in (a, b) for states in arm for outcomes in states)
    counts = [
        (
            np.array([outcomes[:repeats].sum() for outcomes in one]),
            np.array([outcomes[:repeats].sum() for outcomes in other]),
        )
        for one, other in zip(a, b, strict=True)
    ]
    if single and len(a) == 1 and max(len(a[0]), len(b[0])) <= BARNARD_LIMIT:
        return _barnard(*counts[0]), "Barnard exact"
    chances: NDArray[np.floating[Any]] = np.ones(1)
    seen = 0
    for one, other in counts:
        chances = np.convolve(chances, _deal(np.concatenate([one, other]), len(other)))
        seen += int(other.sum())
    totals = np.arange(len(chances))
    if single:  # Fisher's rule: all that is no more likely than what was seen
        extreme = chances <= chances[seen] * (1 + 1e-7)
        name = "Fisher exact" if len(a) == 1 else "Fisher exact, stratified by task"
    else:
        expected = float((totals * chances).sum())
        extreme = np.abs(totals - expected) >= abs(seen - expected) - 1e-9
        name = "permutation of initial states, exact"
    return min(1.0, float(chances[extreme].sum())), name


def _barnard(a: NDArray[np.int64], b: NDArray[np.int64]) -> float:
    from scipy.stats import barnard_exact

    solved = int(a.sum()), int(b.sum())
    if sum(solved) in (0, len(a) + len(b)):
        return 1.0
    return float(barnard_exact([solved, (len(a) - solved[0], len(b) - solved[1])]).pvalue)


def _deal(values: NDArray[np.int64], count: int) -> NDArray[np.float64]:
    """(Σ values + 1,) chances of the sum of `count` of the values, drawn without replacement.

    Zeros and ones: the hypergeometric distribution. In general it is put together from one kind of value after another.
    For the values of one kind the number drawn is binomial if each is drawn with the same chance; given that `count`
    were drawn in all, that is the draw without replacement, and no binomial coefficient overflows.

    >>> _deal(np.array([0, 0, 1, 1]), 2).round(3)
    array([0.167, 0.667, 0.167])
    >>> _deal(np.array([0, 0, 2, 1]), 2).round(3)
    array([0.167, 0.333, 0.333, 0.167])
    """
    from scipy.stats import binom, hypergeom

    total = int(values.sum())
    if values.max() <= 1:
        known: NDArray[np.float64] = hypergeom.pmf(np.arange(total + 1), len(values), total, count)
        return known
    # chances[c, s]: c were drawn and they sum to s
    chances = np.zeros((count + 1, total + 1))
    chances[0, 0] = 1.0
    for value in np.unique(values):
        there = int((values == value).sum())
        weights = binom.pmf(np.arange(there + 1), there, count / len(values))
        after = np.zeros_like(chances)
        for drawn, weight in enumerate(weights[: count + 1]):
            shift = int(drawn * value)
            after[drawn:, shift:] += weight * chances[: count + 1 - drawn, : total + 1 - shift]
        chances = after
    last: NDArray[np.float64] = chances[count] / chances[count].sum()
    return last
