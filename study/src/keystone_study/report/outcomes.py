"""The paper's Figure 1b: the candidates of one round, coloured by the outcome of the episode after each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from keystone_robotics.report.style import INK, PALETTE, QUIET, new_figure
from keystone_study.report.figures import Plane
from keystone_study.report.labels import Label, place_labels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from keystone_robotics.evaluate.branch import Branches
    from keystone_robotics.records import RoundRecord

SUCCESS, FAILURE = PALETTE[0], PALETTE[1]
FAILURE_TEXT = "#a84900"  #: dark enough to read on white


def draw_outcomes(record: RoundRecord, branches: Branches, title: str = "") -> Figure:
    """Candidates in the plane of their first two principal components, and the end-effector path of each.

    Args:
        record: the round.
        branches: the outcome of each candidate.
        title: of the figure.
    """
    figure, axes = new_figure(10.0, 4.6, columns=2, width_ratios=[1.0, 1.15])
    labels, points = _draw_points(axes[0], record, branches)
    if branches.paths[0].shape[1] == 3:
        grid = axes[1].get_subplotspec()
        axes[1].remove()
        assert grid is not None
        axes[1] = figure.add_subplot(grid, projection="3d")
        _draw_paths_3d(axes[1], record, branches)
    else:
        _draw_paths_2d(axes[1], record, branches)
    if title:
        figure.suptitle(title, color=INK, fontsize=12)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # names are placed in pixels
    place_labels(figure, axes[0], labels, points)
    return figure


def draw_by_rank(rates: NDArray[np.float64], chosen: float, rounds: int) -> Figure:
    """Success rate of candidates by their distance to the medoid of their round.

    Args:
        rates: (G,) success rates of groups of equal size, nearest to the medoid first.
        chosen: success rate of the chosen candidates.
        rounds: number of rounds.
    """
    figure, (ax,) = new_figure(5.2, 3.6)
    places = np.arange(len(rates))
    ax.bar(places, 100 * rates, color=SUCCESS, width=0.66)
    ax.axhline(100 * chosen, color=INK, linewidth=1.0, linestyle="--")
    ax.annotate(f"chosen: {100 * chosen:.0f} %", (places[-1] + 0.4, 100 * chosen), ha="right", va="bottom", color=INK)
    ax.set_xticks(places, ["nearest the medoid", *[""] * (len(rates) - 2), "farthest"])
    ax.set_ylabel("then succeeded, %", color=QUIET)
    ax.set_ylim(0, 100)
    ax.set_title(f"Candidates of {rounds} rounds, in groups of equal size", color=INK, fontsize=11)
    return figure


def _draw_points(ax: Axes, record: RoundRecord, branches: Branches) -> tuple[list[Label], list[tuple[float, float]]]:
    """The candidates as points; their names, to be placed, and where the points are."""
    valid = record.labels >= 0
    plane = Plane.through(record.candidates[valid], record.candidates[record.labels == 0])
    points = plane.of(record.candidates)
    labels = [Label([tuple(points[record.index])], _marked(record), INK, bold=True)]
    others = valid & (np.arange(len(points)) != record.index)
    kinds = ((True, SUCCESS, SUCCESS, "o", "then succeeded"), (False, FAILURE, FAILURE_TEXT, "X", "then failed"))
    for won, colour, text_colour, marker, name in kinds:
        group = valid & (branches.success == won)
        x, y = points[group].T
        ax.scatter(x, y, s=80, marker=marker, color=colour, edgecolors="white", linewidths=0.8)
        if (named := others & group).any():
            labels.append(Label([tuple(one) for one in points[named]], f"{group.sum()} {name}", text_colour))
    x, y = points[record.index]
    ax.scatter(x, y, s=260, facecolors="none", edgecolors=INK, linewidths=2.0)
    ax.set_xlabel(f"1st principal component ({100 * plane.shares[0]:.0f} % of the variance)", color=QUIET)
    ax.set_ylabel(f"2nd principal component ({100 * plane.shares[1]:.0f} %)", color=QUIET)
    ax.set_xticks([])
    ax.set_yticks([])
    ax.margins(0.12)
    ax.set_title(f"{len(points)} candidates of one round", color=INK, fontsize=11)
    return labels, [tuple(one) for one in points[valid]]


def _draw_paths_2d(ax: Axes, record: RoundRecord, branches: Branches) -> None:
    for path, colour, width, dashes in _paths(record, branches):
        ax.plot(*path.T, color=colour, linewidth=width, linestyle=dashes, alpha=0.9, solid_capstyle="round")
    ax.plot(*branches.paths[0][0], "o", color=INK, markersize=6)
    ax.set_aspect("equal", adjustable="datalim")
    ax.set_xlabel("x, pixels", color=QUIET)
    ax.set_ylabel("y, pixels", color=QUIET)
    ax.set_title(f"End-effector path of each (thick: {_marked(record)})", color=INK, fontsize=11)


def _draw_paths_3d(ax: Any, record: RoundRecord, branches: Branches) -> None:
    for path, colour, width, dashes in _paths(record, branches):
        ax.plot(*(100 * path).T, color=colour, linewidth=width, linestyle=dashes, alpha=0.9)
    ax.plot(*(100 * branches.paths[0][:1]).T, "o", color=INK, markersize=6)
    for axis, name in zip((ax.xaxis, ax.yaxis, ax.zaxis), "xyz", strict=True):
        axis.set_pane_color((1.0, 1.0, 1.0, 0.0))
        axis.line.set_color(QUIET)
        axis.set_label_text(f"{name}, cm", color=QUIET, fontsize=10)
    ax.tick_params(labelsize=9, labelcolor=QUIET, pad=0)
    ax.locator_params(nbins=3)
    ax.set_title(f"End-effector path of each (thick: {_marked(record)})", color=INK, fontsize=11)


def _marked(record: RoundRecord) -> str:
    """What the ring and the thick line stand for: an averaged chunk is none of the candidates."""
    return "nearest to the executed" if record.synthesised else "chosen"


def _paths(record: RoundRecord, branches: Branches) -> list[tuple[Any, str, float, str]]:
    """Path, colour, line width and style of each candidate; failures are dashed, the chosen one is wide and drawn last."""
    order = sorted(range(len(branches.paths)), key=lambda number: number == record.index)
    return [
        (
            np.asarray(branches.paths[number], np.float64),
            SUCCESS if branches.success[number] else FAILURE,
            3.6 if number == record.index else 1.2,
            "-" if branches.success[number] else "--",
        )
        for number in order
    ]
