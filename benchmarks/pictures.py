"""``python -m benchmarks.pictures``: draws the pictures of README, docs and results again from ``benchmarks/results``."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

from benchmarks import cost
from benchmarks.harness import RESULTS, ROOT
from keystone_robotics.profiling import Profile
from keystone_robotics.report.cost import draw_cost
from keystone_robotics.report.style import save
from keystone_study.reproduce.frontier import draw_frontier
from keystone_study.reproduce.main import MainResult
from keystone_study.reproduce.workloads import MAIN_WORKLOADS, WORKLOADS

IMAGES = ROOT / "docs" / "images"


def main() -> None:
    """Frontier of the main study, cost of K, cost of a denoising step."""
    drawn = [WORKLOADS[name] for name in MAIN_WORKLOADS if WORKLOADS[name].drawn]
    results = [
        MainResult.from_dict(json.loads((RESULTS / "main" / f"{one.name}.json").read_text()), one) for one in drawn
    ]
    flow = json.loads((RESULTS / "figure2.json").read_text())["profiles"][0]
    figures = {"frontier": draw_frontier(results), "figure2-flow": draw_cost(Profile.from_dict(flow))}
    with tempfile.TemporaryDirectory() as folder:
        for name, figure in figures.items():
            save(figure, Path(folder), name)
            shutil.copy(Path(folder) / f"{name}.png", IMAGES)
    rows = json.loads((RESULTS / "cost.json").read_text())["rows"]
    found: dict[cost.Case, dict[str, float]] = {}
    for row in rows:
        found.setdefault(cost.Case(row["k"], row["tokens"], row["batch"]), {})[row["path"]] = row["ratio"]
    save(cost.figure(cost.cases(quick=False), found), RESULTS, "cost")


if __name__ == "__main__":
    main()
