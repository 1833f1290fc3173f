"""The picture of the main study: success against latency, one panel a workload."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from keystone_robotics.report.style import FAINT, INK, PALETTE, QUIET, new_figure
from keystone_robotics.spec import BASELINE, Spec
from keystone_study.report.labels import Label, place_labels
from keystone_study.reproduce.claims import RECOMMENDED
from keystone_study.reproduce.grids import AS_IT_IS
from keystone_study.reproduce.main import FREE, Arm, MainResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Kinds of arms: label, colour, marker, colour of the label, dark enough to read on white.
KINDS = {
    BASELINE: ("one sample", PALETTE[4], "o", "#8a5a00"),
    "keystone": ("the paper's rule", PALETTE[0], "s", "#00588c"),
    "core-mean": ("core-mean", PALETTE[2], "D", "#00664a"),
    "mean": ("mean of all", PALETTE[3], "^", "#9c4f7d"),
}


def draw_frontier(results: Sequence[MainResult]) -> Figure:
    """Every arm, two panels a row; the policy as it is, what is recommended and the best free change have their names, and in
    the last panel the kinds of arms.
    """
    columns = min(2, len(results))
    rows = -(-len(results) // columns)
    figure, axes = new_figure(4.2 * columns, 3.2 * rows, columns, rows)
    for number, (ax, result) in enumerate(zip(axes, results, strict=False)):
        _panel(ax, result)
        if number % columns == 0:
            ax.set_ylabel("success, %", color=QUIET)
        if number >= len(results) - columns:
            ax.set_xlabel("time of an executed step, policy as it is = 1", color=QUIET)
    for ax in axes[len(results) :]:
        ax.set_visible(False)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # names are placed in pixels
    for number, (ax, result) in enumerate(zip(axes, results, strict=False)):
        line = frontier(result.arms)
        ends = [one.per_step for one in (*line[1:], line[-1])]  # a step reaches to the next arm
        corners = [(x, 100 * one.rate.rate) for one, end in zip(line, ends, strict=True) for x in (one.per_step, end)]
        first = result.arm(AS_IT_IS)
        bar = [(first.per_step, 100 * bound) for bound in np.linspace(*first.rate.interval, 20)]
        points = [(one.per_step, 100 * one.rate.rate) for one in result.arms]
        place_labels(figure, ax, _labels(result, kinds=number == len(results) - 1), [*points, *bar], corners)
    return figure


def _labels(result: MainResult, kinds: bool) -> list[Label]:
    named = [
        (result.arm(RECOMMENDED), "recommended", KINDS["core-mean"][3]),
        (result.arm(result.choices[FREE].arm), "best free change", KINDS[BASELINE][3]),
        (result.arm(AS_IT_IS), "policy as it is", INK),
    ]
    labels = [Label([(one.per_step, 100 * one.rate.rate)], text, colour, bold=True) for one, text, colour in named]
    for rule, (text, _, _, colour) in KINDS.items() if kinds else ():
        mine = [one for one in _arms_of(result, rule) if one not in [arm for arm, _, _ in named]]
        if mine:
            labels.append(Label([(one.per_step, 100 * one.rate.rate) for one in mine], text, colour))
    return labels


def _arms_of(result: MainResult, rule: str) -> list[Arm]:
    return [one for one in result.arms if Spec.parse(one.name).rule == rule]


def _panel(ax: Axes, result: MainResult) -> None:
    for rule, (_, colour, marker, _) in KINDS.items():
        mine = _arms_of(result, rule)
        ax.scatter(
            [one.per_step for one in mine], [100 * one.rate.rate for one in mine], s=34, color=colour, marker=marker,
            linewidths=0.6, edgecolors="white", zorder=2,
        )  # fmt: skip
    line = frontier(result.arms)
    steps = ([one.per_step for one in line], [100 * one.rate.rate for one in line])
    ax.step(*steps, where="post", color=INK, linewidth=1.2, zorder=1)
    first = result.arm(AS_IT_IS)
    low, high = (100 * bound for bound in first.rate.interval)
    ax.errorbar(first.per_step, 100 * first.rate.rate, [[100 * first.rate.rate - low], [high - 100 * first.rate.rate]],
                fmt="o", color=INK, markersize=8, capsize=3)  # fmt: skip
    for one, rule in ((result.arm(RECOMMENDED), "core-mean"), (result.arm(result.choices[FREE].arm), BASELINE)):
        _, colour, marker, _ = KINDS[rule]
        ax.scatter(one.per_step, 100 * one.rate.rate, s=110, color=colour, marker=marker, edgecolors=INK, zorder=3)
    ax.margins(0.1, 0.12)
    low, high = ax.get_ylim()
    ax.set_ylim(low, high + 0.12 * (high - low))  # room for names
    ax.set_xscale("log")
    ax.set_xticks([0.25, 0.5, 1, 2], ["¼", "½", "1", "2"])
    ax.minorticks_off()
    ax.axvline(1.0, color=FAINT, linewidth=1, zorder=0)
    ax.set_title(result.workload.title, fontsize=11, color=INK)
    ax.grid(axis="y", color=INK, alpha=0.08)


def frontier(arms: Sequence[Arm]) -> list[Arm]:
    """The arms that no other is both as fast and better than, from the fastest to the best."""
    line: list[Arm] = []
    for one in sorted(arms, key=lambda arm: (arm.per_step, -arm.rate.rate)):
        if not line or one.rate.rate > line[-1].rate.rate:
            line.append(one)
    return line
