"""The short table at the end of an evaluation: rates with intervals, differences, latency, errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from keystone.compare.intervals import paired_bootstrap, wilson
from keystone.evaluate.store import EpisodeRow

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class ArmSummary:
    """One line of the table. Rates and differences are shares of episodes, not percent.

    Attributes:
        arm: its name.
        episodes: how many were rolled out.
        rate: share that succeeded; episodes that ended with an error did not.
        interval: Wilson's, 95 %.
        repeats_std: standard deviation of the rate across repeats; None for one repeat.
        difference: to the first arm, mean over the initial states that both have; None for the first.
        difference_interval: 95 %, resampling initial states.
        paired: initial states that both arms have, by hash.
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
    paired: int
    latency_ms: float | None
    consensus: float | None
    errors: int
    by_task: dict[str, float]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def summarise(rows: Sequence[EpisodeRow], arms: Sequence[str]) -> list[ArmSummary]:
    """One summary for each arm that has episodes; the first arm is what the others are compared with."""
    by_arm = {arm: [row for row in rows if row.arm == arm] for arm in arms}
    baseline = _States(by_arm[arms[0]])
    return [_summary(arm, mine, None if arm == arms[0] else baseline) for arm, mine in by_arm.items() if mine]


def _summary(arm: str, rows: Sequence[EpisodeRow], baseline: _States | None) -> ArmSummary:
    successes = sum(row.success for row in rows)
    repeats = sorted({row.repeat for row in rows})
    rates = [np.mean([row.success for row in rows if row.repeat == repeat]) for repeat in repeats]
    tasks = sorted({row.task for row in rows})
    mean, low, high, paired = _difference_to(baseline, _States(rows), tasks)
    latencies = [row.latency_ms for row in rows if row.latency_ms is not None]
    consensus = [row.consensus for row in rows if row.consensus is not None]
    return ArmSummary(
        arm=arm,
        episodes=len(rows),
        rate=successes / len(rows),
        interval=wilson(successes, len(rows)),
        repeats_std=float(np.std(rates, ddof=1)) if len(rates) > 1 else None,
        difference=mean,
        difference_interval=None if low is None or high is None else (low, high),
        paired=paired,
        latency_ms=float(np.median(latencies)) if latencies else None,
        consensus=float(np.mean(consensus)) if consensus else None,
        errors=sum(row.error is not None for row in rows),
        by_task={task: float(np.mean([row.success for row in rows if row.task == task])) for task in tasks},
    )


def _difference_to(
    baseline: _States | None, mine: _States, tasks: Sequence[str]
) -> tuple[float | None, float | None, float | None, int]:
    """Mean difference, its interval, and over how many initial states."""
    shared = mine.shared(baseline) if baseline is not None else []
    if baseline is None or not shared:
        return None, None, None, 0
    differences = [np.array([mine[key] - baseline[key] for key in shared if key[0] == task]) for task in tasks]
    return *paired_bootstrap([values for values in differences if len(values)]), len(shared)


class _States(dict[tuple[str, int], float]):
    """Mean success over the repeats of each initial state, by task and episode.

    An episode whose worker died has no hash: it did not succeed, and must not drop out of the difference.
    """

    def __init__(self, rows: Sequence[EpisodeRow]) -> None:
        outcomes: dict[tuple[str, int], list[bool]] = {}
        self.hashes: dict[tuple[str, int], set[str]] = {}
        for row in rows:
            outcomes.setdefault((row.task, row.episode), []).append(row.success)
            self.hashes.setdefault((row.task, row.episode), set()).update({row.initial_state} - {""})
        super().__init__({key: float(np.mean(values)) for key, values in outcomes.items()})

    def shared(self, other: _States) -> list[tuple[str, int]]:
        """The states that both have, and that no hash tells apart."""
        return [key for key in self if key in other and len(self.hashes[key] | other.hashes[key]) <= 1]


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
    for number, name in enumerate(heading):
        table.add_column(name, justify="left" if number == 0 else "right", no_wrap=number > 0, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def as_markdown(summaries: Sequence[ArmSummary]) -> str:
    """For a file."""
    heading, *rows = lines(summaries)
    return "\n".join("| " + " | ".join(row) + " |" for row in [heading, ["---"] * len(heading), *rows]) + "\n"
