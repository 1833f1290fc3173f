"""Run an experiment and write its tables and figures."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from keystone_robotics.evaluate.executors import Executor
from keystone_robotics.evaluate.run import evaluate, versions
from keystone_robotics.files import write_file
from keystone_robotics.report.style import save
from keystone_robotics.tables import as_markdown
from keystone_study.reproduce import main_tables
from keystone_study.reproduce.analysis import WorkloadResult, analyse
from keystone_study.reproduce.experiment import Experiment
from keystone_study.reproduce.frontier import draw_frontier
from keystone_study.reproduce.grids import PAPER
from keystone_study.reproduce.main import result_of
from keystone_study.reproduce.tables import LEGEND, RECOMMENDED_ARM, by_task, details
from keystone_study.reproduce.workloads import MAIN_WORKLOADS, WORKLOADS, Workload

LONGEST_NAME = 100  #: of the workloads in a file's name: file systems end at 255 bytes
TRIAL = "**A trial run on a few episodes: nothing can be concluded from these numbers.**"


def reproduce_main(
    out: Path, executor: Executor, console: Console, workloads: Sequence[str] = MAIN_WORKLOADS, quick: bool = False
) -> Path:
    """The main study; writes ``main.json``, ``main.md`` and ``frontier.png``; for some workloads only, ``main-WORKLOADS…``.

    Each finished workload is a file in ``out/main``, from which pages can be made without rolling out anything.
    """
    results = []
    for one in workloads:
        workload = WORKLOADS[one].quick() if quick else WORKLOADS[one]
        results.append(result_of(workload, out, executor, console))
    name, command = file_and_command("main", workloads, tuple(workloads) != MAIN_WORKLOADS, quick)
    tables = {
        "claims": main_tables.claims_table(results),
        "overview": main_tables.overview(results),
    }
    found = {
        "command": command,
        "versions": versions(),
        "quick": quick,
        "legend": main_tables.LEGEND,
        **tables,
    }
    write_file(out / f"{name}.json", json.dumps(found, indent=1) + "\n")
    parts = ["# The main study", f"Made by `{command}`. {main_tables.LEGEND}"]
    parts += [TRIAL] * quick
    parts += ["## Claims, pooled over trained policies", as_markdown(tables["claims"])]
    parts += ["## Workloads", as_markdown(tables["overview"]), *(main_tables.details(result) for result in results)]
    write_file(out / f"{name}.md", "\n\n".join(part.rstrip("\n") for part in parts) + "\n")
    save(
        draw_frontier([result for result in results if result.workload.drawn] or results[:4]),
        out,
        name.replace("main", "frontier"),
    )
    return out / f"{name}.md"


def file_and_command(experiment: str, workloads: Sequence[str], some: bool, quick: bool) -> tuple[str, str]:
    """The name of the files, and the command. Results of some workloads must not overwrite those of the whole experiment."""
    command = f"keystone reproduce {experiment}" + (" --quick" if quick else "")
    if not some:
        return experiment, command
    joined = "-".join(workloads)
    if len(joined) > LONGEST_NAME:
        joined = f"{len(workloads)}-workloads-{zlib.crc32(joined.encode()):08x}"
    return f"{experiment}-{joined}", f"{command} --workloads {' '.join(workloads)}"


def reproduce(
    experiment: Experiment, out: Path, executor: Executor, console: Console, workloads: Sequence[str], quick: bool
) -> Path:
    """Roll out what is missing, and write ``NAME.json`` and ``NAME.md``, or ``NAME-WORKLOADS…`` for some workloads only.

    All experiments share the runs in ``out/runs``, so that episodes are rolled out once. Interrupted at any moment, the same
    call resumes.

    Args:
        experiment: which.
        out: folder.
        executor: rolls out the shards.
        console: for progress.
        workloads: names.
        quick: a test run on a few episodes.

    Returns:
        The path of the page.
    """
    results = []
    for one in workloads:
        workload = WORKLOADS[one].quick() if quick else WORKLOADS[one]
        results.append(_roll_out(experiment, workload, out / "runs" / one, executor, console))
    name, command = file_and_command(experiment.name, workloads, tuple(workloads) != experiment.workloads, quick)
    found = {
        "command": command,
        "versions": versions(),
        "quick": quick,
        "legend": LEGEND,
        "workloads": [result.as_dict() for result in results],
    }
    write_file(out / f"{name}.json", json.dumps(found, indent=2) + "\n")
    write_file(out / f"{name}.md", page(experiment, results, command, quick))
    return out / f"{name}.md"


def _roll_out(
    experiment: Experiment, workload: Workload, folder: Path, executor: Executor, console: Console
) -> WorkloadResult:
    settings = workload.settings(tuple(experiment.arms(workload.name)), experiment.repeats)
    return analyse(experiment, workload, evaluate(settings, folder, executor, console).episodes)


def page(experiment: Experiment, results: Sequence[WorkloadResult], command: str, quick: bool) -> str:
    """Everything about an experiment as Markdown."""
    parts = [f"# {experiment.title}", f"Made by `{command}`. {LEGEND}"]
    if quick:
        parts.append(TRIAL)
    for result in results:
        parts.append(details(experiment, result))
        if len(result.tasks) > 1:
            parts.append(by_task(result, (result.arms[0].arm, result.control, PAPER, RECOMMENDED_ARM)))
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"
