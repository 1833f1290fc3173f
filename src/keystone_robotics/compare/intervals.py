"""Intervals for success rates and for the difference of two arms on the same initial states."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray


def wilson_rate(rate: float, trials: float) -> tuple[float, float]:
    """Wilson's 95 % interval for a rate that is known from an effective number of trials, which need not be whole.

    (p + z²/2n ± z √(p(1−p)/n + z²/4n²)) / (1 + z²/n)

    >>> low, high = wilson_rate(0.8, 10)
    >>> round(low, 3), round(high, 3)
    (0.49, 0.943)
    """
    from scipy.stats import norm

    z = float(norm.ppf(0.975))
    centre = (rate + z**2 / (2 * trials)) / (1 + z**2 / trials)
    half = z * math.sqrt(rate * (1 - rate) / trials + z**2 / (4 * trials**2)) / (1 + z**2 / trials)
    # at rates of 0 and 1 the bound is exact, whatever rounding says
    return min(max(0.0, centre - half), rate), max(min(1.0, centre + half), rate)


def paired_bootstrap(
    differences: list[NDArray[np.float64]], resamples: int = 4000, seed: int = 0
) -> tuple[float, float, float]:
    """The mean difference of two arms and its 95 % interval, by resampling initial states within each task.

    Repeats of one initial state are not independent, so they go in as one number: their mean.

    Args:
        differences: for each task (n,) the mean difference over repeats, one for each initial state.
        resamples: of the bootstrap.
        seed: of the bootstrap, so that the same data give the same interval.

    Returns:
        The mean over tasks, and the 2.5th and 97.5th percentile of its resamples.

    >>> paired_bootstrap([np.ones(10), np.zeros(10)])
    (0.5, 0.5, 0.5)
    """
    random = np.random.default_rng(seed)
    means = np.zeros(resamples)
    for values in differences:
        means += values[random.integers(0, len(values), (resamples, len(values)))].mean(1)
    means /= len(differences)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(np.mean([values.mean() for values in differences])), float(low), float(high)
