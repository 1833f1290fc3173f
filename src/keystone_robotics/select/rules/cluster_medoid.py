"""The paper's rule without its guard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from keystone_robotics.select.engine import NOTHING, BatchResult, Clustering, check_init, select_rounds
from keystone_robotics.select.rounds import Candidates
from keystone_robotics.select.rules.base import Rule
from keystone_robotics.select.rules.checks import whole


@dataclass(frozen=True)
class ClusterMedoid(Rule):
    """The medoid of the largest of C clusters, always; parameters as in "keystone".

    >>> import numpy as np, keystone_robotics as keystone
    >>> keystone.select(np.array([0, 0.1, 0.2, 9]).reshape(4, 1, 1), "cluster-medoid").sizes.tolist()
    [3, 1]
    """

    name: ClassVar[str] = "cluster-medoid"
    clusters: int = 2
    iterations: int = 10
    init: str = "random"

    def __post_init__(self) -> None:
        whole("clusters", self.clusters)
        whole("iterations", self.iterations)
        check_init(self.init)

    def select_batch(self, candidates: Candidates) -> BatchResult:
        return select_rounds(candidates, Clustering(self.clusters, NOTHING, self.iterations, self.init))
