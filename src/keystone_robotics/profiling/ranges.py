"""How sure a quantile is: a confidence interval from the sorted measurements, whatever their distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence

#: How often the true quantile may be below a range, and how often above it.
EACH_SIDE = 0.05


def quantile_range(values: Sequence[float], quantile: float) -> tuple[float | None, float | None]:
    """The measurements between which the true quantile lies, wrong on each side in one case of twenty at most.

    Of n independent measurements, those below the true quantile are binomially distributed; nothing else is assumed. With
    few measurements one end, or both, is beyond all of them: None.

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
        if at_most <= EACH_SIDE:
            low = ordered[below]
        if at_most >= 1 - EACH_SIDE:
            high = ordered[below]
            break
    return low, high


def _binomial(count: int, successes: int, chance: float) -> float:
    """By logarithms: the coefficients of a thousand measurements are no floating-point numbers."""
    log_ways = math.lgamma(count + 1) - math.lgamma(successes + 1) - math.lgamma(count - successes + 1)
    return math.exp(log_ways + successes * math.log(chance) + (count - successes) * math.log1p(-chance))
