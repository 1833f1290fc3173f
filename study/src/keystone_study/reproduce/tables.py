"""Results of an experiment as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from keystone_robotics.compare.comparison import Rate
from keystone_robotics.spec import RECOMMENDED_RULE
from keystone_robotics.tables import as_markdown, counted
from keystone_study.reproduce.analysis import ArmResult, Difference, WorkloadResult
from keystone_study.reproduce.experiment import Experiment

RECOMMENDED_ARM = f"{RECOMMENDED_RULE}:k=16"

LEGEND = (
    "Success in %, mean over tasks, ± standard deviation across repeats. Δ in points with paired 95 % intervals, initial "
    "states as units. *Control*: of the arms with one sample, cooler or not, the one that did best on these very episodes "
    "(which flatters it); it costs nothing, so only what lies above it is what K candidates add. **Bold**: the interval does "
    "not contain zero, and the exact test agrees after Holm's correction for all arms of the workload."
)


def details(experiment: Experiment, result: WorkloadResult) -> str:
    """All arms on one workload."""
    heading = ["arm", "success", "Δ to K = 1", "Δ to control", "Δ to the paper's rule"]
    rows = []
    for section in experiment.sections:
        mine = [one for one in result.arms if one.section == section.title]
        if mine:
            rows.append([f"*{section.title}*", "", "", "", ""])
        rows += [_row(one, one.arm == result.control) for one in mine]
    settings, first = result.workload, result.arms[0].rate
    flips = (
        "" if result.flips is None else f" Repeats of one state differ: mean p(1 − p) = {result.flips:.2f} at K = 1."
    )
    about = (
        f"{settings.about} {counted(len(result.tasks), 'task')} × "
        f"{first.states // len(result.tasks)} initial states × {first.episodes // first.states} repeats.{flips}"
    )
    return f"### {settings.title}\n\n{about}\n\n{as_markdown([heading, *rows])}\n"


def by_task(result: WorkloadResult, arms: Sequence[str]) -> str:
    """Success of some arms in each task."""
    chosen = [one for one in result.arms if one.arm in arms]
    rows = [[task, *(f"{100 * one.by_task[task]:.0f}" for one in chosen)] for task in result.tasks]
    return as_markdown([["task", *(f"`{one.arm}`" for one in chosen)], *rows]) + "\n"


def _row(one: ArmResult, is_control: bool) -> list[str]:
    name = f"`{one.arm}`" + (" (control)" if is_control else "")
    return [name, percent(one.rate), points(one.to_first), points(one.to_control), points(one.to_paper)]


def percent(rate: Rate) -> str:
    """A rate, and its spread across repeats."""
    return f"{100 * rate.rate:.1f}" + ("" if rate.repeats is None else f" ± {100 * rate.repeats[1]:.1f}")


def points(difference: Difference | None) -> str:
    """A difference with its interval, bold if that does not contain zero.

    >>> points(Difference(0.1, (0.02, 0.18), 0.01, 0.02))
    '**+10.0** [+2.0, +18.0]'
    """
    if difference is None:
        return "–"
    value = f"{100 * difference.value:+.1f}"
    low, high = (100 * bound for bound in difference.interval)
    return f"{f'**{value}**' if difference.clear else value} [{low:+.1f}, {high:+.1f}]"
