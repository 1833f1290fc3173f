"""Figures of one round: its candidates as paths, and as points in a plane."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from keystone_robotics.report.style import INK, PALETTE, QUIET

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from keystone_robotics.select import Selection


def cluster_colour(label: int) -> str:
    """The colour of a cluster: the winner's first; grey for candidates that were dropped.

    >>> cluster_colour(0) == PALETTE[0], cluster_colour(-1) == QUIET
    (True, True)
    """
    return QUIET if label < 0 else PALETTE[label % len(PALETTE)]


def plot_candidates(ax: Axes, candidates: NDArray[Any], selection: Selection, dims: tuple[int, int] = (0, 1)) -> None:
    """The path of each candidate in two of its dimensions, coloured by cluster; the chosen one bold, the mean dashed.

    Args:
        ax: where to draw.
        candidates: (K, T, D) of one round, on the host.
        selection: what `keystone.select` made of them.
        dims: which action dimensions are the horizontal and the vertical.

    >>> import keystone_robotics as keystone
    >>> from keystone_robotics.report.style import new_figure
    >>> chunks = np.random.default_rng(0).normal(size=(4, 8, 2)).cumsum(1)
    >>> figure, (ax,) = new_figure(4, 4)
    >>> plot_candidates(ax, chunks, keystone.select(chunks))
    >>> len(ax.lines)                                       # four candidates, the chosen one with a white rim, the mean
    7
    """
    paths = np.asarray(candidates)[..., list(dims)]
    for path, label in zip(paths, selection.labels, strict=True):
        ax.plot(*path.T, color=cluster_colour(label), linewidth=1.3, alpha=0.45, solid_capstyle="round")
    chosen = np.asarray(selection.chunk)[..., list(dims)].T
    ax.plot(*chosen, color="white", linewidth=6.5, solid_capstyle="round")
    ax.plot(*chosen, color=cluster_colour(0), linewidth=3.6, solid_capstyle="round")
    ax.plot(*paths[selection.valid].mean(0).T, color=INK, linewidth=1.8, dashes=(3.5, 2))


def plot_pca(ax: Axes, candidates: NDArray[Any], selection: Selection) -> Plane:
    """The candidates as points in the plane in which they vary most, coloured by cluster.

    The chosen one is large, with lines to all it won with; the mean of all is a cross.

    Args:
        ax: where to draw.
        candidates: (K, T, D) of one round, on the host.
        selection: what `keystone.select` made of them.

    Returns:
        The plane, for drawing more into it.

    >>> import keystone_robotics as keystone
    >>> from keystone_robotics.report.style import new_figure
    >>> chunks = np.random.default_rng(0).normal(size=(4, 8, 2))
    >>> figure, (ax,) = new_figure(4, 4)
    >>> plot_pca(ax, chunks, keystone.select(chunks)).of(chunks).shape
    (4, 2)
    """
    valid = np.asarray(candidates)[selection.valid]
    labels = selection.labels[selection.valid]
    plane = Plane.through(valid, valid[labels == 0])
    (x, y), (mean_x, mean_y) = plane.of(selection.chunk), plane.of(valid.mean(0))
    for (point_x, point_y), label in zip(plane.of(valid), labels, strict=True):
        colour = cluster_colour(label)
        if label == 0:
            ax.plot([x, point_x], [y, point_y], color=colour, linewidth=1.0, alpha=0.3, zorder=1)
        ax.scatter(point_x, point_y, s=50, color=colour, alpha=0.6, edgecolors="white", linewidths=0.8, zorder=2)
    ax.scatter(x, y, s=190, color=cluster_colour(0), edgecolors="white", linewidths=1.5, zorder=3)
    ax.scatter(mean_x, mean_y, s=80, color=INK, marker="x", linewidths=2.0, zorder=3)
    ax.set_xlabel(f"1st principal component ({100 * plane.shares[0]:.0f} % of the variance)", color=QUIET)
    ax.set_ylabel(f"2nd principal component ({100 * plane.shares[1]:.0f} %)", color=QUIET)
    ax.set_xticks([])
    ax.set_yticks([])
    return plane


class Plane(NamedTuple):
    """The two directions in which chunks vary most.

    Attributes:
        centre: (T*D,) the mean of the chunks.
        directions: (2, T*D) of unit length.
        shares: (2,) of the variance.
    """

    centre: NDArray[np.float64]
    directions: NDArray[np.float64]
    shares: NDArray[np.float64]

    @staticmethod
    def through(chunks: NDArray[Any], left: NDArray[Any]) -> Plane:
        """The plane of (n, T, D) chunks, turned so that the mean of the chunks in ``left`` lies on the left.

        >>> plane = Plane.through(np.array([[[0.0, 0]], [[4, 0]], [[8, 1]]]), np.array([[[8.0, 1]]]))
        >>> bool(plane.of(np.array([[8.0, 1]]))[0] < 0), plane.shares.round(2).tolist()
        (True, [0.99, 0.01])
        """
        flat = chunks.reshape(len(chunks), -1).astype(np.float64)
        centre = flat.mean(0)
        _, sizes, directions = np.linalg.svd(flat - centre, full_matrices=False)
        # One chunk, or chunks of one number, span less than a plane: the rest is zero.
        two = np.zeros((2, flat.shape[1]))
        two[: len(directions)] = directions[:2]
        variances = np.zeros(2)
        variances[: len(sizes)] = sizes[:2] ** 2
        if two[0] @ (left.reshape(len(left), -1).mean(0) - centre) > 0:
            two[0] *= -1
        return Plane(centre, two, variances / max((sizes**2).sum(), np.finfo(np.float64).tiny))

    def of(self, chunks: Any) -> NDArray[np.float64]:
        """(..., T, D) chunks as (..., 2) points of the plane."""
        array = np.asarray(chunks, dtype=np.float64)
        return (array.reshape(*array.shape[:-2], -1) - self.centre) @ self.directions.T
