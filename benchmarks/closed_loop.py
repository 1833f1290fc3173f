"""Closed-loop evaluation: episodes per second, and how that scales with processes.

``python -m benchmarks.closed_loop`` (part of ``make bench``) writes ``benchmarks/results/closed_loop.json``. Success
rates are the subject of ``keystone reproduce``. Wall-clock time of runs one after the other, with one process and with two. It
depends on what else the machine does, so there are no rows for `benchmarks.regression`.
"""

from __future__ import annotations

import argparse
import shutil
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from benchmarks.harness import describe_machine, write_json
from keystone_robotics.evaluate.config import config_from
from keystone_robotics.evaluate.executors import make_executor
from keystone_robotics.evaluate.run import evaluate
from keystone_robotics.policies.load import trained_on

POLICY, ENV = "metaworld-mixed", "metaworld"


def main(quick: bool, work: Path = Path("out/closed_loop")) -> None:
    """Run and write; the runs are kept in a folder."""
    torch.set_num_threads(1)
    console = Console()
    found = {"machine": describe_machine("make bench"), "throughput": throughput(work, quick, console)}
    console.print(f"wrote {write_json('closed_loop', found, quick)}")


def throughput(work: Path, quick: bool, console: Console) -> list[dict[str, Any]]:
    """Episodes per second of an arm with one process and with two; set-up (imports, loading) included."""
    rows = []
    for workers in (1, 2):
        for arm in ("keystone:k=16",) if quick else ("first", "keystone:k=16"):
            folder = work / f"throughput-{workers}"
            shutil.rmtree(folder, ignore_errors=True)
            settings = config_from(
                {"policy": POLICY, "env": ENV, "tasks": trained_on(POLICY), "arms": [arm], "episodes": 1 if quick else 20,
                 "shard": 20}
            )  # fmt: skip
            begin = time.perf_counter()
            report = evaluate(settings, folder, make_executor(workers), console)
            seconds = time.perf_counter() - begin
            rows.append({"arm": arm, "processes": workers, "episodes": report.new, "per_second": report.new / seconds})
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.closed_loop", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few episodes of one arm, into results/quick/")
    parser.add_argument("--work", type=Path, default=Path("out/closed_loop"), help="where the runs are kept")
    arguments = parser.parse_args()
    main(arguments.quick, arguments.work)
