"""The off-manifold control."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from keystone_robotics.select.engine import BatchResult
from keystone_robotics.select.rounds import Candidates
from keystone_robotics.select.rules.base import Rule
from keystone_robotics.select.synthesis import average_rounds


@dataclass(frozen=True)
class Mean(Rule):
    """The mean of all candidates. Synthesised: between two modes it is neither; a control, not a recommendation.

    >>> import numpy as np, keystone_robotics as keystone
    >>> selection = keystone.select(np.array([0.0, 1, 5]).reshape(3, 1, 1), "mean")
    >>> selection.chunk.item(), selection.index, selection.synthesised
    (2.0, 1, True)
    """

    name: ClassVar[str] = "mean"

    def select_batch(self, candidates: Candidates) -> BatchResult:
        return average_rounds(candidates, "cluster")
