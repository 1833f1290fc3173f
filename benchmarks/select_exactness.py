"""How often each selector picks what the paper's rule picks when it is computed without rounding to speak of.

The oracle works in float64 from direct differences. A pick counts as equal if the chunk is the oracle's, number for number:
where clusters are of equal size the medoid of either will do, because the paper does not say which.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.reference import cluster_medoid_select
from benchmarks.select_clouds import isotropic, two_ways
from benchmarks.select_paths import SELECTORS
from benchmarks.select_ratios import DIMS, STEPS, Effort

SPREADS = (1.0, 0.1, 0.01, 0.001)
OFFSETS = (0.0, 1.0, 10.0, 100.0)
SIZES = (4, 8, 16, 32, 64)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
TAU, CLUSTERS = 0.3, 2
ITERATIONS = 100  # enough to converge, so that where to stop is no part of the comparison


def first_lowest(values: NDArray[np.float64]) -> NDArray[np.intp]:
    """The first of the lowest along the first axis; values that differ by float64's rounding alone are equal."""
    return (values <= values.min(0) * (1 + 1e-12)).argmax(0)


def oracle(points: NDArray[np.float64]) -> list[int]:
    """(K, N) candidates of one round to the indices that are right, plainly."""
    k = len(points)
    distances = np.stack([np.sqrt(((points - one) ** 2).sum(1)) for one in points])
    medoid = int(first_lowest(distances.sum(1)))
    median = np.sort(distances[np.triu_indices(k, 1)])[(k * (k - 1) // 2 - 1) // 2]
    if np.linalg.norm(points.mean(0) - points[medoid]) / (median + 1e-8) < TAU:
        return [medoid]
    centroids = points[:CLUSTERS]
    labels = np.full(k, -1)
    for _ in range(ITERATIONS):
        previous, labels = labels, first_lowest(np.stack([((points - one) ** 2).sum(1) for one in centroids]))
        if (labels == previous).all():
            break
        groups = [points[labels == c] for c in range(CLUSTERS)]
        centroids = np.stack([group.mean(0) if len(group) else centroids[c] for c, group in enumerate(groups)])
    counts = np.bincount(labels, minlength=CLUSTERS)
    largest = [np.flatnonzero(labels == c) for c in np.flatnonzero(counts == counts.max())]
    return [int(members[first_lowest(distances[np.ix_(members, members)].sum(1))]) for members in largest]


def cases() -> list[tuple[int, float, float, str]]:
    """Every K, spread, offset and dtype."""
    return list(itertools.product(SIZES, SPREADS, OFFSETS, DTYPES))


def shares(k: int, spread: float, offset: float, dtype: str, effort: Effort) -> dict[str, Any]:
    """The share of picks that are right, of each selector."""
    candidates = _candidates(k, spread, offset, effort.trials).to(DTYPES[dtype])
    right = [oracle(points) for points in candidates.double().flatten(2).numpy()]
    row: dict[str, Any] = {"k": k, "spread": spread, "offset": offset, "dtype": dtype, "trials": effort.trials}
    for name in SELECTORS:
        equal = [
            any(torch.equal(chunks[pick], chunks[good]) for good in wanted)
            for chunks, pick, wanted in zip(candidates, _picks(name, candidates), right, strict=True)
        ]
        row[name] = sum(equal) / len(equal)
    return row


def _candidates(k: int, spread: float, offset: float, trials: int) -> Tensor:
    """Around a shared chunk of values about 1: half of the rounds without structure, half of two modes."""
    generator = torch.Generator().manual_seed(k)
    shape = (trials // 2, k, STEPS, DIMS)
    clouds = torch.cat([isotropic(shape, generator), two_ways(shape, generator)]).double()
    shared = torch.randn(len(clouds), 1, STEPS, DIMS, generator=generator).double()
    return shared + offset + spread * clouds


def _picks(name: str, candidates: Tensor) -> list[int]:
    if name == "reference":  # as float32, because torch.cdist takes no bfloat16 on a CPU
        starts = torch.arange(CLUSTERS)
        _, index = cluster_medoid_select(candidates.float(), CLUSTERS, TAU, ITERATIONS, starts=starts)
    else:
        chosen: Any = SELECTORS[name](candidates, clusters=CLUSTERS, tau=TAU, iterations=ITERATIONS, init="first")
        index = chosen.index
    return [int(i) for i in index]
