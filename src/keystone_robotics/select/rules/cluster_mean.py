"""Commit to a mode, then average inside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from keystone_robotics.select.engine import BatchResult, Clustering
from keystone_robotics.select.rounds import Candidates
from keystone_robotics.select.rules.keystone import Keystone
from keystone_robotics.select.synthesis import average_rounds


@dataclass(frozen=True)
class ClusterMean(Keystone):
    """The mean of the winning cluster of "keystone" (of all candidates where the guard sees one group). Synthesised.

    Parameters as in "keystone", but k-means starts from the best of K starts: which members are averaged matters more
    than which of them is the medoid.

    >>> import numpy as np, keystone_robotics as keystone
    >>> selection = keystone.select(np.array([0.0, 1, 2, 50, 51]).reshape(5, 1, 1), "cluster-mean")
    >>> selection.chunk.item(), selection.sizes.tolist()
    (1.0, [3, 2])
    """

    name: ClassVar[str] = "cluster-mean"
    init: str = "best"

    def select_batch(self, candidates: Candidates) -> BatchResult:
        return average_rounds(candidates, "cluster", Clustering(self.clusters, self.tau, self.iterations, self.init))
