"""k-nearest-neighbour density: the positive term of bidirectional decoding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from keystone_robotics.select.rounds import Round, lowest
from keystone_robotics.select.rules.base import RoundRule
from keystone_robotics.select.rules.checks import whole


@dataclass(frozen=True)
class Density(RoundRule):
    """The candidate with the smallest mean distance to its nearest neighbours.

    Args:
        neighbours: how many; default half of the candidates plus one (as in bidirectional decoding), at most all others.

    >>> import numpy as np, keystone_robotics as keystone
    >>> keystone.select(np.array([0.0, 4, 5, 6, 20]).reshape(5, 1, 1), "density", neighbours=2).index
    2
    """

    name: ClassVar[str] = "density"
    neighbours: int | None = None

    def __post_init__(self) -> None:
        if self.neighbours is not None:
            whole("neighbours", self.neighbours)

    def select_round(self, round: Round) -> int:
        n = len(round.chunks)
        count = min(self.neighbours or n // 2 + 1, n - 1)
        if count == 0:
            return 0
        others = np.sort(round.distances, axis=1)[:, 1 : count + 1]  # column 0 is the candidate itself
        return lowest(others.mean(1))
