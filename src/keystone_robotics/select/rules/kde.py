"""Kernel density, as in KDPE."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from keystone_robotics.select import rotations
from keystone_robotics.select.metrics import pairwise
from keystone_robotics.select.rounds import Round, lowest
from keystone_robotics.select.rules.base import RoundRule
from keystone_robotics.select.rules.checks import number
from keystone_robotics.select.space import Layout

# KDPE's bandwidths of rotation and gripper, in units of the position's.
ROTATION, GRIPPER = 5.0, 20.0


@dataclass(frozen=True)
class KernelDensity(RoundRule):
    """The candidate where the density of candidates is highest.

    By default as KDPE does it: a product of Gaussian kernels over position, rotation angle and gripper, on the last step
    that counts (``space.steps`` names the executed ones), with bandwidths h, 5h and 20h in the units of the action; give
    ``rotation`` and ``gripper`` in the space, the remaining dimensions are position. With ``whole`` a Gaussian kernel over
    the distance of whole chunks.

    Args:
        bandwidth: h; default 0.05, or 0.5 with ``whole``, where it is a multiple of the median distance.
        whole: compare whole chunks.

    >>> import numpy as np, keystone_robotics as keystone
    >>> keystone.select(np.array([0.0, 0.04, 0.09, 3]).reshape(4, 1, 1), "kde").index
    1
    """

    name: ClassVar[str] = "kde"
    bandwidth: float | None = None
    whole: bool = False

    def __post_init__(self) -> None:
        if self.bandwidth is not None:
            number("bandwidth", self.bandwidth, above=0)
        if not isinstance(self.whole, bool):
            raise ValueError(f"whole={self.whole!r}: expected True or False")

    def select_round(self, round: Round) -> int:
        n = len(round.chunks)
        if n == 1:
            return 0
        if self.whole:
            upper = np.sort(round.distances[np.triu_indices(n, 1)])
            h = (self.bandwidth or 0.5) * upper[(len(upper) - 1) // 2]
            exponents = _exponents(round.distances, h)
        else:
            exponents = self._last_step(round, self.bandwidth or 0.05)
        # The kernel of a candidate with itself is the same for all. Without it the logarithm loses no digits when the
        # candidates lie many bandwidths apart.
        np.fill_diagonal(exponents, -np.inf)
        return lowest(-np.logaddexp.reduce(exponents, axis=1))

    @staticmethod
    def _last_step(round: Round, h: float) -> NDArray[np.float64]:
        layout = round.layout
        step = round.chunks[:, layout.steps[-1]]
        plain = list(layout.plain)
        exponents = _exponents(pairwise(step[:, plain] / np.array(layout.scale)[plain])[0], h)
        for name, block in layout.rotations:
            matrices = rotations.to_matrix(name, step[:, list(block)])
            half_chord = pairwise(matrices.reshape(len(step), 9))[0] / np.sqrt(8.0)
            exponents += _exponents(2 * np.arcsin(half_chord.clip(max=1.0)) / layout.scale[block[0]], ROTATION * h)
        for dim, kind in layout.grippers:
            opening = Layout.opening(step[:, dim, None], kind)
            exponents += _exponents((opening - opening.T) / layout.scale[dim], GRIPPER * h)
        return exponents


def _exponents(distances: NDArray[np.float64], h: float) -> NDArray[np.float64]:
    """The logarithm of a Gaussian kernel; a bandwidth of 0 (duplicates) leaves only equal candidates as neighbours."""
    if h == 0:
        return np.where(distances == 0, 0.0, -np.inf)
    return np.asarray(-0.5 * (distances / h) ** 2)
