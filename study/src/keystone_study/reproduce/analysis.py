"""Compare every arm of an experiment with one sample, with the best free control and with the paper's rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from keystone_robotics.compare.comparison import ALPHA, Rate, compare, rate_of
from keystone_robotics.compare.multiple import holm
from keystone_robotics.compare.outcomes import Outcomes
from keystone_robotics.compare.read_run import outcomes_of
from keystone_robotics.records import EpisodeRecord
from keystone_study.reproduce.experiment import COOLED_BASELINES, Experiment
from keystone_study.reproduce.grids import PAPER
from keystone_study.reproduce.workloads import Workload


@dataclass(frozen=True)
class Difference:
    """Of success rates, as a share; the interval is paired, 95 %, with initial states as units."""

    value: float
    interval: tuple[float, float]
    p: float
    p_holm: float

    @property
    def clear(self) -> bool:
        """The interval does not contain zero, and the exact test agrees after Holm's correction for the workload's arms."""
        return (self.interval[0] > 0 or self.interval[1] < 0) and self.p_holm < ALPHA


@dataclass(frozen=True)
class ArmResult:
    """One arm on one workload.

    Attributes:
        arm: its name.
        section: of the experiment.
        rate: share of successes, mean over tasks, with an interval and the spread across repeats.
        by_task: rate of each task.
        to_first: difference to one sample as the policy draws it; None for that arm itself.
        to_control: difference to the best of the arms that cost nothing; None for these.
        to_paper: difference to the paper's rule at K = 16; None for that and for the arms that cost nothing.
    """

    arm: str
    section: str
    rate: Rate
    by_task: dict[str, float]
    to_first: Difference | None
    to_control: Difference | None
    to_paper: Difference | None


@dataclass(frozen=True)
class WorkloadResult:
    """All arms of an experiment on one workload.

    Attributes:
        workload: which.
        tasks: names.
        control: the one-sample arm, cooled or not, with the highest rate *here*. It is chosen on the same episodes that it is
            compared on, which favours it.
        flips: variance between repeats of one initial state with one sample, mean p (1 − p) over states; None for one repeat.
        arms: results.
    """

    workload: Workload
    tasks: tuple[str, ...]
    control: str
    flips: float | None
    arms: tuple[ArmResult, ...]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def analyse(experiment: Experiment, workload: Workload, rows: Sequence[EpisodeRecord]) -> WorkloadResult:
    """Compare all arms of an experiment, from the stored episodes of one workload."""
    sections = experiment.arms(workload.name)
    arms = list(sections)
    outcomes = {arm: outcomes_of(arm, [row for row in rows if row.arm == arm]) for arm in arms}
    rates = {arm: rate_of(one) for arm, one in outcomes.items()}
    free = [arm for arm in arms if arm == arms[0] or arm in COOLED_BASELINES]
    control = max(free, key=lambda arm: rates[arm].rate)
    to_first = differences(outcomes, arms[0], [arm for arm in arms if arm != arms[0]])
    to_control = differences(outcomes, control, [arm for arm in arms if arm not in free])
    to_paper = differences(outcomes, PAPER, [arm for arm in arms if arm not in (*free, PAPER)])
    return WorkloadResult(
        workload=workload,
        tasks=outcomes[arms[0]].tasks,
        control=control,
        flips=flip_rate(outcomes[arms[0]]),
        arms=tuple(
            ArmResult(
                arm=arm,
                section=sections[arm],
                rate=rates[arm],
                by_task=_by_task(one),
                to_first=to_first.get(arm),
                to_control=to_control.get(arm),
                to_paper=to_paper.get(arm),
            )
            for arm, one in outcomes.items()
        ),
    )


def flip_rate(outcomes: Outcomes) -> float | None:
    """Mean of p (1 − p) over initial states, p being the share of repeats that succeed; unbiased; None for one repeat.

    >>> stable = [EpisodeRecord("push", 0, True, repeat=r) for r in range(2)]
    >>> mixed = [EpisodeRecord("push", 1, r == 0, repeat=r) for r in range(2)]
    >>> flip_rate(Outcomes("first", "", "", tuple(stable + mixed)))
    0.25
    """
    states: dict[tuple[str, int], list[bool]] = {}
    for one in outcomes.episodes:
        states.setdefault((one.task, one.episode), []).append(one.success)
    several = [values for values in states.values() if len(values) > 1]
    if not several:
        return None
    variances = [(sum(v) / len(v)) * (1 - sum(v) / len(v)) * len(v) / (len(v) - 1) for v in several]
    return sum(variances) / len(variances)


def differences(outcomes: dict[str, Outcomes], base: str, others: Sequence[str]) -> dict[str, Difference]:
    """Of some arms to one, on the same states, with p corrected for their number."""
    found = {arm: compare(outcomes[base], outcomes[arm], "require").overall for arm in others}
    adjusted = holm([one.p for one in found.values()])
    return {
        arm: Difference(one.difference, one.interval, one.p, p_holm)
        for (arm, one), p_holm in zip(found.items(), adjusted, strict=True)
    }


def _by_task(outcomes: Outcomes) -> dict[str, float]:
    by_task: dict[str, list[bool]] = {}
    for one in outcomes.episodes:
        by_task.setdefault(one.task, []).append(one.success)
    return {task: sum(values) / len(values) for task, values in by_task.items()}
