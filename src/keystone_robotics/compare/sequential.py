"""Sequential test: stays valid however often one looks at the data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

#: Two directions share α = 5 %: each may be wrong with a chance of 1/40 over the whole course.
THRESHOLD = 40.0
BETS = (np.arange(50) + 0.5) / 50


@dataclass(frozen=True)
class Sequential:
    """The state of two bets, one on "B is better" and one on "A is better".

    Attributes:
        b_better: e-value for "B is better": the capital of a bet of 1.
        a_better: e-value for "A is better".
        peak_b: largest value of b_better so far.
        peak_a: largest value of a_better so far.
        states: number of initial states used, over all tasks.
        threshold: that an e-value must reach.
        decided_at: number of initial states after which the first e-value reached it; None if neither did.
        decision: "B is better", "A is better" or "go on".
    """

    b_better: float
    a_better: float
    peak_b: float
    peak_a: float
    states: int
    threshold: float
    decided_at: int | None
    decision: str

    @property
    def advice(self) -> str:
        """Whether collecting episodes may stop."""
        return "go on" if self.decided_at is None else "stop allowed"


def bet(tasks: Sequence[Sequence[float]]) -> Sequential:
    """Bet on the differences of initial states in the order of their numbers.

    A unit is bet on "the mean difference over tasks is above 0": with the bet λ it becomes Π (1 + λ d) over the states
    so far, and the capital is the mean over fifty λ in (0, 1). If the mean difference is 0 or less, its expectation
    never exceeds 1: in a block with one state of every task E Π (1 + λ d_t) = Π (1 + λ μ_t) ≤ (1 + λ mean μ_t)^T ≤ 1,
    tasks being independent. So the chance that it is ever 40 or more is 1/40 at most (Ville), and one may look after
    every block and stop when one likes. The other bet is the same on −d. With one repeat, 1 + λ and 1 − λ are twice the
    chance of a discordant pair under p = (1 + λ)/2, so this is the likelihood ratio of McNemar's test, mixed over p in
    (½, 1).

    Args:
        tasks: for each task (n,) differences in [−1, 1], one for each initial state. Only full blocks count: as many
            states of each task as the shortest has.

    >>> bet([[1.0] * 8]).decision, bet([[1.0, -1.0] * 20]).decision
    ('B is better', 'go on')
    """
    blocks = min(len(differences) for differences in tasks)
    values = np.array([differences[:blocks] for differences in tasks], dtype=np.float64).T
    up, down = _capital(values), _capital(-values)
    decision = "go on"
    reached = np.flatnonzero(np.maximum(up, down) >= THRESHOLD)
    if len(reached):
        decision = "B is better" if up[reached[0]] > down[reached[0]] else "A is better"
    return Sequential(
        b_better=float(up[-1]),
        a_better=float(down[-1]),
        peak_b=float(up.max()),
        peak_a=float(down.max()),
        states=values.size,
        threshold=THRESHOLD,
        decided_at=int(reached[0] + 1) * len(tasks) if len(reached) else None,
        decision=decision,
    )


def _capital(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """(blocks,) the capital after each block of (blocks, tasks) differences."""
    capital: NDArray[np.float64] = np.exp(np.minimum(log_capital(log_growth(values).cumsum(0)), 700.0))
    return capital


def log_growth(differences: NDArray[np.float64]) -> NDArray[np.float64]:
    """(…, bets) log Π (1 + λ d) over the last axis of (…, n) differences in [−1, 1], for each bet λ of `BETS`."""
    growth: NDArray[np.float64] = np.log1p(differences[..., None] * BETS).sum(-2)
    return growth


def log_capital(growth: NDArray[np.float64]) -> NDArray[np.float64]:
    """(…,) log of the e-value: the mean over bets of the capital that has grown by (…, bets)."""
    capital: NDArray[np.float64] = np.logaddexp.reduce(growth, axis=-1) - np.log(len(BETS))
    return capital
