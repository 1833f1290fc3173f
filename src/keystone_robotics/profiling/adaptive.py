"""What a round with adaptive K costs: where the first few candidates agree, and where the rest is drawn."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import torch

from keystone_robotics.profiling.measure import WARM_UP, PhaseRecorder, Subject
from keystone_robotics.sample.settings import trial
from keystone_robotics.select.agreement import AdaptiveRange


@dataclass(frozen=True)
class AdaptiveCost:
    """Median milliseconds of a round at batch size as profiled.

    Attributes:
        k: the range, ``4..16``.
        agree: the first few candidates agree: no more are drawn.
        disagree: they do not: two draws.
        every: all candidates in one draw.
    """

    k: str
    agree: float
    disagree: float
    every: float

    @property
    def share(self) -> float:
        """Share of rounds that must agree for adaptive K to be faster than all candidates at once; above 1 if it never is.

        >>> AdaptiveCost("4..16", agree=2.0, disagree=6.0, every=5.0).share
        0.25
        """
        saved = self.disagree - self.agree
        return (self.disagree - self.every) / saved if saved > 0 else float("inf")

    def __str__(self) -> str:
        share = self.share
        verdict = (
            "it never saves time here"
            if share > 1
            else f"it saves time if more than {100 * max(share, 0):.0f} % of the rounds agree"
        )
        return (
            f"k={self.k}: {self.agree:.3g} ms where the first agree, {self.disagree:.3g} ms where they do not, "
            f"{self.every:.3g} ms for all at once; {verdict}."
        )


def measure_adaptive(subject: Subject, span: AdaptiveRange, rounds: int) -> AdaptiveCost:
    """Time the three cases in turn, as a rehearsal; a limit of 1 and one of 0 bring the first two about."""
    numbers = f"{span.least}..{span.most}"
    cases: dict[str, int | str] = {"agree": f"{numbers}:1", "disagree": f"{numbers}:0", "every": int(span.most or 0)}
    times: dict[str, list[float]] = {name: [] for name in cases}
    recorder = PhaseRecorder(subject)
    try:
        with torch.no_grad(), trial(subject.handle.engine, recorder):
            for number in range(WARM_UP + rounds):
                for name, k in cases.items():
                    subject.handle.k = k
                    taken = sum(recorder.time_call().values())
                    if number >= WARM_UP:
                        times[name].append(taken)
    finally:
        subject.prepare()
    return AdaptiveCost(numbers, **{name: statistics.median(own) for name, own in times.items()})
