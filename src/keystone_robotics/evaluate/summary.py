"""The short table at the end of an evaluation: rates with intervals, differences, latency, errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from keystone_robotics.compare.comparison import compare, rate_of
from keystone_robotics.compare.outcomes import Outcomes
from keystone_robotics.compare.read_run import outcomes_of
from keystone_robotics.evaluate.store import EpisodeRow

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class ArmSummary:
    """One line of the table. Rates and differences are shares of episodes, not percent.

    Attributes:
        arm: its name.
        episodes: how many were rolled out.
        rate: mean over tasks; episodes that ended with an error did not succeed.
        interval: 95 %, Wilson's; repeats of one initial state do not count as independent.
        repeats_std: standard deviation of the rate across repeats; None for one repeat.
        difference: to the first arm; None for the first, or if both have no task in common.
        difference_interval: 95 %, with initial states as units.
        pairing: whether the initial states of both are the same, in words.
        latency_ms: median time of one round for one observation.
        consensus: mean share of the winning cluster.
        errors: episodes that ended with an error.
        by_task: rate for each task.
    """

    arm: str
    episodes: int
    rate: float
    interval: tuple[float, float]
    repeats_std: float | None
    difference: float | None
    difference_interval: tuple[float, float] | None
    pairing: str
    latency_ms: float | None
    consensus: float | None
    errors: int
    by_task: dict[str, float]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def summarise(rows: Sequence[EpisodeRow], arms: Sequence[str]) -> list[ArmSummary]:
    """One summary for each arm that has episodes; the first arm is what the others are compared with."""
    by_arm = {arm: [row for row in rows if row.arm == arm] for arm in arms}
    outcomes = {arm: outcomes_of(arm, mine, Path(), {}) for arm, mine in by_arm.items() if mine}
    first = outcomes.get(arms[0])
    return [
        _summary(mine, by_arm[arm], None if arm == arms[0] or first is None else first)
        for arm, mine in outcomes.items()
    ]


def _summary(arm: Outcomes, rows: Sequence[EpisodeRow], first: Outcomes | None) -> ArmSummary:
    rate = rate_of(arm)
    together = first is not None and set(first.tasks) & set(arm.tasks)
    comparison = compare(first, arm) if first is not None and together else None
    consensus = [row.consensus for row in rows if row.consensus is not None]
    return ArmSummary(
        arm=arm.name,
        episodes=rate.episodes,
        rate=rate.rate,
        interval=rate.interval,
        repeats_std=rate.repeats[1] if rate.repeats else None,
        difference=comparison.overall.difference if comparison else None,
        difference_interval=comparison.overall.interval if comparison else None,
        pairing=comparison.pairing.reason if comparison else "",
        latency_ms=arm.time[1] if arm.time else None,
        consensus=float(np.mean(consensus)) if consensus else None,
        errors=rate.errors,
        by_task={task: float(np.mean([row.success for row in rows if row.task == task])) for task in arm.tasks},
    )


def lines(summaries: Sequence[ArmSummary]) -> list[list[str]]:
    """The table as text, headings first; a column in which no arm has anything is left out."""
    columns = [
        ("arm", [one.arm for one in summaries]),
        ("n", [str(one.episodes) for one in summaries]),
        ("success, %", [f"{100 * one.rate:.1f} {_bounds(one.interval, '.1f')}" for one in summaries]),
        ("± repeats", ["" if one.repeats_std is None else f"{100 * one.repeats_std:.1f}" for one in summaries]),
        ("Δ to the first", [_difference(one) for one in summaries]),
        ("one round", ["" if one.latency_ms is None else f"{one.latency_ms:.1f} ms" for one in summaries]),
        ("errors", [str(one.errors) if one.errors else "" for one in summaries]),
    ]
    kept = [(heading, values) for heading, values in columns if any(values)]
    return [[heading for heading, _ in kept], *(list(row) for row in zip(*(values for _, values in kept), strict=True))]


def _difference(summary: ArmSummary) -> str:
    if summary.difference is None or summary.difference_interval is None:
        return ""
    return f"{100 * summary.difference:+.1f} {_bounds(summary.difference_interval, '+.1f')}"


def _bounds(interval: tuple[float, float], form: str) -> str:
    return "[" + ", ".join(format(100 * bound, form) for bound in interval) + "]"


def as_table(summaries: Sequence[ArmSummary]) -> Table:
    """For the terminal."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    heading, *rows = lines(summaries)
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))  # two arms fit into 80 columns
    strange = [f"{one.arm} is {one.pairing}" for one in summaries if one.pairing.startswith("unpaired")]
    table.caption = "\n".join(strange) or None
    for number, name in enumerate(heading):
        table.add_column(name, justify="left" if number == 0 else "right", no_wrap=number > 0, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def as_markdown(summaries: Sequence[ArmSummary]) -> str:
    """For a file."""
    heading, *rows = lines(summaries)
    return "\n".join("| " + " | ".join(row) + " |" for row in [heading, ["---"] * len(heading), *rows]) + "\n"
