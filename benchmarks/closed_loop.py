"""Closed-loop evaluation: what it comes to, episodes per second, and how that scales with processes.

``python -m benchmarks.closed_loop`` (part of ``make bench``) evaluates the policies that come with the package on the tasks
that they were trained on, and writes ``benchmarks/results/closed_loop.json``. Interrupted, it goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.machine import describe
from keystone.cli.evaluate import make_executor
from keystone.evaluate.run import evaluate
from keystone.evaluate.settings import Settings, settings_from
from keystone.policies.load import trained_on

RESULTS = Path(__file__).parent / "results"
ARMS = ("first", "first:temperature=0.6", "keystone:k=16")
#: Initial states per task, and repeats; fewer for the policy that takes ten times as long.
EPISODES = {"metaworld-mixed": (20, 5), "metaworld-mixed-diffusion": (20, 1), "pusht-mixed": (100, 5)}


def main(quick: bool, work: Path = Path("out/closed_loop")) -> None:
    """Run and write; the runs are kept in a folder."""
    results = RESULTS / "quick" if quick else RESULTS
    results.mkdir(parents=True, exist_ok=True)
    work = work / ("quick" if quick else "full")
    console = Console()
    outcomes = [outcome(name, work, quick, console) for name in EPISODES]
    found = {
        "machine": describe("make bench"),
        "outcomes": outcomes,
        "throughput": throughput(work, quick, console),
        "rows": rows(outcomes),
    }
    (results / "closed_loop.json").write_text(json.dumps(found, indent=2) + "\n")
    console.print(f"wrote {results / 'closed_loop.json'}")


def rows(outcomes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The time of a round relative to K = 1 by case, as `benchmarks.regression` compares it. Disturbed by neighbours."""
    return [
        {
            "case": f"{outcome['policy']}, {arm['arm']}, time of a round",
            "ratio": arm["latency_ms"] / outcome["arms"][0]["latency_ms"],
            "better": "lower",
        }
        for outcome in outcomes
        for arm in outcome["arms"][1:]
    ]


def settings_of(policy: str, arms: tuple[str, ...], episodes: int, repeats: int) -> Settings:
    """The evaluation of a policy that comes with the package, on what it was trained on."""
    env = policy.split("-")[0]
    return settings_from(
        {"policy": policy, "env": env, "tasks": trained_on(policy), "arms": arms, "episodes": episodes, "repeats": repeats,
         "shard": 20}
    )  # fmt: skip


def outcome(policy: str, work: Path, quick: bool, console: Console) -> dict[str, Any]:
    """All arms on the same episodes."""
    episodes, repeats = EPISODES[policy]
    settings = settings_of(policy, ARMS, episodes // (10 if quick else 1), 1 if quick else repeats)
    console.print(
        f"{policy}: {len(settings.tasks)} tasks, {settings.episodes} initial states, {settings.repeats} repeats"
    )
    report = evaluate(settings, work / policy, make_executor(2), console)
    command = (
        f"keystone eval --policy {policy} --env {settings.env} --episodes {settings.episodes} --repeats {settings.repeats} "
        f"--shard {settings.shard} " + " ".join(f"--arm {arm}" for arm in ARMS)
    )
    return {"policy": policy, "command": command, "arms": [one.as_dict() for one in report.summaries]}


def throughput(work: Path, quick: bool, console: Console) -> list[dict[str, Any]]:
    """Episodes per second of an arm with one process and with two; set-up (imports, loading) included."""
    rows = []
    for workers in (1, 2):
        for arm in ("first", "keystone:k=16"):
            folder = work / f"throughput-{workers}"
            shutil.rmtree(folder, ignore_errors=True)
            settings = settings_of("metaworld-mixed", (arm,), 2 if quick else 20, 1)
            begin = time.perf_counter()
            report = evaluate(settings, folder, make_executor(workers), console)
            seconds = time.perf_counter() - begin
            rows.append({"arm": arm, "processes": workers, "episodes": report.new, "per_second": report.new / seconds})
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.closed_loop", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the episodes, into results/quick/")
    parser.add_argument("--work", type=Path, default=Path("out/closed_loop"), help="where the runs are kept")
    arguments = parser.parse_args()
    main(arguments.quick, arguments.work)
