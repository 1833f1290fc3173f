"""The candidate nearest to all others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from keystone_robotics.select.engine import BatchResult, select_rounds
from keystone_robotics.select.rounds import Candidates
from keystone_robotics.select.rules.base import Rule


@dataclass(frozen=True)
class Medoid(Rule):
    """The candidate with the smallest sum of distances to all.

    >>> import numpy as np, keystone_robotics as keystone
    >>> keystone.select(np.array([0.0, 1, 9]).reshape(3, 1, 1), "medoid").index
    1
    """

    name: ClassVar[str] = "medoid"

    def select_batch(self, candidates: Candidates) -> BatchResult:
        return select_rounds(candidates)
