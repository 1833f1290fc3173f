"""The paper's rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from keystone_robotics.select.engine import BatchResult, Clustering, check_init, select_rounds
from keystone_robotics.select.rounds import Candidates
from keystone_robotics.select.rules.base import Rule
from keystone_robotics.select.rules.checks import number, whole


@dataclass(frozen=True)
class Keystone(Rule):
    """The global medoid where the candidates look like one group, else the medoid of the largest of C clusters.

    "One group": the distance of their mean to the medoid, over the (lower) median of the pairwise distances, is below τ.
    Clusters come from k-means on the flattened chunks: centroids start from C candidates drawn with the seed, and it stops
    when no assignment changes. A cluster that runs empty keeps its centroid. Among clusters of equal size the one with the
    smaller inner distances wins, then the one that holds the lowest index; so of two candidates the first is selected.

    Args:
        tau: the guard's threshold.
        clusters: C.
        iterations: most k-means iterations.
        init: "random" (the paper), "first" (the authors' code), or two that do not depend on the order of the candidates:
            "farthest" (the two farthest apart, then farthest points) and "best" (lowest inertia of K such starts).

    >>> import numpy as np, keystone_robotics as keystone
    >>> chunks = np.array([0, 0.1, 0.2, 5, 5.1]).reshape(5, 1, 1)
    >>> keystone.select(chunks, "keystone", init="farthest").index
    1
    """

    name: ClassVar[str] = "keystone"
    tau: float = 0.3
    clusters: int = 2
    iterations: int = 10
    init: str = "random"

    def __post_init__(self) -> None:
        number("tau", self.tau)
        whole("clusters", self.clusters)
        whole("iterations", self.iterations)
        check_init(self.init)

    def select_batch(self, candidates: Candidates) -> BatchResult:
        return select_rounds(candidates, Clustering(self.clusters, self.tau, self.iterations, self.init))
