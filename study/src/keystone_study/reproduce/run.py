"""Run an experiment and write its tables."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from keystone_robotics.evaluate.executors import Executor
from keystone_robotics.evaluate.run import evaluate, versions
from keystone_robotics.files import write_file
from keystone_robotics.tables import as_markdown
from keystone_study.reproduce.analysis import WorkloadResult, analyse
from keystone_study.reproduce.experiment import PAPER, Experiment
from keystone_study.reproduce.tables import LEGEND, RECOMMENDED_ARM, by_task, details, overview
from keystone_study.reproduce.workloads import WORKLOADS, Workload


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
    # Results of some workloads must not overwrite those of the whole experiment.
    some = tuple(workloads) != experiment.workloads
    command = f"keystone reproduce {experiment.name}" + (" --quick" if quick else "")
    command += f" --workloads {' '.join(workloads)}" if some else ""
    name = "-".join([experiment.name, *workloads]) if some else experiment.name
    found = {
        "command": command,
        "versions": versions(),
        "quick": quick,
        "overview": overview(results) if experiment.overview else None,
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
        parts.append("**A trial run on a few episodes: nothing can be concluded from these numbers.**")
    if experiment.overview:
        parts.append(as_markdown(overview(results)) + "\n")
    for result in results:
        parts.append(details(experiment, result))
        if len(result.tasks) > 1:
            parts.append(by_task(result, (result.arms[0].arm, result.control, PAPER, RECOMMENDED_ARM)))
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"
