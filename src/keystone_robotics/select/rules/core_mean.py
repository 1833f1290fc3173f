"""The mean of the tightest group of candidates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from keystone_robotics.select.engine import BatchResult
from keystone_robotics.select.rounds import Candidates
from keystone_robotics.select.rules.trimmed_mean import TrimmedMean
from keystone_robotics.select.synthesis import average_rounds


@dataclass(frozen=True)
class CoreMean(TrimmedMean):
    """Commit to the mode, then average inside it. Synthesised.

    The core is the candidate with the smallest mean distance to its nearest neighbours, together with these: a share of all
    candidates. Unlike the medoid of all, its centre cannot lie between two modes of equal size.

    Args:
        share: of the candidates that is averaged, halves rounded up; at least one is.

    >>> import numpy as np, keystone_robotics as keystone
    >>> keystone.select(np.array([0.0, 1, 2, 9, 12, 15]).reshape(6, 1, 1), "core-mean").chunk.item()
    1.0
    """

    name: ClassVar[str] = "core-mean"

    def select_batch(self, candidates: Candidates) -> BatchResult:
        return average_rounds(candidates, "tightest", share=self.share)
