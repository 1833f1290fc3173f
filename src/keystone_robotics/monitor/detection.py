"""How an alarm does on the episodes of a run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keystone_robotics.monitor.calibration import Calibration
from keystone_robotics.monitor.conformal import Scores, smooth
from keystone_robotics.monitor.run import EpisodeScores, RunScores
from keystone_robotics.monitor.separation import Estimate, auroc, estimate, resampled_weights


@dataclass(frozen=True)
class Detection:
    """An alarm on a run; every number with its 95 % interval, by bootstrap over initial states.

    Attributes:
        score: of the alarm.
        direction: "high" or "low".
        successes: number of successful episodes.
        failures: number of failed episodes.
        auroc: within task, episodes compared up to the end of the shorter one.
        auroc_whole: the same over whole episodes: above 0.5 for noise where failures are longer.
        true_positives: share of failures in which it rang.
        true_negatives: share of successes in which it did not.
        balanced_accuracy: mean of the two.
        false_alarms: share of successes in which it rang.
        nominal: rate of false alarms that it was calibrated for.
        left: share of the episode that was left when it rang, mean over the failures in which it did.
    """

    score: str
    direction: str
    successes: int
    failures: int
    auroc: Estimate
    auroc_whole: Estimate
    true_positives: Estimate
    true_negatives: Estimate
    balanced_accuracy: Estimate
    false_alarms: Estimate
    nominal: float
    left: Estimate


@dataclass(frozen=True)
class _Outcome:
    """One episode: what `resampled_weights` needs, and the round in which the alarm rang."""

    task: str
    state: int
    success: bool
    alarmed: float  # nan if it did not
    rounds: int


def first_alarm(calibration: Calibration, scores: Scores) -> int | None:
    """The first round in which an alarm rings; None if it does not.

    >>> alarm = Calibration("dispersion", "high", "constant", (0.5,), 2, 0.05, 19)
    >>> first_alarm(alarm, [0.1, 0.7, 0.6, 0.9]), first_alarm(alarm, [0.1, 0.7, 0.1])
    (2, None)
    """
    for round, value in enumerate(smooth(scores, calibration.window)):
        if calibration.exceeds(float(value), round):
            return round
    return None


def detect(run: RunScores, calibration: Calibration, seed: int = 0) -> Detection:
    """Try the alarm on the stored rounds of a run."""
    outcomes = [_outcome(one, calibration) for one in run.episodes]
    random = np.random.default_rng(seed)
    weights = np.concatenate(
        [
            resampled_weights([one for one in outcomes if one.task == task], random)
            for task in sorted({one.task for one in outcomes})
        ],
        axis=1,
    )
    outcomes.sort(key=lambda one: one.task)  # stable: in the order of the weights
    alarmed = np.array([not np.isnan(one.alarmed) for one in outcomes])
    failed = np.array([not one.success for one in outcomes])
    left = np.array([0.0 if np.isnan(one.alarmed) else 1 - one.alarmed / max(one.rounds, 1) for one in outcomes])
    positives = (weights @ (failed & alarmed), weights @ failed)
    negatives = (weights @ (~failed & ~alarmed), weights @ ~failed)
    with np.errstate(divide="ignore", invalid="ignore"):
        both = (positives[0] / positives[1] + negatives[0] / negatives[1]) / 2
    known = np.isfinite(both)
    series = run.series(calibration.score, calibration.sign, calibration.window)
    return Detection(
        score=calibration.score,
        direction=calibration.direction,
        successes=int((~failed).sum()),
        failures=int(failed.sum()),
        auroc=auroc(series, seed=seed),
        auroc_whole=auroc(series, whole=True, seed=seed),
        true_positives=estimate(*positives),
        true_negatives=estimate(*negatives),
        balanced_accuracy=estimate(np.where(known, both, 0.0), known.astype(float)),
        false_alarms=estimate(negatives[1] - negatives[0], negatives[1]),
        nominal=calibration.false_alarms,
        left=estimate(weights @ (left * (failed & alarmed)), positives[0]),
    )


def _outcome(one: EpisodeScores, calibration: Calibration) -> _Outcome:
    scores = one.scores[calibration.score]
    alarmed = first_alarm(calibration, scores)
    record = one.record
    return _Outcome(record.task, record.episode, record.success, np.nan if alarmed is None else alarmed, len(scores))
