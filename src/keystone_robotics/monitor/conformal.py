"""Limits on a score, from successful episodes alone, with a known rate of false alarms (split conformal prediction).

The rate holds for episodes exchangeable with those of the calibration: same policy, tasks, initial states and robot.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Union

import numpy as np
from numpy.typing import NDArray

from keystone_robotics.errors import KeystoneError

Floats = NDArray[np.float64]
#: The scores of the rounds of one episode.
Scores = Union[Sequence[float], Floats]

WINDOW = 3  #: rounds that a score is averaged over
FEWEST = 3  #: episodes that the mean and the deviation of a band need at a round; the last one that has them holds on


def window_mean(values: Sequence[float]) -> float:
    """Mean of a score over a window of rounds; nan entries say nothing and do not count.

    >>> window_mean([float("nan"), 1.0, 2.0])
    1.5
    """
    known = [value for value in values if value == value]
    return sum(known) / len(known) if known else math.nan


def smooth(series: Scores, window: int) -> Floats:
    """(rounds,) the mean of the last ``window`` rounds, at every round; of fewer at the beginning.

    >>> smooth([0.0, 2.0, 4.0], 2)
    array([0., 1., 3.])
    """
    values = [float(value) for value in series]
    return np.array([window_mean(values[max(0, t + 1 - window) : t + 1]) for t in range(len(series))], np.float64)


def needed(false_alarms: float) -> int:
    """Successful episodes that a rate of false alarms needs: with n of them, 1 / (n + 1) is the smallest.

    >>> needed(0.05), needed(0.1)
    (19, 9)
    """
    return math.ceil(1 / Fraction(str(false_alarms))) - 1


def quantile(values: Sequence[float], false_alarms: float) -> float:
    """The ⌈(n + 1)(1 − α)⌉-th smallest of n values: a further, exchangeable one exceeds it with probability α at most.

    >>> quantile(range(1, 20), 0.05), quantile(range(1, 20), 0.1)
    (19.0, 18.0)

    Raises:
        KeystoneError: if there are too few values, with the number needed.
    """
    rank = math.ceil((len(values) + 1) * (1 - Fraction(str(false_alarms))))
    if rank > len(values):
        raise KeystoneError(
            f"{len(values)} successful episodes are too few for a false-alarm rate of {false_alarms:g}: "
            f"{needed(false_alarms)} are needed"
        )
    return float(np.sort(np.asarray(values, np.float64))[rank - 1])


def constant_limit(series: Sequence[Scores], false_alarms: float, window: int = WINDOW) -> tuple[float, ...]:
    """One limit for all rounds: a fresh success exceeds it in any of its rounds with probability α at most.

    Args:
        series: the scores of the rounds of each successful episode, higher is worse.
        false_alarms: α.
        window: rounds that a score is averaged over.
    """
    _check(series, false_alarms, window)
    return (quantile([_highest(smooth(one, window)) for one in series], false_alarms),)


def band_limit(series: Sequence[Scores], false_alarms: float, window: int = WINDOW, seed: int = 0) -> tuple[float, ...]:
    """One limit for each round (a one-sided functional band); the last one holds for all later rounds.

    Half of the episodes gives the mean and the standard deviation at each round, the other half the factor on the deviation
    that a fresh success exceeds in any of its rounds with probability α at most.

    Raises:
        KeystoneError: if there are too few episodes, with the number needed.
    """
    _check(series, false_alarms, window)
    least = 2 * needed(false_alarms)
    if len(series) < max(least, 2 * FEWEST):
        raise KeystoneError(
            f"{len(series)} successful episodes are too few for a band with a false-alarm rate of {false_alarms:g}, which "
            f"uses one half for its shape and the other for its height: {max(least, 2 * FEWEST)} are needed"
        )
    order = np.random.RandomState(seed).permutation(len(series))  # a stream that numpy never changes
    smoothed = [smooth(series[index], window) for index in order]
    shaping, ranking = smoothed[: len(series) // 2], smoothed[len(series) // 2 :]
    centre, deviation = _shape(shaping)

    def excess(one: Floats) -> float:
        places = np.minimum(np.arange(len(one)), len(centre) - 1)
        return _highest((one - centre[places]) / deviation[places])

    factor = quantile([excess(one) for one in ranking], false_alarms)
    return tuple(float(value) for value in centre + factor * deviation)


def _shape(series: Sequence[Floats]) -> tuple[Floats, Floats]:
    """Mean and standard deviation at each round, while there are enough episodes; at least one round."""
    table = np.full((len(series), max(1, *(len(one) for one in series))), np.nan)
    for row, one in zip(table, series):
        row[: len(one)] = one
    known = np.isfinite(table)
    overall = float(table[known].std()) if known.any() else 0.0
    centre, deviation = [], []
    for values, present in zip(table.T, known.T):
        if present.sum() >= FEWEST:
            centre.append(values[present].mean())
            deviation.append(values[present].std(ddof=1))
        else:  # the round says nothing (the first of a comparison), or few episodes are that long
            centre.append(centre[-1] if centre else (float(table[known].mean()) if known.any() else 0.0))
            deviation.append(deviation[-1] if deviation else overall)
    floor = 0.1 * overall or 1e-12  # where all episodes agree by chance, the band must not close
    return np.array(centre), np.maximum(deviation, floor)


def _highest(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(known.max()) if len(known) else -math.inf


def _check(series: Sequence[Scores], false_alarms: float, window: int) -> None:
    if not 0 < false_alarms < 1:
        raise KeystoneError(f"false alarms {false_alarms:g}: expected a rate between 0 and 1, such as 0.05")
    if window < 1:
        raise KeystoneError(f"window {window}: expected 1 round or more")
    if len(series) < needed(false_alarms):
        raise KeystoneError(
            f"{len(series)} successful episodes are too few for a false-alarm rate of {false_alarms:g}: "
            f"{needed(false_alarms)} are needed"
        )
