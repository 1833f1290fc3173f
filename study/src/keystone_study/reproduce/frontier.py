"""The picture of the main study: success against latency, one panel a workload."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from keystone_robotics.report.style import FAINT, INK, PALETTE, QUIET, new_figure
from keystone_robotics.spec import BASELINE, Spec
from keystone_study.reproduce.claims import RECOMMENDED
from keystone_study.reproduce.grids import AS_IT_IS
from keystone_study.reproduce.main import FREE, Arm, MainResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Kinds of arms: label, colour, marker.
KINDS = {
    BASELINE: ("one sample", PALETTE[4], "o"),
    "keystone": ("the paper's rule", PALETTE[0], "s"),
    "core-mean": ("core-mean", PALETTE[2], "D"),
    "mean": ("mean of all", PALETTE[3], "^"),
}
#: Colours of names, dark enough to read on white.
DARK = {"core-mean": "#00664a", BASELINE: "#8a5a00"}


def draw_frontier(results: Sequence[MainResult]) -> Figure:
    """Every arm, two panels a row; the policy as it is, what is recommended and the best free change have their names."""
    columns = min(2, len(results))
    rows = -(-len(results) // columns)
    figure, axes = new_figure(4.6 * columns, 3.1 * rows + 0.5, columns, rows)
    for number, (ax, result) in enumerate(zip(axes, results, strict=False)):
        _panel(ax, result)
        if number % columns == 0:
            ax.set_ylabel("success, %", color=QUIET)
    for ax in axes[len(results) :]:
        ax.set_visible(False)
    figure.legend(
        *axes[0].get_legend_handles_labels(),
        frameon=False,
        fontsize=9,
        loc="outside lower center",
        ncols=len(KINDS),
    )
    return figure


def _panel(ax: Axes, result: MainResult) -> None:
    arms = result.arms
    for rule, (label, colour, marker) in KINDS.items():
        mine = [one for one in arms if Spec.parse(one.name).rule == rule]
        ax.scatter(
            [one.per_step for one in mine], [100 * one.rate.rate for one in mine], s=26, color=colour, marker=marker,
            label=label, alpha=0.45, linewidths=0,
        )  # fmt: skip
    line = frontier(arms)
    ax.step(
        [one.per_step for one in line],
        [100 * one.rate.rate for one in line],
        where="post",
        color=QUIET,
        linewidth=1,
        zorder=0,
    )
    first = result.arm(AS_IT_IS)
    low, high = (100 * bound for bound in first.rate.interval)
    ax.errorbar(first.per_step, 100 * first.rate.rate, [[100 * first.rate.rate - low], [high - 100 * first.rate.rate]],
                fmt="o", color=INK, markersize=7, capsize=3)  # fmt: skip
    free = result.arm(result.choices[FREE].arm)
    recommended = result.arm(RECOMMENDED)
    for one, rule in ((recommended, "core-mean"), (free, BASELINE)):
        colour, marker = KINDS[rule][1:]
        ax.scatter(one.per_step, 100 * one.rate.rate, s=80, color=colour, marker=marker, edgecolors=INK, zorder=3)
    above, below = (10, -17) if recommended.rate.rate >= free.rate.rate else (-17, 10)
    _name(ax, recommended, "recommended: 16 × 2 steps", (-4, above), "center", DARK["core-mean"])
    beyond = free.per_step > 1  # near the right edge
    _name(ax, free, "best free change", (6, below), "right" if beyond else "left", DARK[BASELINE])
    _name(ax, first, "policy as it is", (8, -3) if beyond else (-8, -3), "left" if beyond else "right", INK)
    ax.margins(0.12, 0.14)
    ax.set_xscale("log")
    ax.set_xticks([0.25, 0.5, 1, 2], ["¼", "½", "1", "2"])
    ax.minorticks_off()
    ax.axvline(1.0, color=FAINT, linewidth=1, zorder=0)
    ax.set_title(result.workload.title, fontsize=10, color=INK)
    ax.set_xlabel("time of an executed step, policy as it is = 1", color=QUIET)
    ax.grid(axis="y", color=INK, alpha=0.08)


def _name(ax: Axes, arm: Arm, text: str, offset: tuple[int, int], align: str, colour: str) -> None:
    from matplotlib.patheffects import withStroke

    ax.annotate(
        text,
        (arm.per_step, 100 * arm.rate.rate),
        offset,
        textcoords="offset points",
        ha=align,
        fontsize=9,
        fontweight="bold",
        color=colour,
        path_effects=[withStroke(linewidth=3, foreground="white")],  # readable above other arms
        zorder=4,
    )


def frontier(arms: Sequence[Arm]) -> list[Arm]:
    """The arms that no other is both as fast and better than, from the fastest to the best."""
    line: list[Arm] = []
    for one in sorted(arms, key=lambda arm: (arm.per_step, -arm.rate.rate)):
        if not line or one.rate.rate > line[-1].rate.rate:
            line.append(one)
    return line
