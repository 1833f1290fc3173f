"""What a profile found, and which K follows from it."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from keystone_robotics.profiling.adaptive import AdaptiveCost
from keystone_robotics.profiling.measure import PHASES, Cell
from keystone_robotics.profiling.memory import Peak
from keystone_robotics.profiling.ranges import quantile_range

FloatArray = npt.NDArray[np.float64]

#: How much longer than with K = 1 a round may take by default, as a fraction.
TOLERANCE = 0.05
#: More candidates cannot take less time on the same path: a ratio to fewer below this is more than noise.
IMPLAUSIBLE = 0.75


@dataclass(frozen=True)
class Cost:
    """A round with K candidates. Times are in milliseconds, memory in MiB.

    Attributes:
        k: candidates.
        clients: how many shared the device.
        rounds: measured.
        median, p90, p99: of the whole call of the policy.
        encode, denoise, select, other: how the median is made up, see `_split_median`.
        ratio: median over rounds of the time relative to the policy as it is: K = 1 with its own number of denoising steps, in
            the same round and with as many clients.
        peak: memory in use at most, weights included; None if it was not measured.
        extra: how much of it came with the round.
        ratio_low, ratio_high: between which the true ratio lies, see `quantile_range`; None if there are too few rounds.
        p90_low, p90_high: the same of the 90th percentile.
        steps: denoising steps; None for as many as the policy takes as it is, see `Profile.steps`.
    """

    k: int
    clients: int
    rounds: int
    median: float
    p90: float
    p99: float
    encode: float
    denoise: float
    select: float
    other: float
    ratio: float
    peak: float | None = None
    extra: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    p90_low: float | None = None
    p90_high: float | None = None
    steps: int | None = None


def summarize(
    times: Mapping[Cell, Sequence[Mapping[str, float]]], peaks: Mapping[tuple[int, int | None], Peak | None]
) -> tuple[Cost, ...]:
    """Statistics of what was measured.

    Args:
        times: the milliseconds by phase of every round; the same rounds in the same order for every cell.
        peaks: by (K, steps).
    """
    totals = {cell: np.array([sum(phases.values()) for phases in rounds]) for cell, rounds in times.items()}
    costs = []
    for cell, rounds in times.items():
        total = totals[cell]
        ratios = total / totals[Cell(cell.clients, 1)]
        p90, p99 = np.percentile(total, [90, 99])
        ratio_low, ratio_high = quantile_range(ratios.tolist(), 0.5)
        p90_low, p90_high = quantile_range(total.tolist(), 0.9)
        phases = _split_median(rounds, total)
        peak = peaks.get((cell.k, cell.steps))
        costs.append(
            Cost(
                cell.k, cell.clients, len(rounds), float(np.median(total)), float(p90), float(p99), **phases,
                ratio=float(np.median(ratios)), ratio_low=ratio_low, ratio_high=ratio_high, p90_low=p90_low, p90_high=p90_high,
                peak=None if peak is None else peak.peak,
                extra=None if peak is None else peak.peak - peak.before,
                steps=cell.steps,
            )
        )  # fmt: skip
    return tuple(sorted(costs, key=lambda cost: (cost.clients, cost.steps or 0, cost.k)))


def _split_median(rounds: Sequence[Mapping[str, float]], total: FloatArray) -> dict[str, float]:
    """The median time by phase: in the proportions of the middle half of the rounds, by time.

    Medians of the phases would not add up to it, least of all where rounds are of two kinds (a busy machine).
    """
    count = len(rounds)
    middle = np.argsort(total, kind="stable")[count // 4 : count - count // 4]
    sums = {phase: sum(rounds[number][phase] for number in middle) for phase in PHASES}
    scale = float(np.median(total)) / sum(sums.values())
    return {phase: scale * spent for phase, spent in sums.items()}


def _may_be_either(low: float | None, limit: float, high: float | None) -> bool:
    """Whether a range has the limit inside; None is unbounded."""
    return (low is None or low <= limit) and (high is None or high > limit)


@dataclass(frozen=True)
class Profile:
    """Latency and memory of a policy's rounds against K, and against the number of denoising steps, on one machine.

    Attributes:
        policy: its name.
        adapter: that sampled it.
        batch: observations per round; None if that is not known.
        device: its name and kind.
        versions: of what takes part.
        fingerprint: of the policy's architecture, the device, the versions and the batch: equal where a profile can be reused.
        costs: one for each K, number of steps and number of clients.
        memory: how memory was measured.
        tolerance: how much longer than with K = 1 a round may take, as a fraction.
        budget_ms: how long it may take, if that is given.
        stopped: the smallest K that did not fit into memory, if one did not.
        note: what to know about the split.
        date: when it was measured.
        path: on which K > 1 were drawn, "plain" or "fast" (see `keystone.Handle.path`). K = 1 is always the policy's own code.
        steps: how many denoising steps the policy takes as it is; None if only its caller knows.
        adaptive: of ranges of K that were asked for, ``4..16``.
        left_open: numbers of steps with which K is not certain, so that nothing is stored for them though it is for the others.
    """

    policy: str
    adapter: str
    batch: int | None
    device: str
    versions: dict[str, str]
    fingerprint: str
    costs: tuple[Cost, ...]
    memory: str
    tolerance: float = TOLERANCE
    budget_ms: float | None = None
    stopped: int | None = None
    note: str = ""
    date: str = ""
    path: str = "plain"
    steps: int | None = None
    adaptive: tuple[AdaptiveCost, ...] = ()
    left_open: tuple[int, ...] = ()

    @property
    def doubt(self) -> str:
        """Why the measurement is implausible; empty if it is not."""
        for clients, steps in itertools.product(self.clients, self.numbers_of_steps):
            # On the fast path K candidates may well take less time than one in the policy's own code, but not than fewer there.
            alike = [cost for cost in self.of(clients, steps) if cost.k > 1 or self.path == "plain"]
            for fewer, more in itertools.combinations(alike, 2):
                if more.ratio < IMPLAUSIBLE * fewer.ratio:
                    return (
                        f"K = {more.k} took {more.ratio / fewer.ratio:.2f} times as long as K = {fewer.k}, which cannot be: "
                        "something else disturbed the measurement. On a CPU these are threads that wait for busy cores: set "
                        "OMP_NUM_THREADS=1, and measure anew."
                    )
        return ""

    @property
    def clients(self) -> tuple[int, ...]:
        """The numbers of clients that were measured."""
        return tuple(sorted({cost.clients for cost in self.costs}))

    @property
    def numbers_of_steps(self) -> tuple[int | None, ...]:
        """The numbers of denoising steps that were measured; the first, None, is the policy's own."""
        return (None, *sorted({cost.steps for cost in self.costs if cost.steps is not None}))

    def of(self, clients: int = 1, steps: int | None = None) -> tuple[Cost, ...]:
        """The costs with as many clients and steps, by default the policy's own number, by ascending K."""
        return tuple(cost for cost in self.costs if (cost.clients, cost.steps) == (clients, steps))

    def no_slower(self, clients: int | None = None) -> tuple[Cost, ...]:
        """What costs no more than the policy as it is (K = 1 with its own number of steps), beyond the tolerance, by the median
        of ratios; with as many clients, by default the most that were measured.
        """
        limit, clients = 1 + self.tolerance, clients or self.clients[-1]
        return tuple(cost for cost in self.costs if cost.clients == clients and cost.ratio <= limit)

    def within_tolerance(self, clients: int | None = None) -> int:
        """The largest measured K up to which rounds take at most ``1 + tolerance`` times as long as with K = 1 (median of
        ratios), with as many clients on the device, by default the most that were measured.
        """
        costs = self.of(clients or self.clients[-1])
        return [cost.k for cost in itertools.takewhile(lambda cost: cost.ratio <= 1 + self.tolerance, costs)][-1]

    def within_budget(self, clients: int | None = None) -> int | None:
        """The largest measured K up to which nine rounds in ten stay within the budget; None if K = 1 does not, nor the next K,
        which may take less time on the fast path, or if no budget is set.
        """
        budget = self.budget_ms
        if budget is None:
            return None
        one, *more = self.of(clients or self.clients[-1])
        within = [cost.k for cost in itertools.takewhile(lambda cost: cost.p90 <= budget, more)]
        return max(within, default=1 if one.p90 <= budget else None)

    def uncertain(self, clients: int | None = None) -> tuple[int, ...]:
        """The K of which these rounds do not tell for certain whether they are within the budget if one is set, else within
        the tolerance: the range of what decides has the limit inside.
        """
        costs = (cost for cost in self.of(clients or self.clients[-1]) if cost.k > 1 or self.budget_ms is not None)
        if self.budget_ms is None:
            limit, ranges = 1 + self.tolerance, {cost.k: (cost.ratio_low, cost.ratio_high) for cost in costs}
        else:
            limit, ranges = self.budget_ms, {cost.k: (cost.p90_low, cost.p90_high) for cost in costs}
        return tuple(k for k, (low, high) in ranges.items() if _may_be_either(low, limit, high))

    def maybe_slower(self, clients: int | None = None) -> tuple[Cost, ...]:
        """Those of which these rounds do not tell for certain whether they are in `no_slower`."""
        limit, clients = 1 + self.tolerance, clients or self.clients[-1]
        others = (cost for cost in self.costs if cost.clients == clients and (cost.k > 1 or cost.steps is not None))
        return tuple(cost for cost in others if _may_be_either(cost.ratio_low, limit, cost.ratio_high))

    def best(self, clients: int | None = None) -> int:
        """K for use: within the budget if one is set (1 if not even that is), else within the tolerance; under the load that
        was asked for, unless told otherwise.

        >>> def cost(k, ms):
        ...     return Cost(k, 1, 9, ms, ms, ms, 0.0, ms, 0.0, 0.0, ratio=ms / 10)
        >>> found = Profile("mine", "site", 1, "cpu", {}, "", (cost(1, 10), cost(4, 10.4), cost(8, 18)), "")
        >>> found.best(), dataclasses.replace(found, budget_ms=20).best(), dataclasses.replace(found, budget_ms=9).best()
        (4, 8, 1)
        """
        return self.within_tolerance(clients) if self.budget_ms is None else self.within_budget(clients) or 1

    def as_dict(self) -> dict[str, Any]:
        """For JSON; the K that follow from the measurement are among it."""
        found = {
            str(clients): {
                "best": self.best(clients),
                "within_tolerance": self.within_tolerance(clients),
                "within_budget": self.within_budget(clients),
                "uncertain": list(self.uncertain(clients)),
                "no_slower": [{"k": cost.k, "steps": cost.steps or self.steps} for cost in self.no_slower(clients)],
            }
            for clients in self.clients
        }
        return {**dataclasses.asdict(self), "found": found}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Profile:
        """The opposite of `as_dict`."""
        fields = {field.name for field in dataclasses.fields(cls)}
        costs = tuple(Cost(**cost) for cost in values["costs"])
        adaptive = tuple(AdaptiveCost(**one) for one in values.get("adaptive", ()))
        known = {name: value for name, value in values.items() if name in fields}
        left_open = tuple(values.get("left_open", ()))
        return cls(**{**known, "costs": costs, "adaptive": adaptive, "left_open": left_open})

    def __str__(self) -> str:
        from keystone_robotics.profiling.table import lines

        return "\n".join(lines(self))
