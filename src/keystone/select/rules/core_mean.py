"""The mean of the tightest group of candidates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from keystone.select.rounds import Choice, Round, lowest
from keystone.select.rules.base import RoundRule
from keystone.select.rules.checks import number
from keystone.select.rules.trimmed_mean import round_half_up
from keystone.select.synthesis import average


@dataclass(frozen=True)
class CoreMean(RoundRule):
    """Commit to the mode, then average inside it. Synthesised.

    The core is the candidate with the smallest mean distance to its nearest neighbours, together with these: a share of all
    candidates. Unlike the medoid of all, its centre cannot lie between two modes of equal size.

    Args:
        share: of the candidates that is averaged; at least one is.

    >>> import numpy as np, keystone
    >>> keystone.select(np.array([0.0, 1, 2, 9, 12, 15]).reshape(6, 1, 1), "core-mean").chunk.item()
    1.0
    """

    name: ClassVar[str] = "core-mean"
    share: float = 0.5

    def __post_init__(self) -> None:
        number("share", self.share, above=0, most=1)

    def choose_one(self, round: Round) -> Choice:
        n = len(round.chunks)
        size = max(1, round_half_up(n * self.share))
        order = np.argsort(round.distances.astype(np.float32), axis=1, kind="stable")[:, :size]
        centre = lowest(np.take_along_axis(round.distances, order, axis=1).mean(1))
        members = np.zeros(n, bool)
        members[order[centre]] = True
        return average(round, members)
