"""The picture of docs/select.md: a synthetic policy in front of an obstacle. ``python -m benchmarks.pictures`` draws it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from keystone_robotics import select
from keystone_robotics.report.style import INK, QUIET, new_figure
from keystone_study.report.figures import cluster_colour, plot_candidates, plot_pca

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from keystone_robotics.select import Selection

CANDIDATES, STEPS = 16, 32
LENGTH = 60.0  #: cm from start to goal, straight ahead
OBSTACLE = (0.0, 30.0)  #: cm sideways and ahead
RADIUS = 9.0  #: cm
DETOUR = 18.0  #: cm sideways at the height of the obstacle
SEED = 268  #: chosen so that no label overlaps a path
LEFT = 11  #: candidates that go left in the bimodal example


def two_minds(seed: int = SEED) -> NDArray[np.float64]:
    """(16, 32, 2) positions in cm: eleven candidates pass the obstacle on the left, five on the right.

    >>> two_minds().shape, int((two_minds()[:, 16, 0] < 0).sum())
    ((16, 32, 2), 11)
    """
    random = np.random.RandomState(seed)
    return _paths(random.permutation(np.where(np.arange(CANDIDATES) < LEFT, -1.0, 1.0)), random)


def _paths(side: NDArray[np.float64], random: np.random.RandomState, noise: float = 2.0) -> NDArray[np.float64]:
    """A path for each side (-1 left, 1 right), from the start to about the goal, with smooth noise (cm)."""
    time = np.linspace(0.0, 1.0, STEPS)
    detour = side * DETOUR * (1 + 0.13 * random.normal(size=side.shape))
    sideways = detour[:, None] * np.sin(np.pi * time) ** 2
    ahead = np.broadcast_to(LENGTH * time, sideways.shape)
    paths = np.stack([sideways, ahead], -1)
    for wave in range(1, 4):  # slow waves, all zero at the start, where the hand is now
        size = noise / wave * random.normal(size=(len(side), 1, 2))
        paths += size * np.sin(0.5 * np.pi * wave * time)[:, None]
    return paths


def draw() -> Figure:
    """A round of `two_minds`: the paths in front of the obstacle, and the same candidates as points."""
    candidates = two_minds()
    selection = select(candidates)
    figure, (paths, points) = new_figure(9.0, 4.7, columns=2, width_ratios=[1.0, 1.0])
    _draw_paths(paths, candidates, selection)
    _draw_points(points, candidates, selection)
    return figure


def _draw_paths(ax: Axes, candidates: NDArray[np.float64], selection: Selection) -> None:
    from matplotlib.patches import Circle

    ax.add_patch(Circle(OBSTACLE, RADIUS, facecolor="#E2E2E2", edgecolor="none"))
    plot_candidates(ax, candidates, selection)
    ax.plot(0, 0, "o", color=INK, markersize=7)
    ax.plot(0, LENGTH, "o", color="white", markeredgecolor=INK, markeredgewidth=1.8, markersize=8, zorder=3)
    _write(ax, (2.5, -0.5), "start", INK, "left")
    _write(ax, (4, LENGTH), "goal", INK, "left")
    _write(ax, (2.5, OBSTACLE[1]), "obstacle", QUIET)
    _write(ax, (-2.0, 42.5), "mean of\nall 16", INK, "left")
    _write(ax, (-22.5, 30), "chosen", cluster_colour(0), "right", weight="bold")
    _write(ax, (-19, 49), f"{selection.sizes[0]} go left", cluster_colour(0), "right")
    _write(ax, (19, 49), f"{selection.sizes[1]} go right", cluster_colour(1), "left")
    ax.plot([24, 34], [0, 0], color=QUIET, linewidth=1.5)
    _write(ax, (29, 2.2), "10 cm", QUIET)
    ax.set_aspect("equal")
    ax.set_xlim(-36, 36)
    ax.set_ylim(-4, 66)
    ax.axis("off")
    ax.set_title("One observation, 16 candidate paths", color=INK, fontsize=12)


def _draw_points(ax: Axes, candidates: NDArray[np.float64], selection: Selection) -> None:
    plane = plot_pca(ax, candidates, selection)
    ax.set_aspect("equal", adjustable="datalim")
    ax.set_box_aspect(70 / 72)
    ax.margins(0.14)
    group, (x, y) = plane.of(candidates[selection.labels == 0]), plane.of(candidates.mean(0))
    ax.annotate(
        "chosen: the medoid\nof the larger group", (group[:, 0].min(), group[:, 1].max()), (-4, 16), va="bottom",
        textcoords="offset points", color=cluster_colour(0), weight="bold",
    )  # fmt: skip
    ax.annotate(
        "mean of all 16:\nno candidate near", (x, y), (-6, -12), va="top", textcoords="offset points", color=INK
    )
    ax.set_title("The same 16 as points", color=INK, fontsize=12)


def _write(ax: Axes, at: tuple[float, float], text: str, colour: str, align: Any = "center", **font: Any) -> None:
    ax.text(*at, text, color=colour, ha=align, va="center", **font)
