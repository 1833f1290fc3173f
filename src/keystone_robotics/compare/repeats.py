"""Effective number of episodes: repeats of one initial state are not independent."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def correlation(tasks: Sequence[Sequence[NDArray[np.int64]]]) -> float:
    """Intraclass correlation of repeats of one initial state within a task: 0 independent, 1 determined by the state.

    The estimate from the analysis of variance, with squares between and within the states of all tasks:
    ρ = (B − W) / (B + (m − 1) W), m repeats, B = Σ m (ȳ_i − ȳ_t)² / Σ (n_t − 1), W = Σ (y − ȳ_i)² / Σ n_t (m − 1); clipped to
    [0, 1], and 1 where there is nothing to estimate it from.

    Args:
        tasks: for each task, for each initial state (m,) outcomes, 0 or 1.

    >>> correlation([[np.array([1, 1]), np.array([0, 0])]])
    1.0
    >>> correlation([[np.array([1, 0]), np.array([0, 1])]])
    0.0
    """
    between, within, free_between, free_within = 0.0, 0.0, 0, 0
    for states in tasks:
        solved = np.array([outcomes.sum() for outcomes in states])
        sizes = np.array([len(outcomes) for outcomes in states])
        rates = solved / sizes
        between += float((sizes * (rates - solved.sum() / sizes.sum()) ** 2).sum())
        within += float((solved * (1 - rates)).sum())  # Σ (y − ȳ)² of zeros and ones
        free_between += len(states) - 1
        free_within += int((sizes - 1).sum())
    if not free_between or not free_within or between + within == 0:
        return 1.0
    between, within = between / free_between, within / free_within
    extra = free_within / sum(len(states) for states in tasks)  # m − 1, on average
    return min(max((between - within) / (between + extra * within), 0.0), 1.0)


def effective_number(states: Sequence[NDArray[np.int64]], correlated: float) -> float:
    """Effective number of independent episodes of a task: n / (1 + (m − 1) ρ), the design effect of clusters.

    >>> effective_number([np.array([1, 0])] * 10, 0.0), effective_number([np.array([1, 0])] * 10, 1.0)
    (20.0, 10.0)
    """
    sizes = np.array([len(outcomes) for outcomes in states])
    mean_size = float((sizes**2).sum() / sizes.sum())
    return float(sizes.sum()) / (1 + (mean_size - 1) * correlated)
