"""Run an experiment and write its tables and figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from keystone_robotics.evaluate.executors import Executor
from keystone_robotics.evaluate.run import evaluate
from keystone_robotics.report.style import save
from keystone_robotics.tables import as_markdown
from keystone_study.reproduce import main_tables
from keystone_study.reproduce.analysis import WorkloadResult, analyse
from keystone_study.reproduce.experiment import Experiment
from keystone_study.reproduce.frontier import draw_frontier
from keystone_study.reproduce.grids import PAPER
from keystone_study.reproduce.main import result_of
from keystone_study.reproduce.page import Page, find_workloads
from keystone_study.reproduce.tables import LEGEND, RECOMMENDED_ARM, by_task, details
from keystone_study.reproduce.workloads import MAIN_WORKLOADS

MAIN = Page("main", "The main study", main_tables.LEGEND, MAIN_WORKLOADS)


def reproduce_main(
    out: Path, executor: Executor, console: Console, workloads: Sequence[str] = MAIN_WORKLOADS, quick: bool = False
) -> Path:
    """The main study; writes ``main.json``, ``main.md`` and ``frontier.png``; for some workloads only, ``main-WORKLOADS…``.

    Each finished workload is a file in ``out/main``, from which pages can be made without rolling out anything.
    """
    results = [result_of(one, out, executor, console) for one in find_workloads(workloads, quick)]
    tables = {
        "claims": main_tables.claims_table(results),
        "overview": main_tables.overview(results),
    }
    parts = ["## Claims, pooled over trained policies", as_markdown(tables["claims"])]
    parts += ["## Workloads", as_markdown(tables["overview"]), *(main_tables.details(result) for result in results)]
    page = MAIN.write(out, workloads, quick, tables, parts)
    drawn = [result for result in results if result.workload.drawn] or results[:4]
    save(draw_frontier(drawn), out, page.stem.replace("main", "frontier"))
    return page


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
    for one in find_workloads(workloads, quick):
        settings = one.settings(tuple(experiment.arms(one.name)), experiment.repeats)
        episodes = evaluate(settings, out / "runs" / one.name, executor, console).episodes
        results.append(analyse(experiment, one, episodes))
    page = Page(experiment.name, experiment.title, LEGEND, experiment.workloads)
    found = {"workloads": [result.as_dict() for result in results]}
    return page.write(out, workloads, quick, found, list(parts_of(experiment, results)))


def parts_of(experiment: Experiment, results: Sequence[WorkloadResult]) -> Iterator[str]:
    """Everything about an experiment as Markdown."""
    for result in results:
        yield details(experiment, result)
        if len(result.tasks) > 1:
            yield by_task(result, (result.arms[0].arm, result.control, PAPER, RECOMMENDED_ARM))
