"""Names next to points of a figure: in free space, with a thin line to the point where they stand apart from it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Points = NDArray[np.float64]
RADII = (15, 22, 30, 40, 52, 66, 82, 100)  #: distances from the point to the name, in points
ANGLES = 32
MARGIN = 3.5  #: around names and markers, in points
#: What a place costs beside its distance: for each marker or pixel of a line that the name covers, for each sample of the line
#: to the name that runs over a marker or a name, and over a line.
COVERED, OVER_MARKER, OVER_LINE = 300.0, 25.0, 2.0


class Label(NamedTuple):
    """A name of one of several points, in data coordinates: of the one with the most room."""

    points: Sequence[tuple[float, float]]
    text: str
    colour: str
    bold: bool = False


def place_labels(
    figure: Figure,
    ax: Axes,
    labels: Sequence[Label],
    points: Sequence[tuple[float, float]],
    line: Sequence[tuple[float, float]] = (),
) -> None:
    """Write each name where it covers least, near its point. The figure's layout is final then.

    Args:
        figure: whose axes are complete, limits included.
        ax: one of them.
        labels: in the order in which they choose; those in bold choose first, in the order that is best for all of them.
        points: markers that names must not cover.
        line: corners of a line that they must not cover.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    renderer = FigureCanvasAgg(figure).get_renderer()  # type: ignore[no-untyped-call]
    scale = figure.dpi / 72
    frame = ax.get_window_extent(renderer).get_points()
    markers = ax.transData.transform(np.array(points))
    lines = _along(ax.transData.transform(np.array(line))) if len(line) else np.empty((0, 2))
    texts = [
        ax.text(0, 0, one.text, color=one.colour, fontsize=10, fontweight="bold" if one.bold else "normal", ha="center",
                va="center", zorder=4, in_layout=False)
        for one in labels
    ]  # fmt: skip
    boxes = [text.get_window_extent(renderer) for text in texts]
    halves = [np.array([box.width, box.height]) / 2 for box in boxes]

    def arrange(order: Sequence[int], markers: Points, lines: Points) -> tuple[float, dict[int, tuple[Points, Points]]]:
        """Total cost, and the middle and the point of every name, one after the other."""
        total, places = 0.0, {}
        for number in order:
            half, ends = halves[number], ax.transData.transform(labels[number].points)
            found = (_best(point, half, markers, lines, frame, scale) for point in ends)
            cost, middle, point = min(found, key=lambda one: one[0])
            total += cost
            places[number] = middle, point
            edge = np.clip(point, middle - half, middle + half)
            lines = np.concatenate([lines, _along(np.array([edge, point]))])
            markers = np.concatenate([markers, _grid(middle, half)])
        return total, places

    bold = [number for number, one in enumerate(labels) if one.bold]
    others = [number for number, one in enumerate(labels) if not one.bold]
    orders = itertools.permutations(bold)
    best = min(orders, key=lambda order: arrange(order, markers, lines)[0])
    for number, (middle, point) in arrange([*best, *others], markers, lines)[1].items():
        to_data = ax.transData.inverted().transform
        texts[number].set_position(tuple(to_data(middle)))
        edge = np.clip(point, middle - halves[number] - scale, middle + halves[number] + scale)
        if np.linalg.norm(edge - point) > 17 * scale:
            ax.plot(*to_data(np.array([edge, point])).T, color=labels[number].colour, linewidth=0.8, zorder=2.5)


def _best(
    point: Points, half: Points, markers: Points, lines: Points, frame: Points, scale: float
) -> tuple[float, Points, Points]:
    """Cost and middle of the best place for a name of a point, and the point; all in pixels."""
    from scipy.spatial import cKDTree

    angles = np.linspace(0, 2 * np.pi, ANGLES, endpoint=False)
    ways = np.stack([np.cos(angles), np.sin(angles)], 1)
    # From the middle of the box to its edge, in each direction.
    to_edge = np.min(half / np.maximum(np.abs(ways), 1e-9), 1)
    radius = np.repeat(RADII, ANGLES)
    middles = point + np.tile(ways, (len(RADII), 1)) * (radius * scale + np.tile(to_edge, len(RADII)))[:, None]
    near = half + MARGIN * scale
    covered = sum((np.abs(ones[None] - middles[:, None]) < near).all(2).sum(1) for ones in (markers, lines))
    outside = ((middles - half < frame[0]) | (middles + half > frame[1])).any(1)
    cost = radius + COVERED * (covered + 20 * outside)
    edges = np.clip(point, middles - half, middles + half)
    leaders = point + np.linspace(0, 1, 16)[None, :, None] * (edges - point)[:, None]
    for ones, weight in ((markers, OVER_MARKER), (lines, OVER_LINE)):
        others = ones[np.linalg.norm(ones - point, axis=1) > 9 * scale]  # not the point itself
        if len(others):
            cost = cost + weight * (cKDTree(others).query(leaders)[0] < 5 * scale).sum(1)
    best = int(np.argmin(cost))
    return float(cost[best]), middles[best], point


def _grid(middle: Points, half: Points) -> Points:
    """Points all over a box."""
    axes = (np.linspace(-1, 1, 20) * size + place for size, place in zip(half, middle, strict=True))
    return np.stack(np.meshgrid(*axes), -1).reshape(-1, 2)


def _along(corners: Points) -> Points:
    """Points on a line through these, a pixel apart."""
    parts = [np.linspace(a, b, max(2, int(np.abs(b - a).max()))) for a, b in itertools.pairwise(corners)]
    return np.concatenate(parts)
