"""``python -m benchmarks.suite [--quick] [--only NAME …]``: all benchmarks, one after the other (``make bench``).

Each runs in a process of its own and writes a JSON file with its rows to benchmarks/results. With ``--quick`` all run in one
process, because loading LeRobot takes longer than most of their rough versions, and write to the folder ``quick`` there. What a
benchmark prints goes to out/bench. Interrupted, the same command goes on with the first that is not finished. At the end
suite.md, with the seconds that each took, and the tables of the README are written from the results.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.output import results_folder
from benchmarks.partial import ROOT, WORK, Partial

#: Modules of this package with a function ``main(quick)``, in the order in which they run.
MODULES = (
    "select_speed",
    "denoise_smolvla",
    "denoise_pi05",
    "denoise_groot",
    "denoise_fastwam",
    "denoise_heads",
    "whole_round",
    "cost",
    "closed_loop",
)


class Failed(Exception):
    """A benchmark ended with an error, which its log tells."""


def run(module: str, quick: bool) -> float:
    """Run one benchmark; seconds that it took.

    Raises:
        Failed: if it failed.
    """
    begin = time.perf_counter()
    with log_of(module, quick).open("w") as log:
        if quick:
            run_here(module, log)
        else:
            run_apart(module, log)
    return time.perf_counter() - begin


def log_of(module: str, quick: bool) -> Path:
    """Where it goes what a benchmark prints."""
    return WORK / f"{module}{'-quick' if quick else ''}.log"


def run_here(module: str, log: TextIO) -> None:
    """The rough version, in this process."""
    with contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
        try:
            importlib.import_module(f"benchmarks.{module}").main(quick=True)
        except Exception as error:
            traceback.print_exc()
            raise Failed from error


def run_apart(module: str, log: TextIO) -> None:
    """In a process of its own, whose memory and warmed-up caches no other benchmark has touched."""
    command = [sys.executable, "-m", f"benchmarks.{module}"]
    if subprocess.run(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT).returncode:
        raise Failed


def run_all(modules: tuple[str, ...], quick: bool, console: Console) -> tuple[dict[str, float], list[str]]:
    """Run what is not finished, or all of it if everything asked for is; the seconds by name, and the names that failed."""
    finished = Partial("suite", quick)
    if all(module in finished for module in modules):
        finished.forget(modules)
    taken: dict[str, float] = {}
    failed = []
    columns = (TextColumn("{task.description:16}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # redrawn rarely, because a thread that redraws takes a little of what is timed
    with Progress(*columns, console=console, refresh_per_second=0.5) as bar:
        task = bar.add_task("", total=len(modules))
        for module in modules:
            bar.update(task, description=module)
            try:
                known = module in finished
                taken[module] = finished(module, lambda module=module: run(module, quick))
                console.print(f"{module}: {'finished before' if known else 'done'} ({taken[module]:.0f} s)")
            except Failed:
                failed.append(module)
                console.print(f"{module}: failed, see {log_of(module, quick)}", style="bold red")
            bar.advance(task)
    if all(module in finished for module in MODULES):  # not after --only: the others may be under way
        finished.finish()
    return taken, failed


def main() -> int:
    """Run, then write the pages; an exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.suite", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="a rough version in two minutes, to benchmarks/results/quick"
    )
    parser.add_argument("--only", nargs="+", choices=MODULES, default=MODULES, metavar="NAME", help="only these")
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that are begun
    console = Console(file=sys.stdout)  # this one, also while a benchmark's own output is sent elsewhere
    try:
        taken, failed = run_all(tuple(arguments.only), arguments.quick, console)
    except KeyboardInterrupt:
        console.print("stopped: run the same command again to go on from here", style="bold yellow")
        return 130
    from benchmarks import readme, suite_report

    console.print(f"wrote {suite_report.write(results_folder(arguments.quick), taken)}")
    if not arguments.quick:
        readme.write()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
