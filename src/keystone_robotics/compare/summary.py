"""The table of `keystone eval`: one row per arm with rate, interval, difference to the first arm, latency and errors."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.stats  # noqa: F401  (the statistics need it: a command that ends with a summary must fail before it starts)

from keystone_robotics.compare.comparison import compare, rate_of
from keystone_robotics.compare.outcomes import Outcomes
from keystone_robotics.compare.read_run import outcomes_of
from keystone_robotics.files import write_file
from keystone_robotics.records import EpisodeRecord
from keystone_robotics.tables import as_markdown, as_rich, from_columns, percent_bounds

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True)
class ArmSummary:
    """One row of the table. Rates and differences are fractions of episodes, not percent.

    Attributes:
        arm: name of the arm.
        episodes: number of episodes.
        rate: success rate, mean over tasks; episodes that ended with an error count as failures.
        interval: Wilson's 95 % interval at the effective number of episodes (repeats of one initial state are correlated).
        repeats_std: standard deviation of the rate across repeats; None for one repeat.
        difference: to the first arm; None for the first arm, or if they have no task in common.
        difference_interval: 95 %, with initial states as units.
        pairing: result of the pairing audit against the first arm, one sentence.
        latency_ms: median time of one round at batch size 1; None if it was not measured.
        consensus: mean of `Selection.consensus`; None for K = 1.
        dispersion: mean of `Selection.dispersion`; None for K = 1.
        median_distance: mean of `Selection.median_distance`; None for K = 1.
        errors: number of episodes that ended with an error.
        by_task: success rate per task.
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
    dispersion: float | None
    median_distance: float | None
    errors: int
    by_task: dict[str, float]


def summarise(episodes: Sequence[EpisodeRecord], arms: Sequence[str]) -> list[ArmSummary]:
    """One summary per arm that has episodes; the others are compared with the first of ``arms``."""
    by_arm = {arm: [one for one in episodes if one.arm == arm] for arm in arms}
    outcomes = {arm: outcomes_of(arm, mine) for arm, mine in by_arm.items() if mine}
    first = outcomes.get(arms[0])
    return [_summary(mine, None if arm == arms[0] else first) for arm, mine in outcomes.items()]


def _summary(arm: Outcomes, first: Outcomes | None) -> ArmSummary:
    rate = rate_of(arm)
    common = first is not None and set(first.tasks) & set(arm.tasks)
    comparison = compare(first, arm) if first is not None and common else None
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
        consensus=_mean([one.consensus for one in arm.episodes]),
        dispersion=_mean([one.dispersion for one in arm.episodes]),
        median_distance=_mean([one.median_distance for one in arm.episodes]),
        errors=rate.errors,
        by_task={task: float(np.mean([one.success for one in arm.episodes if one.task == task])) for task in arm.tasks},
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def summary_rows(summaries: Sequence[ArmSummary]) -> list[list[str]]:
    """The table as text, heading first; columns without any entry are dropped."""
    return from_columns(
        {
            "arm": [one.arm for one in summaries],
            "n": [str(one.episodes) for one in summaries],
            "success, %": [f"{100 * one.rate:.1f} {percent_bounds(one.interval, '.1f')}" for one in summaries],
            "± repeats": ["" if one.repeats_std is None else f"{100 * one.repeats_std:.1f}" for one in summaries],
            "Δ to the first": [_difference(one) for one in summaries],
            "one round": ["" if one.latency_ms is None else f"{one.latency_ms:.1f} ms" for one in summaries],
            "errors": [str(one.errors) if one.errors else "" for one in summaries],
        }
    )


def _difference(summary: ArmSummary) -> str:
    if summary.difference is None or summary.difference_interval is None:
        return ""
    return f"{100 * summary.difference:+.1f} {percent_bounds(summary.difference_interval, '+.1f')}"


def summary_table(summaries: Sequence[ArmSummary]) -> RenderableType:
    """For the terminal; arms that could not be paired with the first are named below."""
    unpaired = [f"{one.arm} is {one.pairing}" for one in summaries if one.pairing.startswith("unpaired")]
    return as_rich(summary_rows(summaries), "\n".join(unpaired) or None)


def errors_line(summaries: Sequence[ArmSummary]) -> str:
    """How many episodes ended with an error; empty if none did."""
    errors, episodes = sum(one.errors for one in summaries), sum(one.episodes for one in summaries)
    return f"{errors} of {episodes} episodes ended with an error; they count as failures" if errors else ""


def arms_with_only_errors(summaries: Sequence[ArmSummary]) -> list[str]:
    """The arms of which nothing was measured."""
    return [one.arm for one in summaries if one.errors == one.episodes]


def write_summary(folder: Path, summaries: Sequence[ArmSummary]) -> None:
    """Write ``summary.json`` and ``summary.md`` into the folder of a run.

    Raises:
        KeystoneError: if they cannot be written.
    """
    plain: list[dict[str, Any]] = [asdict(one) for one in summaries]
    write_file(folder / "summary.json", json.dumps(plain, indent=2) + "\n")
    write_file(folder / "summary.md", as_markdown(summary_rows(summaries)) + "\n")
