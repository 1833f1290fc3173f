"""``python -m benchmarks.pictures``: draws the pictures of README, docs and results again from ``benchmarks/results``.

All but ``episode.png``: those are images of an episode, which ``keystone demo`` writes.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import cost
from benchmarks.harness import RESULTS, ROOT
from benchmarks.readme import main_results
from keystone_robotics.profiling import Profile
from keystone_robotics.report.cost import draw_cost
from keystone_robotics.report.style import FAINT, INK, PALETTE, QUIET, new_figure, save
from keystone_robotics.spec import BASELINE
from keystone_study.reproduce.claims import RECOMMENDED
from keystone_study.reproduce.figure1 import draw_shown
from keystone_study.reproduce.frontier import KINDS, draw_frontier
from keystone_study.reproduce.grids import AS_IT_IS
from keystone_study.reproduce.main import FREE, MainResult
from scripts import selection_picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

IMAGES = ROOT / "docs" / "images"
GREEN, ORANGE = PALETTE[2], PALETTE[4]


def draw_recommended(results: Sequence[MainResult]) -> Figure:
    """A line for each policy: its success as it is, as recommended and with the best free change, and the time of a step."""
    rows = [[one.arm(name) for name in (AS_IT_IS, RECOMMENDED, one.choices[FREE].arm)] for one in results]
    order = sorted(range(len(rows)), key=lambda at: rows[at][1].rate.rate - rows[at][0].rate.rate)
    figure, (ax,) = new_figure(8.4, 1.1 + 0.27 * len(rows))
    for y, at in enumerate(order):
        first, ours, free = (100 * arm.rate.rate for arm in rows[at])
        ax.plot([first, ours], [y, y], color=GREEN, linewidth=2.2, zorder=2)
        ax.plot(first, y, "o", color=INK, markersize=7, zorder=3)
        ax.plot(ours, y, "D", color=GREEN, markersize=8, zorder=3)
        ax.plot(free, y, "o", color="none", markeredgecolor=ORANGE, markeredgewidth=1.6, markersize=7, zorder=4)
        ax.text(104, y, f"× {rows[at][1].per_step:.2f}", color=INK, va="center", fontsize=9)
    ax.text(104, -0.8, "time", color=INK, va="top", fontsize=9, weight="bold")
    # The markers of the last line, which is on top, have names.
    beside = ("right", "left") if ours <= free else ("left", "right")
    for x, name, colour, align in (
        (first, "policy as it is", INK, "center"),
        (ours, "recommended ", KINDS["core-mean"][3], beside[0]),
        (free, " best free change", KINDS[BASELINE][3], beside[1]),
    ):
        ax.text(x, len(rows) - 0.6, name, color=colour, ha=align, va="bottom", fontsize=9, weight="bold")
    ax.set_yticks(range(len(rows)), [results[at].workload.title for at in order])
    ax.tick_params(axis="y", length=0, labelcolor=INK)
    ax.spines["left"].set_visible(False)
    ax.set_xlim(20, 102)
    ax.set_ylim(-0.6, len(rows) - 0.4)
    ax.grid(axis="x", color=FAINT, alpha=0.5)
    ax.set_axisbelow(True)
    ax.set_xlabel("success, %", color=QUIET)
    return figure


def main() -> None:
    """What is recommended, frontier of the main study, one round's outcomes, a synthetic round, cost of K and of a step."""
    results = main_results()
    flow = json.loads((RESULTS / "figure2.json").read_text())["profiles"][0]
    figures = {
        "recommended": draw_recommended(results),
        "frontier": draw_frontier([one for one in results if one.workload.drawn]),
        "figure1": draw_shown(json.loads((RESULTS / "figure1.json").read_text())),
        "figure2-flow": draw_cost(Profile.from_dict(flow)),
        "selection": selection_picture.draw(),
    }
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
