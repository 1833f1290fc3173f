"""``python -m benchmarks.suite [--quick] [--only NAME …]``: all benchmarks, one after the other (``make bench``).

Each runs in a process of its own and writes a JSON file with its rows to benchmarks/results. With ``--quick`` all run in one
process and write to the subfolder ``quick``. Their output goes to out/bench. At the end suite.md and the tables of the README
are written from the results. Interrupted, the command says what is left to run.
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

from benchmarks.harness import ROOT, results_folder

#: Where the output of benchmarks goes.
LOGS = ROOT / "out" / "bench"

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
    "monitor",
    "rerun_log",
    "report_page",
)


class BenchmarkFailed(Exception):
    """A benchmark ended with an error, which is in its log."""


def run(module: str, quick: bool) -> float:
    """Run one benchmark; wall-clock seconds.

    Raises:
        BenchmarkFailed: if it failed.
    """
    begin = time.perf_counter()
    path = log_path(module, quick)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as log:
        if quick:
            run_in_process(module, log)
        else:
            run_in_subprocess(module, log)
    return time.perf_counter() - begin


def log_path(module: str, quick: bool) -> Path:
    """The file that a benchmark's output goes to."""
    return LOGS / f"{module}{'-quick' if quick else ''}.log"


def run_in_process(module: str, log: TextIO) -> None:
    """The quick version: loading LeRobot takes longer than most of these."""
    with contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
        try:
            importlib.import_module(f"benchmarks.{module}").main(quick=True)
        except Exception as error:
            traceback.print_exc()
            raise BenchmarkFailed from error


def run_in_subprocess(module: str, log: TextIO) -> None:
    """In a process whose memory and caches no other benchmark has touched."""
    command = [sys.executable, "-m", f"benchmarks.{module}"]
    if subprocess.run(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT).returncode:
        raise BenchmarkFailed


def run_all(modules: tuple[str, ...], quick: bool, console: Console) -> tuple[dict[str, float], list[str]]:
    """Run all; the seconds by name, and the names that are left to run because they failed or were interrupted."""
    taken: dict[str, float] = {}
    left = list(modules)
    columns = (TextColumn("{task.description:16}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # redrawn rarely, because the thread that redraws disturbs the timing
    with Progress(*columns, console=console, refresh_per_second=0.5) as bar:
        task = bar.add_task("", total=len(modules))
        for module in modules:
            bar.update(task, description=module)
            try:
                taken[module] = run(module, quick)
                left.remove(module)
                console.print(f"{module}: {taken[module]:.0f} s")
            except BenchmarkFailed:
                console.print(f"{module}: failed, see {log_path(module, quick)}", style="bold red")
            except KeyboardInterrupt:
                break
            bar.advance(task)
    return taken, left


def main() -> int:
    """Run, then write the pages; an exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.suite", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="a less exact version in two minutes, to benchmarks/results/quick"
    )
    parser.add_argument("--only", nargs="+", choices=MODULES, default=MODULES, metavar="NAME", help="only these")
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # for subprocesses
    console = Console(file=sys.stdout)  # also while a benchmark's output is redirected
    taken, left = run_all(tuple(arguments.only), arguments.quick, console)
    from benchmarks import readme, suite_report

    console.print(f"wrote {suite_report.write(results_folder(arguments.quick), taken)}")
    if not arguments.quick:
        readme.write()
    if left:
        console.print(f"left to run: --only {' '.join(left)}", style="bold yellow")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
