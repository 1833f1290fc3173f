"""The mean of the candidates nearest the medoid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from keystone_robotics.select.engine import BatchResult
from keystone_robotics.select.rounds import Candidates
from keystone_robotics.select.rules.base import Rule
from keystone_robotics.select.rules.checks import number
from keystone_robotics.select.synthesis import average_rounds


@dataclass(frozen=True)
class TrimmedMean(Rule):
    """The mean of the medoid and the candidates nearest to it. Synthesised.

    Args:
        share: of the candidates that is averaged, halves rounded up; at least one is.

    >>> import numpy as np, keystone_robotics as keystone
    >>> keystone.select(np.array([0.0, 1, 2, 3, 50, 51]).reshape(6, 1, 1), "trimmed-mean").chunk.item()
    2.0
    """

    name: ClassVar[str] = "trimmed-mean"
    share: float = 0.5

    def __post_init__(self) -> None:
        number("share", self.share, above=0, most=1)

    def select_batch(self, candidates: Candidates) -> BatchResult:
        return average_rounds(candidates, "around medoid", share=self.share)
