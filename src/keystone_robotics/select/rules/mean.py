"""The off-manifold control."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from keystone_robotics.select.rounds import Choice, Round
from keystone_robotics.select.rules.base import RoundRule
from keystone_robotics.select.synthesis import average


@dataclass(frozen=True)
class Mean(RoundRule):
    """The mean of all candidates. Synthesised: between two modes it is neither; a control, not a recommendation.

    >>> import numpy as np, keystone_robotics as keystone
    >>> selection = keystone.select(np.array([0.0, 1, 5]).reshape(3, 1, 1), "mean")
    >>> selection.chunk.item(), selection.index, selection.synthesised
    (2.0, 1, True)
    """

    name: ClassVar[str] = "mean"

    def choose_one(self, round: Round) -> Choice:
        return average(round, np.ones(len(round.chunks), bool))
