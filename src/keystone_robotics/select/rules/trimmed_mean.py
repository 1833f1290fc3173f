"""The mean of the candidates nearest the medoid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from keystone_robotics.select.rounds import Choice, Round, lowest
from keystone_robotics.select.rules.base import RoundRule
from keystone_robotics.select.rules.checks import number
from keystone_robotics.select.synthesis import average


@dataclass(frozen=True)
class TrimmedMean(RoundRule):
    """The mean of the medoid and the candidates nearest to it. Synthesised.

    Args:
        share: of the candidates that is averaged; at least one is.

    >>> import numpy as np, keystone_robotics as keystone
    >>> keystone.select(np.array([0.0, 1, 2, 3, 50, 51]).reshape(6, 1, 1), "trimmed-mean").chunk.item()
    2.0
    """

    name: ClassVar[str] = "trimmed-mean"
    share: float = 0.5

    def __post_init__(self) -> None:
        number("share", self.share, above=0, most=1)

    def choose_one(self, round: Round) -> Choice:
        n = len(round.chunks)
        size = max(1, round_half_up(n * self.share))
        to_centre = round.distances[self._centre(round.distances, size)].astype(
            np.float32
        )  # ties go to the lower index
        members = np.zeros(n, bool)
        members[np.argsort(to_centre, kind="stable")[:size]] = True
        return average(round, members)

    def _centre(self, distances: NDArray[np.float64], size: int) -> int:
        """The candidate around which ``size`` of them are averaged, given all distances (n, n)."""
        return lowest(distances.sum(1))


def round_half_up(value: float) -> int:
    """Python rounds 2.5 to 2; a half of five candidates is three."""
    return int(value + 0.5)
