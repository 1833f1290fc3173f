"""The comparison of arm B with arm A, in one record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from keystone_robotics.compare import paired, unpaired
from keystone_robotics.compare.intervals import paired_bootstrap, wilson_rate
from keystone_robotics.compare.multiple import holm
from keystone_robotics.compare.outcomes import Mode, Outcomes
from keystone_robotics.compare.pairing import Pairing, arrange, audit, compared
from keystone_robotics.compare.power import paired_effect, unpaired_effect
from keystone_robotics.compare.repeats import correlation, effective_number
from keystone_robotics.compare.sequential import Sequential, bet
from keystone_robotics.errors import KeystoneError, nearest_name
from keystone_robotics.records import EpisodeRecord

ALPHA = 0.05
Outcome = Literal["better", "no clear difference", "worse"]


@dataclass(frozen=True)
class Rate:
    """Success rate of one arm. Rates are fractions of episodes, not percent.

    Attributes:
        episodes: number of episodes, all repeats.
        states: number of distinct initial states.
        rate: mean over tasks; errors count as failures.
        interval: Wilson's 95 % interval at the effective number of episodes.
        effective: number of independent episodes with the same information; repeats of one initial state are correlated.
        repeats: mean and standard deviation of the rate across repeats; None for one repeat.
        errors: number of episodes that ended with an error.
    """

    episodes: int
    states: int
    rate: float
    interval: tuple[float, float]
    effective: float
    repeats: tuple[float, float] | None
    errors: int


@dataclass(frozen=True)
class Contrast:
    """B compared with A, in one task or over all tasks.

    Attributes:
        task: name of the task, or "all".
        a: rate of A.
        b: rate of B.
        difference: B − A, mean over tasks.
        interval: 95 %.
        interval_by: name of the interval's method.
        discordant: number of paired episodes solved only by B, and only by A; None if unpaired.
        p: two-sided.
        test: name of the test.
        p_holm: adjusted for the number of tasks, or (task "all") for the number of arms compared with the first.
        detectable: minimum detectable difference at 80 % power.
    """

    task: str
    a: Rate
    b: Rate
    difference: float
    interval: tuple[float, float]
    interval_by: str
    discordant: tuple[int, int] | None
    p: float
    test: str
    p_holm: float
    detectable: float


@dataclass(frozen=True)
class Comparison:
    """B compared with A.

    Attributes:
        a: name of A.
        b: name of B.
        a_source: file or folder of A.
        b_source: file or folder of B.
        pairing: result of the pairing audit.
        tasks: one contrast per task.
        overall: the mean over tasks.
        bootstrap: percentile interval from resampled initial states; None if unpaired.
        sequential: test that allows looking at the data at any time.
        time: what was timed, and its milliseconds in A and in B; None unless both are known.
        notes: for the reader.
        arms: number of arms compared with A; p is adjusted for it.
    """

    a: str
    b: str
    a_source: str
    b_source: str
    pairing: Pairing
    tasks: tuple[Contrast, ...]
    overall: Contrast
    bootstrap: tuple[float, float] | None
    sequential: Sequential
    time: tuple[str, float, float] | None
    notes: tuple[str, ...]
    arms: int = 1

    @property
    def regression(self) -> bool:
        """The verdict is "worse"."""
        return self.outcome == "worse"

    @property
    def improvement(self) -> bool:
        """The verdict is "better"."""
        return self.outcome == "better"

    @property
    def outcome(self) -> Outcome:
        """In a word, the same wherever a result is told: interval and test, adjusted for the number of arms, must agree."""
        if not self.interval_excludes_zero or self.overall.p_holm >= ALPHA:
            return "no clear difference"
        return "better" if self.overall.difference > 0 else "worse"

    @property
    def interval_excludes_zero(self) -> bool:
        """Whether the whole interval of the difference, which is not adjusted, is on one side of zero."""
        low, high = self.overall.interval
        return low > 0 or high < 0

    @property
    def points(self) -> str:
        """The difference with its interval: ``+7.8 [+0.7, +14.7] points``."""
        low, high = (100 * bound for bound in self.overall.interval)
        return f"{100 * self.overall.difference:+.1f} [{low:+.1f}, {high:+.1f}] points"

    @property
    def only_errors(self) -> tuple[str, ...]:
        """Which of "A" and "B" has nothing but errors: then nothing was measured."""
        rates = (("A", self.overall.a), ("B", self.overall.b))
        return tuple(name for name, rate in rates if rate.errors == rate.episodes)

    @property
    def verdict(self) -> str:
        """One line: better, worse, or no clear difference."""
        one = self.overall
        low, high = (100 * bound for bound in one.interval)
        numbers = f"{100 * one.difference:+.1f} points [{low:+.1f}, {high:+.1f}], {_p(one.p)} ({one.test})"
        if self.arms > 1:
            numbers += f", {_p(one.p_holm)} for one of {self.arms} arms (Holm)"
        if self.outcome == "no clear difference" and self.interval_excludes_zero:
            return f"{self.outcome}: {numbers}; the interval excludes zero, the {'corrected ' * (self.arms > 1)}test does not"
        if self.outcome == "no clear difference":
            return f"{self.outcome}: {numbers}; at this n only {100 * one.detectable:.0f} points or more would show"
        return f"B is {self.outcome}: {numbers}"

    def as_dict(self) -> dict[str, Any]:
        """For JSON, with the properties."""
        return {
            **asdict(self),
            "advice": self.sequential.advice,
            "improvement": self.improvement,
            "regression": self.regression,
            "verdict": self.verdict,
        }


def _p(value: float) -> str:
    return "p < 0.0001" if value < 0.0001 else f"p = {value:.2g}" if value < 0.1 else f"p = {value:.2f}"


def compare(a: Outcomes, b: Outcomes, mode: Mode = "auto") -> Comparison:
    """Compare B with A on the tasks that both have.

    Raises:
        KeystoneError: if they have no task in common, or pairing is required and not shown.

    >>> def arm(name, solved):
    ...     return Outcomes(name, "", "", tuple(EpisodeRecord("push", n, n < solved, initial_state=str(n)) for n in range(20)))
    >>> a, b = arm("first", 10), arm("keystone:k=16", 17)
    >>> print(compare(a, b).verdict)
    B is better: +35.0 points [+8.1, +55.5], p = 0.016 (McNemar exact)
    """
    if not set(a.tasks) & set(b.tasks):
        raise KeystoneError(
            f"A and B have no task in common. A ({a.source}) has {', '.join(a.tasks)}; B ({b.source}) has {', '.join(b.tasks)}"
        )
    pairing = audit(a, b, mode)
    episodes_a, episodes_b = compared(a, b, pairing)
    states_a, states_b = arrange(episodes_a, episodes_b, pairing.paired)
    tasks = sorted(states_a)

    def contrast(name: str, chosen: Sequence[str]) -> Contrast:
        return _contrast(
            name,
            _Arm([one for one in episodes_a if one.task in chosen], [states_a[task] for task in chosen]),
            _Arm([one for one in episodes_b if one.task in chosen], [states_b[task] for task in chosen]),
            pairing.paired,
        )

    by_task = [contrast(task, [task]) for task in tasks]
    adjusted = holm([one.p for one in by_task])
    means_a, means_b = ({task: _means(states[task]) for task in tasks} for states in (states_a, states_b))
    # unpaired, the n-th states of A and B are independent draws, whose difference is as valid for the sequential test
    differences = [means_b[task][: len(means_a[task])] - means_a[task][: len(means_b[task])] for task in tasks]
    return Comparison(
        a=a.name,
        b=b.name,
        a_source=a.source,
        b_source=b.source,
        pairing=pairing,
        tasks=tuple(replace(one, p_holm=p) for one, p in zip(by_task, adjusted, strict=True)),
        overall=contrast("all", tasks),
        bootstrap=paired_bootstrap(differences)[1:] if pairing.paired else None,
        sequential=bet([list(values) for values in differences]),
        time=(a.time[0], a.time[1], b.time[1]) if a.time and b.time and a.time[0] == b.time[0] else None,
        notes=tuple(_notes(a, b, pairing)),
    )


def compare_all(arms: Sequence[Outcomes], mode: Mode = "auto", tasks: Sequence[str] = ()) -> list[Comparison]:
    """Compare every other arm with the first; p over all tasks is adjusted for the number of comparisons."""
    if tasks:
        arms = [_select_tasks(arm, tasks) for arm in arms]
    found = [compare(arms[0], other, mode) for other in arms[1:]]
    adjusted = holm([one.overall.p for one in found])
    return [
        replace(one, overall=replace(one.overall, p_holm=p), arms=len(found))
        for one, p in zip(found, adjusted, strict=True)
    ]


def _select_tasks(arm: Outcomes, tasks: Sequence[str]) -> Outcomes:
    for task in tasks:
        if task not in arm.tasks:
            raise KeystoneError(f"{arm.name} ({arm.source}) has no task {task!r}: {nearest_name(task, arm.tasks)}")
    return replace(arm, episodes=tuple(one for one in arm.episodes if one.task in tasks))


@dataclass(frozen=True)
class _Arm:
    """One arm of a contrast: its episodes, and their outcomes by task and initial state."""

    episodes: Sequence[EpisodeRecord]
    states: Sequence[Sequence[NDArray[np.int64]]]


def _contrast(name: str, a: _Arm, b: _Arm, is_paired: bool) -> Contrast:
    rate_a, rate_b = _rate(a), _rate(b)
    if is_paired:
        differences = [
            [two - one for one, two in zip(states_a, states_b, strict=True)]
            for states_a, states_b in zip(a.states, b.states, strict=True)
        ]
        p, test = paired.paired_test(differences)
        interval, interval_by = paired.paired_interval(differences), paired.INTERVAL
        flips, detectable = paired.discordant(differences), paired_effect(differences)
    else:
        p, test = unpaired.unpaired_test(a.states, b.states)
        interval, interval_by = unpaired.newcombe(a.states, b.states), unpaired.INTERVAL
        flips, detectable = None, unpaired_effect(a.states, b.states)
    return Contrast(
        task=name,
        a=rate_a,
        b=rate_b,
        difference=rate_b.rate - rate_a.rate,
        interval=interval,
        interval_by=interval_by,
        discordant=flips,
        p=p,
        test=test,
        p_holm=p,
        detectable=detectable,
    )


def _rate(arm: _Arm) -> Rate:
    correlated = correlation(arm.states)
    effective = sum(effective_number(states, correlated) for states in arm.states)
    rate = float(np.mean([unpaired.task_rate(states) for states in arm.states]))
    return Rate(
        episodes=len(arm.episodes),
        states=sum(len(states) for states in arm.states),
        rate=rate,
        interval=wilson_rate(rate, effective),
        effective=effective,
        repeats=_across_repeats(arm.episodes),
        errors=sum(one.error is not None for one in arm.episodes),
    )


def rate_of(arm: Outcomes) -> Rate:
    """Success rate of one arm over all its tasks."""
    states, _ = arrange(arm.episodes, (), paired=False)
    return _rate(_Arm(arm.episodes, [states[task] for task in arm.tasks]))


def _across_repeats(episodes: Sequence[EpisodeRecord]) -> tuple[float, float] | None:
    """Mean and standard deviation (n − 1) of the repeats' rates, each the mean over tasks."""
    by_repeat: dict[int, dict[str, list[bool]]] = {}
    for one in episodes:
        by_repeat.setdefault(one.repeat, {}).setdefault(one.task, []).append(one.success)
    if len(by_repeat) < 2:
        return None
    rates = [np.mean([np.mean(outcomes) for outcomes in tasks.values()]) for tasks in by_repeat.values()]
    return float(np.mean(rates)), float(np.std(rates, ddof=1))


def _means(states: Sequence[NDArray[np.int64]]) -> NDArray[np.float64]:
    return np.array([outcomes.mean() for outcomes in states])


def _notes(a: Outcomes, b: Outcomes, pairing: Pairing) -> list[str]:
    notes = [*a.notes, *(note for note in b.notes if note not in a.notes)]
    only = [(name, sorted(set(one.tasks) - set(other.tasks))) for name, one, other in (("A", a, b), ("B", b, a))]
    notes += [f"only {name} has {', '.join(tasks)}: not compared" for name, tasks in only if tasks]
    if any(pairing.left_out):
        notes.append(
            f"{pairing.left_out[0]} episodes of A and {pairing.left_out[1]} of B have no partner: not compared"
        )
    notes += [
        f"{name} is not the same: {a.settings[name]} in A, {b.settings[name]} in B"
        for name in a.settings
        if name in b.settings and a.settings[name] != b.settings[name]
    ]
    return notes
