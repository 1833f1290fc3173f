"""``keystone reproduce alarms``: all scores on all workloads, as tables."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from keystone_robotics.evaluate.executors import Executor
from keystone_robotics.evaluate.run import versions
from keystone_robotics.files import write_file
from keystone_robotics.monitor.separation import Estimate
from keystone_robotics.monitor.table import LEGEND, percent
from keystone_robotics.tables import as_markdown
from keystone_study.reproduce.alarms import FALSE_ALARMS, MANY, STATES, WATCHED, AlarmResult, AlarmRow, run_alarms
from keystone_study.reproduce.claims import mean_interval
from keystone_study.reproduce.run import TRIAL, file_and_command
from keystone_study.reproduce.workloads import WORKLOADS

ALARM_WORKLOADS = (
    "metaworld-mixed", "metaworld-noisy", "metaworld-clean", "metaworld-undertrained", "pusht", "cube-single-mixed",
)  # fmt: skip

ABOUT = (
    f"Limits are calibrated on successful episodes from {STATES} initial states of each task (PushT: {5 * STATES}), for a rate "
    f"of false alarms of {100 * FALSE_ALARMS:g} %, and tried on as many others. `{WATCHED}` executes the first candidate, so "
    f"that its episodes are the policy's own, and the same as those of `{MANY}`. RND and logpZO see states instead of "
    "candidates; they are fitted to the successes of half of the calibration's states. *Alarming*: high, unless low values "
    "told failures better on the calibration's states. Δ: AUROC minus that of STAC at K = 256 on the same episodes; its "
    "mean has policies as units. "
) + LEGEND


def reproduce_alarms(
    out: Path, executor: Executor, console: Console, workloads: Sequence[str] = ALARM_WORKLOADS, quick: bool = False
) -> Path:
    """Write ``alarms.json`` and ``alarms.md``, or ``alarms-WORKLOADS…`` for some. Interrupted, the same call resumes."""
    results = []
    for name in workloads:
        workload = WORKLOADS[name].quick() if quick else WORKLOADS[name]
        results.append(run_alarms(workload, out / "runs" / name / "alarms", executor, console, quick))
    name, command = file_and_command("alarms", workloads, tuple(workloads) != ALARM_WORKLOADS, quick)
    tables = {"overview": overview(results), "false_alarms": false_alarm_table(results)}
    found = {
        "command": command,
        "versions": versions(),
        "quick": quick,
        "legend": ABOUT,
        **tables,
        "workloads": [result.as_dict() for result in results],
    }
    write_file(out / f"{name}.json", json.dumps(_finite(found), indent=1) + "\n")
    parts = ["# Alarms from disagreement", f"Made by `{command}`. {ABOUT}"]
    parts += [TRIAL] * quick
    parts += ["## AUROC within task", as_markdown(tables["overview"])]
    parts += ["## False alarms on fresh states", as_markdown(tables["false_alarms"])]
    parts += [f"## {result.title}\n\n{as_markdown(details(result))}" for result in results]
    write_file(out / f"{name}.md", "\n\n".join(parts) + "\n")
    return out / f"{name}.md"


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
    """The rates of false alarms on the test's states, mean over scores, by workload and kind of limit."""
    heading = ["workload", "successes, calibration", "successes, test", "nominal, %", "one limit, %", "a band, %"]
    rows = []
    for result in results:
        cells, nominal = [], FALSE_ALARMS
        for kind in ("constant", "band"):
            found = [getattr(row, kind) for row in result.rows if getattr(row, kind) is not None]
            rates = [one.false_alarms.value for one in found if not math.isnan(one.false_alarms.value)]
            cells.append(f"{100 * sum(rates) / len(rates):.1f}" if rates else "–")
            nominal = found[0].nominal if found else nominal
        rows.append([result.title, *map(str, result.successes.values()), f"{100 * nominal:g}", *cells])
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
