"""The race: which arms run next, and which are out. Decisions follow from the outcomes alone, so a race can be replayed.

Arms run in groups (one sample, K candidates). All running arms see the same initial states with the same noise, in blocks of
one state of every task. Two things end an arm:

- **Eliminated.** A bet against "this arm is the best of its group": before every batch the arm that leads the group is noted,
  and the bet is that it does better in the next blocks, as in `compare.sequential.bet`. If the arm is the best, the expected
  difference to any arm that was named beforehand is 0 or less, so the capital is a supermartingale and reaches 1/α with a
  chance of α at most, however often one looks (Ville). It needs no correction for the number of arms: a false elimination is
  one of *the* best arm, whose capital is one process.
- **Dropped.** The budget is divided among stages; at the end of a stage a group keeps the better half of the arms that began
  it (sequential halving), or a third or a quarter where the budget is too small for halves. That is a choice under a budget,
  without a guarantee, and is reported as such.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from keystone_robotics.compare.sequential import BETS, log_capital, log_growth

ALPHA = 0.05
#: Blocks between two looks: a third of those so far, within these bounds.
LOOKS = (2, 10)
#: Arms of a group of which none is dropped any more.
FINALISTS = 2
#: One in how many arms is kept at the end of a stage: the first for which the budget suffices.
ONE_IN = (2, 3, 4)


@dataclass(frozen=True)
class RaceBatch:
    """What runs next.

    Attributes:
        arms: indices.
        first: number of the first initial state of each task.
        count: initial states of each task.
    """

    arms: tuple[int, ...]
    first: int
    count: int


@dataclass
class ArmState:
    """One arm of a race.

    Attributes:
        group: number of its group.
        blocks: that it has run.
        successes: in them.
        growth: (bets,) log of the capital of the bets against it.
        status: "running", "eliminated" or "dropped".
        eliminated_by: the arm that led its group when it left the race; None while it runs.
    """

    group: int
    blocks: int = 0
    successes: int = 0
    growth: NDArray[np.float64] = field(default_factory=lambda: np.zeros(len(BETS)))
    status: str = "running"
    eliminated_by: int | None = None

    @property
    def e_value(self) -> float:
        """Of "it is not the best of its group"."""
        return math.exp(min(float(log_capital(self.growth)), 700.0))


class Race:
    """A race among arms under a budget of episodes.

    Args:
        groups: for each arm the number of its group; ties are won by the arm that comes first.
        tasks: number of tasks; a block is one episode of each.
        budget: episodes.
        alpha: chance that the best arm of a group is eliminated.
        neighbours: for each arm those that differ in one option. After few states many arms are equal; then those are kept
            whose neighbours did better.

    >>> race = Race([0, 0], tasks=1, budget=60)
    >>> while batch := race.next_batch():
    ...     race.add(np.array([[[0]] * batch.count, [[1]] * batch.count]))
    >>> race.arms[0].status, race.leader(0), race.used
    ('eliminated', 1, 16)
    """

    def __init__(
        self,
        groups: Sequence[int],
        tasks: int,
        budget: int,
        alpha: float = ALPHA,
        neighbours: Sequence[Sequence[int]] | None = None,
    ) -> None:
        self._one_in = next((one_in for one_in in ONE_IN if _least(groups, tasks, one_in) <= budget), ONE_IN[-1])
        self._neighbours = neighbours or [()] * len(groups)
        self.arms = [ArmState(group) for group in groups]
        self.tasks, self.budget, self.alpha = tasks, budget, alpha
        self.blocks = self.used = 0
        self._batch: RaceBatch | None = None
        self._stage: _Stage | None = None

    def running(self) -> list[int]:
        """Arms of the groups that are not decided."""
        groups = self._undecided()
        return [arm for arm, one in enumerate(self.arms) if one.status == "running" and one.group in groups]

    def leader(self, group: int) -> int:
        """The arm with the most successes among those of a group that are left."""
        return max(self._left(group), key=lambda arm: (self.arms[arm].successes, -arm))

    def next_batch(self) -> RaceBatch | None:
        """What runs next; None if the race is over. Call `add` with its outcomes before asking again."""
        while self.running():
            cost = len(self.running()) * self.tasks
            if self._stage is None:
                if cost > self.budget - self.used:
                    return None
                self._stage = self._begin_stage(cost)
            if cost <= self._stage.end - self.used:
                count = min((self._stage.end - self.used) // cost, max(LOOKS[0], min(LOOKS[1], self.blocks // 3)))
                self._batch = RaceBatch(tuple(self.running()), self.blocks, count)
                return self._batch
            if self._stage.is_last:
                return None
            self._drop_worst(self._stage)
            self._stage = None
        return None

    def add(self, outcomes: NDArray[np.generic]) -> None:
        """Count the outcomes of the last batch, and eliminate.

        Args:
            outcomes: (arms, blocks, tasks) of the batch's arms, in its order: 1 for a success.
        """
        batch = self._batch
        assert batch is not None, "next_batch first"
        values = np.asarray(outcomes, np.float64)
        for row, arm in enumerate(batch.arms):
            one = self.arms[arm]
            others = [at for at, arm_at in enumerate(batch.arms) if self.arms[arm_at].group == one.group and at != row]
            if self.blocks:  # before the first block nobody leads: the bet is on the mean of the others
                others = [max(others, key=lambda at: (self.arms[batch.arms[at]].successes, -at))]
            one.growth = one.growth + log_growth((values[others].mean(0) - values[row]).ravel())
        for row, arm in enumerate(batch.arms):
            self.arms[arm].blocks += batch.count
            self.arms[arm].successes += int(values[row].sum())
        self.blocks += batch.count
        self.used += len(batch.arms) * batch.count * self.tasks
        self._batch = None
        for group in {self.arms[arm].group for arm in batch.arms}:
            best = self.leader(group)
            for arm in self._left(group):
                if arm != best and self.arms[arm].e_value >= 1 / self.alpha:
                    self.arms[arm].status, self.arms[arm].eliminated_by = "eliminated", best

    def _around(self, arm: int) -> float:
        """The success rate of an arm's neighbours, of all that they have run."""
        near = [self.arms[other] for other in self._neighbours[arm]]
        blocks = sum(one.blocks for one in near)
        return sum(one.successes for one in near) / (blocks * self.tasks) if blocks else 0.0

    def _left(self, group: int) -> list[int]:
        return [arm for arm, one in enumerate(self.arms) if one.group == group and one.status == "running"]

    def _undecided(self) -> dict[int, int]:
        """Numbers of arms left in the groups that have more than one."""
        sizes = {group: len(self._left(group)) for group in {one.group for one in self.arms}}
        return {group: size for group, size in sizes.items() if size > 1}

    def _begin_stage(self, cost: int) -> _Stage:
        sizes = self._undecided()
        share = (self.budget - self.used) // len(_stages(sizes, self._one_in))
        return _Stage(self.used + max(cost, share), sizes)

    def _drop_worst(self, stage: _Stage) -> None:
        for group, size in stage.sizes.items():
            left = sorted(self._left(group), key=lambda arm: (-self.arms[arm].successes, -self._around(arm), arm))
            for arm in left[_kept(size, self._one_in) :]:
                self.arms[arm].status, self.arms[arm].eliminated_by = "dropped", left[0]


@dataclass(frozen=True)
class _Stage:
    """A part of the budget.

    Attributes:
        end: episodes used at its end.
        sizes: of the undecided groups when it began.
    """

    end: int
    sizes: dict[int, int]

    @property
    def is_last(self) -> bool:
        return max(self.sizes.values()) <= FINALISTS


def _kept(size: int, one_in: int) -> int:
    """Arms of a group that are kept at the end of a stage."""
    return max(FINALISTS, math.ceil(size / one_in))


def _stages(sizes: Mapping[int, int], one_in: int) -> list[int]:
    """Arms that run in each stage if nobody is eliminated: the last is of finalists.

    >>> _stages({0: 9, 1: 4}, one_in=2), _stages({0: 9, 1: 4}, one_in=4)
    ([13, 7, 5, 4], [13, 5, 4])
    """
    found = [sum(sizes.values())]
    while max(sizes.values()) > FINALISTS:
        sizes = {group: _kept(size, one_in) for group, size in sizes.items()}
        found.append(sum(sizes.values()))
    return found


def _least(groups: Sequence[int], tasks: int, one_in: int) -> int:
    """Episodes if every stage is one block and nobody is eliminated."""
    sizes = {group: size for group, size in Counter(groups).items() if size > 1}
    return tasks * sum(_stages(sizes, one_in)) if sizes else 0


def least_budget(groups: Sequence[int], tasks: int) -> int:
    """Episodes of the shortest race.

    >>> least_budget([0] * 8, tasks=2)  # 8 arms, then 2
    20
    """
    return _least(groups, tasks, ONE_IN[-1])
