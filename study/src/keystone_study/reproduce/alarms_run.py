"""``keystone reproduce alarms``: all scores on all workloads, as tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from keystone_robotics.evaluate.executors import Executor
from keystone_robotics.monitor import Detection
from keystone_robotics.monitor.scores import DEFAULT_SCORE
from keystone_robotics.monitor.separation import Estimate
from keystone_robotics.monitor.table import LEGEND, percent
from keystone_robotics.tables import as_markdown
from keystone_study.reproduce.alarms import (
    EXECUTED,
    FALSE_ALARMS,
    MANY,
    STATES,
    WATCHED,
    AlarmResult,
    AlarmRow,
    run_alarms,
)
from keystone_study.reproduce.claims import mean_interval
from keystone_study.reproduce.page import Page, find_workloads

ALARM_WORKLOADS = (
    "metaworld-mixed", "metaworld-noisy", "metaworld-clean", "metaworld-undertrained", "pusht", "cube-single-mixed",
    "aloha-mixed",
)  # fmt: skip

REACH = 3  #: points around the nominal rate of false alarms that a measured one should stay within

ABOUT = (
    f"Limits are calibrated on successful episodes from {STATES} initial states of each task ({5 * STATES} of a single one), "
    f"for a rate of false alarms of {100 * FALSE_ALARMS:g} %, and tried on as many others. `{WATCHED}` executes the first "
    f"candidate, so that its episodes are the policy's own, and the same as those of `{MANY}`. RND and logpZO see "
    "states instead of candidates; they are fitted to the successes of half of the calibration's states. "
    "*Alarming*: high, unless low values told failures better on the calibration's states. "
    "Δ: AUROC minus that of STAC at K = 256 on the same episodes; its "
    f"mean has policies as units. *Within ±{REACH} points* of the nominal rate: so many of the alarms; *by chance*: so "
    "many would be if calibration and test were exchangeable, for there are few successes (beta-binomial). *Written*: the "
    "97.5 % interval of the AUROC on the calibration's states lies above 0.5. "
) + LEGEND
PAGE = Page("alarms", "Alarms from disagreement", ABOUT, ALARM_WORKLOADS)


def reproduce_alarms(
    out: Path, executor: Executor, console: Console, workloads: Sequence[str] = ALARM_WORKLOADS, quick: bool = False
) -> Path:
    """Write ``alarms.json`` and ``alarms.md``, or ``alarms-WORKLOADS…`` for some. Interrupted, the same call resumes."""
    results = [
        run_alarms(one, out / "runs" / one.name / "alarms", executor, console, quick)
        for one in find_workloads(workloads, quick)
    ]
    found = {**tables_of(results), "workloads": [result.as_dict() for result in results]}
    return PAGE.write(out, workloads, quick, _finite(found), parts_of(found, results))


def tables_of(results: Sequence[AlarmResult]) -> dict[str, list[list[str]]]:
    """What the results say over all workloads."""
    return {
        "overview": overview(results),
        "false_alarms": false_alarm_table(results),
        "written": written_table(results),
    }


def parts_of(found: Mapping[str, Any], results: Sequence[AlarmResult]) -> list[str]:
    """``alarms.md``, after its legend."""
    return [
        "## AUROC within task",
        as_markdown(found["overview"]),
        "## False alarms on fresh states",
        as_markdown(found["false_alarms"]),
        "## Alarms that `keystone monitor calibrate` writes",
        as_markdown(found["written"]),
        *(f"## {result.title}\n\n{as_markdown(details(result))}" for result in results),
    ]


def overview(results: Sequence[AlarmResult]) -> list[list[str]]:
    """AUROC on the test's states: one row for each score, one column for each workload; bold where it separates."""
    heading = ["candidates of", "score", *(result.title for result in results), "mean Δ to STAC, K = 256"]
    rows = []
    for place, one in enumerate(results[0].rows):
        found = [result.rows[place] for result in results]
        rows.append([_source(one), one.score, *(_bold(row.tested) for row in found), _signed(_mean_to_stac(found))])
    return [heading, *rows]


def _mean_to_stac(rows: Sequence[AlarmRow]) -> Estimate | None:
    """Mean over workloads, with Student's 95 % interval and policies as units; None where a workload has no value."""
    values = [math.nan if row.to_stac is None else row.to_stac.value for row in rows]
    if any(map(math.isnan, values)) or len(values) < 2:
        return None
    mean, interval = mean_interval(values)
    return Estimate(mean, *interval)


def false_alarm_table(results: Sequence[AlarmResult]) -> list[list[str]]:
    """The rates of false alarms on the test's states, by kind of limit and workload."""
    heading = [
        "limit", "workload", "successes, calibration", "successes, test", "mean over scores, %", f"within ±{REACH} points",
        "by chance", "highest, %", *(f"{DEFAULT_SCORE}, `{arm}`, %" for arm in (WATCHED, EXECUTED)),
    ]  # fmt: skip
    rows = []
    for kind, title in (("constant", "one"), ("band", "a band")):
        every = [(result, _limits(result, kind)) for result in results]
        rows += [[title, *_false_alarm_cells(result, rates, kind)] for result, rates in every if rates]
        known = [pair for _, rates in every for pair in rates]
        if len(results) > 1 and known:
            chance = sum(_share_within(row, one, kind) for row, one in known)
            counts = [_mean_rate(known), f"{_within(known)} of {len(known)}", f"{chance:.0f}"]
            rows.append([title, "all", "", "", *counts, "", "", ""])
    return [heading, *rows]


def _limits(result: AlarmResult, kind: str) -> list[tuple[AlarmRow, Detection]]:
    """Alarms with limits of a kind whose rate of false alarms is known."""
    found = [(row, row.constant if kind == "constant" else row.band) for row in result.rows]
    return [(row, one) for row, one in found if one is not None and not math.isnan(one.false_alarms.value)]


def _false_alarm_cells(result: AlarmResult, rates: list[tuple[AlarmRow, Detection]], kind: str) -> list[str]:
    highest, worst = max(rates, key=lambda pair: pair[1].false_alarms.value)
    defaults = {row.arm: percent(one.false_alarms) for row, one in rates if row.score == DEFAULT_SCORE}
    return [
        result.title, *map(str, result.successes.values()), _mean_rate(rates), f"{_within(rates)} of {len(rates)}",
        f"{sum(_share_within(row, one, kind) for row, one in rates):.0f}",
        f"{percent(worst.false_alarms)} ({highest.score}, {_source(highest)})",
        *(defaults.get(arm, "–") for arm in (WATCHED, EXECUTED)),
    ]  # fmt: skip


def _mean_rate(rates: Sequence[tuple[AlarmRow, Detection]]) -> str:
    return f"{100 * sum(one.false_alarms.value for _, one in rates) / len(rates):.1f}"


def _within(rates: Sequence[tuple[AlarmRow, Detection]]) -> int:
    return sum(abs(one.false_alarms.value - one.nominal) < REACH / 100 + 1e-9 for _, one in rates)


def _share_within(row: AlarmRow, one: Detection, kind: str) -> float:
    """How often the measured rate is within reach of the nominal one if calibration and test are exchangeable.

    As many successes are taken for the calibration as there are in the test. False alarms are beta-binomial.
    """
    from scipy import stats

    behind = one.successes // ((2 if "states" in row.arm else 1) * (2 if kind == "band" else 1))
    rank = math.ceil((behind + 1) * (1 - one.nominal))
    if rank > behind:
        return 1.0
    bounds = ((one.nominal + sign * REACH / 100) * one.successes for sign in (-1, 1))
    low, high = (bound + sign * 1e-9 for bound, sign in zip(bounds, (-1, 1), strict=True))
    alarms = stats.betabinom(one.successes, behind + 1 - rank, rank)
    return float(alarms.cdf(math.floor(high)) - alarms.cdf(math.ceil(low) - 1))


def written_table(results: Sequence[AlarmResult]) -> list[list[str]]:
    """How many alarms `calibrate` writes, over scores and workloads, and how many of them separate on the test's states."""
    heading = [
        "candidates of", "scores × policies", "written", "of these separate on fresh states", f"{DEFAULT_SCORE} refused",
    ]  # fmt: skip
    rows = []
    for source in dict.fromkeys(_source(row) for result in results for row in result.rows):
        every = [row for result in results for row in result.rows if _source(row) == source]
        written = [row for row in every if row.calibrated.separates]
        default = [row for row in every if row.score == DEFAULT_SCORE]
        refused = f"{sum(not row.calibrated.separates for row in default)} of {len(default)}" if default else "–"
        again = sum(row.tested.separates for row in written)
        rows.append([source, str(len(every)), str(len(written)), str(again), refused])
    return [heading, *rows]


def details(result: AlarmResult) -> list[list[str]]:
    """All numbers of a workload."""
    heading = [
        "candidates of", "score", "alarming", "AUROC, calibration", "AUROC, test", "Δ to STAC, K = 256", "failures found, %",
        "false alarms, %", "balanced accuracy, %", "episode left, %", "found / false by a band, %",
    ]  # fmt: skip
    return [heading, *(_cells(row) for row in result.rows)]


def _cells(row: AlarmRow) -> list[str]:
    one, band = row.constant, row.band
    alarm = ["–"] * 4
    if one is not None:
        alarm = [percent(value) for value in (one.true_positives, one.false_alarms, one.balanced_accuracy, one.left)]
    both = "–" if band is None else f"{percent(band.true_positives)} / {percent(band.false_alarms)}"
    known = [_source(row), row.score, row.direction, str(row.calibrated), _bold(row.tested), _signed(row.to_stac)]
    return [*known, *alarm, both]


def _source(row: AlarmRow) -> str:
    return "states" if "states" in row.arm else f"`{row.arm}`"


def _bold(one: Estimate) -> str:
    return f"**{one}**" if one.separates else str(one)


def _signed(one: Estimate | None) -> str:
    if one is None or math.isnan(one.value):
        return "–"
    return f"{one.value:+.2f} [{one.low:+.2f}, {one.high:+.2f}]"


def _finite(value: Any) -> Any:
    """With null instead of nan, which JSON does not have."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and math.isnan(value) else value
