"""The paper's rule once more, written down as plainly as possible in float64, to judge the fast paths by.

Flattened chunks, direct differences, centroids that are mean vectors: none of the algebra on distance matrices that the
library uses. Ties are broken as ``rules/keystone.py`` and ``kernel.py`` say: what is equal after rounding to float32 is equal,
and then the lowest index wins.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from keystone_robotics.select.engine import starting_order

LARGEST = 2.0**49
EPSILON = 1e-8


class Verdict(NamedTuple):
    index: int
    labels: list[int]
    sizes: list[int]
    clustered: bool
    spread: float
    median: float


def lowest(values: np.ndarray) -> int:
    return int(np.argmin(np.asarray(values, np.float32)))


def norms(vectors: np.ndarray, metric: str) -> np.ndarray:
    """Length of difference vectors (..., N); for cosine half the square, as the rows have length 1."""
    if metric == "l1":
        return np.abs(vectors).sum(-1)
    squares = np.square(vectors).sum(-1)
    return np.sqrt(squares) if metric == "l2" else squares / 2


def kmeans(x: np.ndarray, seeds: list[int], iterations: int) -> tuple[np.ndarray, float]:
    centroids = x[seeds].copy()
    resolution = (1e-12 * np.abs(x).max()) ** 2  # a mean is exact to a few units in the last place
    labels = None
    for _ in range(iterations):
        squares = np.square(x[:, None] - centroids[None]).sum(-1)
        squares[squares < resolution] = 0
        new = np.argmin(squares.astype(np.float32), axis=1)
        if labels is not None and (new == labels).all():
            break
        labels = new
        for c in range(len(seeds)):
            if (labels == c).any():
                centroids[c] = x[labels == c].mean(0)
    inertia = sum(np.square(x[labels == c] - x[labels == c].mean(0)).sum() for c in set(labels.tolist()))
    return labels, float(inertia)


def complete(x: np.ndarray, seeds: list[int], clusters: int) -> list[int]:
    """Farthest-point seeds."""
    while len(seeds) < clusters:
        nearest = np.square(x[:, None] - x[seeds][None]).sum(-1).min(1)
        seeds = [*seeds, lowest(-nearest)]
    return seeds


def cluster(x: np.ndarray, order: list[int], clusters: int, iterations: int, init: str) -> np.ndarray:
    if init in ("random", "first"):
        return kmeans(x, order[:clusters], iterations)[0]
    if init == "farthest":
        i, j = np.triu_indices(len(x), 1)
        pair = lowest(-np.square(x[i] - x[j]).sum(-1))
        return kmeans(x, complete(x, [int(i[pair]), int(j[pair])], clusters), iterations)[0]
    starts = [kmeans(x, complete(x, [i], clusters), iterations) for i in range(len(x))]
    return starts[lowest(np.array([inertia for _, inertia in starts]))][0]


def judge(
    rows: np.ndarray,
    seed: int = 0,
    metric: str = "l2",
    clusters: int = 2,
    tau: float = 0.3,
    iterations: int = 10,
    init: str = "random",
) -> Verdict:
    """(K, ...) chunks of one round to what the paper's rule says about them."""
    x = np.asarray(rows, np.float64).reshape(len(rows), -1)
    clusters = min(clusters, len(x))
    with np.errstate(all="ignore"):
        valid = np.flatnonzero((np.abs(x) < LARGEST).all(1))
    order = [int(np.flatnonzero(valid == o)[0]) for o in starting_order(init, len(x), seed) if o in valid]
    everyone = np.full(len(x), -1)
    x = x[valid]
    n = len(x)
    if metric == "cosine":
        x = x / np.linalg.norm(x, axis=1, keepdims=True)
    distances = norms(x[:, None] - x[None], metric)
    medoid = lowest(distances.sum(1))
    everyone[valid] = 0
    if n == 1:
        return Verdict(int(valid[0]), everyone.tolist(), [1] + [0] * (clusters - 1), False, 0.0, 0.0)
    upper = np.sort(distances[np.triu_indices(n, 1)])
    median = upper[(len(upper) - 1) // 2]
    gap = norms(x.mean(0) - x[medoid], metric)
    if metric == "cosine":  # 1 - cos(mean, medoid); directions that cancel have none in common with the medoid
        length = np.linalg.norm(x.mean(0))
        gap = norms(x.mean(0) / length - x[medoid], metric) if length > 1e-12 else 1.0
    spread = gap / (median + EPSILON)
    found = min(clusters, n)
    if spread < tau or found == 1:
        index, labels, sizes = medoid, np.zeros(n, int), [n] + [0] * (clusters - 1)
        return Verdict(int(valid[index]), everyone.tolist(), sizes, False, float(spread), float(median))
    parts = cluster(x, order, found, iterations, init)

    def standing(c: int) -> tuple[int, np.float32, int]:
        members = np.flatnonzero(parts == c)
        inner = np.float32(distances[np.ix_(members, members)].sum())
        return -len(members), inner, int(members[0]) if len(members) else n

    ranking = sorted(range(found), key=standing)
    labels = np.array([ranking.index(c) for c in parts])
    members = np.flatnonzero(labels == 0)
    index = members[lowest(distances[np.ix_(members, members)].sum(1))]
    everyone[valid] = labels
    sizes = [int((labels == c).sum()) for c in range(clusters)]
    return Verdict(int(valid[index]), everyone.tolist(), sizes, True, float(spread), float(median))


KINDS = ("isotropic", "bimodal", "tight", "duplicates", "lattice")


def shape_of(kind: str, k: int, n: int, rng: np.random.Generator) -> np.ndarray:
    """(k, n) numbers of order 1 whose geometry is of a kind."""
    noise = rng.normal(size=(k, n))
    if kind == "isotropic":
        return noise
    if kind == "bimodal":
        side = rng.random(k) < rng.uniform(0.2, 0.8)
        return 0.3 * noise + np.where(side[:, None], 1, -1) * rng.normal(size=n)
    if kind == "tight":
        centres = rng.normal(size=(rng.integers(2, 6), n))
        return 0.05 * noise + centres[rng.integers(len(centres), size=k)]
    if kind == "duplicates":
        return noise[rng.integers(max(1, k // 3), size=k)]
    return rng.integers(-2, 3, size=(k, n)).astype(float)
