"""Distribution-free confidence intervals of quantiles, from order statistics."""

from __future__ import annotations

import math
from collections.abc import Sequence

#: Probability that the true quantile is below the interval, and that it is above.
TAIL = 0.05


def quantile_range(values: Sequence[float], quantile: float) -> tuple[float | None, float | None]:
    """The tightest interval of measurements that contains the true quantile, with an error of at most 5 % on each side.

    The number of n independent measurements below the true quantile is binomially distributed; nothing else is assumed. None
    for an end that lies beyond all of too few measurements.

    Args:
        values: n measurements, in any order.
        quantile: between 0 and 1, 0.5 for the median.

    >>> quantile_range([5, 1, 4, 2, 3], 0.5), quantile_range([1, 2, 3, 4], 0.5)
    ((1, 5), (None, None))
    >>> quantile_range(range(1, 31), 0.5), quantile_range(range(1, 31), 0.9), quantile_range(range(1, 29), 0.9)
    ((11, 20), (24, 30), (22, None))
    """
    ordered, count = sorted(values), len(values)
    at_most = 0.0
    low = high = None
    for below in range(count):  # how many measurements are below the quantile
        at_most += _binomial(count, below, quantile)
        if at_most <= TAIL:
            low = ordered[below]
        if at_most >= 1 - TAIL:
            high = ordered[below]
            break
    return low, high


def _binomial(count: int, successes: int, chance: float) -> float:
    """Computed with logarithms: the coefficients of a thousand measurements overflow."""
    log_ways = math.lgamma(count + 1) - math.lgamma(successes + 1) - math.lgamma(count - successes + 1)
    return math.exp(log_ways + successes * math.log(chance) + (count - successes) * math.log1p(-chance))
