"""Minimum detectable differences."""

from __future__ import annotations

import math

from keystone_robotics.compare.paired import Differences, standard_error
from keystone_robotics.compare.repeats import correlation, effective_number
from keystone_robotics.compare.unpaired import StateOutcomes, task_rate


def paired_effect(differences: Differences) -> float:
    """Minimum detectable effect, 80 % power at two-sided 5 %: (z₀.₉₇₅ + z₀.₈) · standard error at the discordance that
    was seen.

    >>> import numpy as np
    >>> round(paired_effect([[np.array([1]), np.array([-1])] * 10 + [np.array([0])] * 20]), 2)
    0.32
    """
    return min(1.0, _factor() * standard_error(differences)[1])


def states_for(effect: float, states: int, detectable: float) -> int:
    """Initial states at which a difference of ``effect`` would show, if ``detectable`` is what shows at ``states``.

    >>> states_for(0.05, 100, 0.10)
    400
    """
    return math.ceil(round(states * (detectable / effect) ** 2, 6))


def unpaired_effect(a: StateOutcomes, b: StateOutcomes) -> float:
    """The same for unpaired arms: √(Σ_t p(1 − p)(1/n_A + 1/n_B)) / T with a task's rate p over both arms and effective
    numbers n.

    Half a success and half a failure are added to every task's rate, so that a rate of 1 does not give zero variance.

    >>> import numpy as np
    >>> a, b = ([np.array([value]) for value in [1] * solved + [0] * (400 - solved)] for solved in (200, 240))
    >>> round(unpaired_effect([a], [b]), 3)
    0.099
    """
    correlated_a, correlated_b = correlation(a), correlation(b)
    variance = 0.0
    for states_a, states_b in zip(a, b, strict=True):
        n_a, n_b = effective_number(states_a, correlated_a), effective_number(states_b, correlated_b)
        rate = (n_a * task_rate(states_a) + n_b * task_rate(states_b) + 0.5) / (n_a + n_b + 1)
        variance += rate * (1 - rate) * (1 / n_a + 1 / n_b)
    return min(1.0, _factor() * math.sqrt(variance) / len(a))


def _factor() -> float:
    from scipy.stats import norm

    return float(norm.ppf(0.975) + norm.ppf(0.8))
