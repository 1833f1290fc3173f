"""The same decisions as the compiled kernel (see ``kernel.py``) where numba is missing.

One pass over the numbers of all rounds, then only the small K x K matrix of each, stopping as soon as nothing can change.
Comparisons are made after rounding to float32, as in the kernel.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from keystone_robotics.select.metrics import LARGEST, ROUNDING, pairwise, squared_distances

EPSILON = 1e-8
CANCELLED = 1e-2  #: see ``kernel.py``
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def choose(
    features: NDArray[np.floating],
    order: Ints,
    metric: str,
    clusters: int,
    tau: float,
    iterations: int,
    init: str,
    indices: Ints,
    sizes: Ints,
    measures: Floats,
) -> int:
    """Select in every round. Arguments as in ``kernel.choose``, but ``metric`` and ``init`` by name."""
    x = features.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        size = np.einsum("bkn,bkn->bk", x, x)
        valid = size < LARGEST * LARGEST
        whole = bool(valid.all())
        if not whole:
            x[~valid], size[~valid] = np.nan, np.nan
        distances, squared = _pairwise(x, size, valid, metric)
    indices[:] = -1
    indices[:, 1] = 0
    sizes[:] = 0
    measures[:] = 0.0
    dropped = 0
    for b in range(len(features)):
        position: NDArray[np.intp] | slice = slice(None)
        d, s, rows = distances[b], squared[b], x[b]
        if not whole:
            position = np.flatnonzero(valid[b])
            dropped += len(d) - len(position)
            if not len(position):
                continue
            d, s, rows = d[np.ix_(position, position)], s[np.ix_(position, position)], rows[position]
        winner, labels = _decide(
            d, s, rows, _usable(order, position), metric, clusters, tau, iterations, init, measures[b]
        )
        indices[b, 2:][position] = 0 if labels is None else labels
        indices[b, 1] = labels is not None
        indices[b, 0] = winner if isinstance(position, slice) else position[winner]
        if labels is None:
            sizes[b, 0] = len(d)
        else:
            counts = np.bincount(labels)
            sizes[b, : len(counts)] = counts
    return dropped


def _pairwise(x: Floats, size: Floats, valid: NDArray[np.bool_], metric: str) -> tuple[Floats, Floats]:
    """`pairwise` of `keystone_robotics.select.metrics`; for l2 in numpy, which is quicker on few numbers."""
    if metric != "l2":
        distances, squared = pairwise(torch.from_numpy(x), metric)
        return distances.numpy(), squared.numpy()
    middle = np.maximum(valid.sum(1) - 1, 0) // 2
    every = np.arange(len(x))
    seen = x - x[every, size.argsort(1)[every, middle]][:, None]
    product = seen @ seen.transpose(0, 2, 1)
    squares = squared_distances(product, product.diagonal(0, -2, -1))
    return np.sqrt(squares), squares


def _usable(order: Ints, position: NDArray[np.intp] | slice) -> Ints:
    """The order of the candidates that are left, counted among themselves."""
    if isinstance(position, slice):
        return order
    place = np.full(len(order), -1)
    place[position] = np.arange(len(position))
    return place[order][place[order] >= 0]


def _decide(
    distances: Floats,
    squared: Floats,
    rows: Floats,
    order: Ints,
    metric: str,
    clusters: int,
    tau: float,
    iterations: int,
    init: str,
    measures: Floats,
) -> tuple[int, Ints | None]:
    """The chosen candidate of one round, and its labels if the candidates were clustered."""
    n = len(distances)
    winner = _lowest(distances.sum(1))
    if n == 1:
        return winner, None
    # sorted, the n zeros of the diagonal come first, then every distance twice
    middle = n + 2 * ((n * (n - 1) // 2 - 1) // 2)
    median = float(np.partition(distances, middle, axis=None)[middle])
    spread = _gap(squared, rows, winner, metric) / (median + EPSILON)
    measures[:] = spread, median
    clusters = min(clusters, n)
    if spread < tau or clusters == 1:
        return winner, None
    labels = _rank(distances, _cluster(squared, order, clusters, iterations, init), clusters)
    members = np.flatnonzero(labels == 0)
    return int(members[_lowest(distances[members][:, members].sum(1))]), labels


def _lowest(values: Floats, axis: int | None = None) -> int:
    return values.astype(np.float32).argmin(axis)  # type: ignore[return-value]


def _gap(squared: Floats, rows: Floats, medoid: int, metric: str) -> float:
    """Distance of the mean to the medoid, in the metric."""
    if metric == "l1":
        return float(np.abs((rows - rows[medoid]).mean(0)).sum())
    n = len(squared)
    to_medoid, total = squared[medoid].sum() / n, squared.sum() / (2.0 * n * n)
    if metric == "l2":
        if to_medoid - total > CANCELLED * to_medoid:
            return float(np.sqrt(to_medoid - total))
        return float(np.linalg.norm((rows - rows[medoid]).mean(0)))
    near = to_medoid / 2.0
    grow = np.expm1(-0.5 * np.log1p(-min(total, 1.0 - 1e-12)))
    return max(float(near - grow + near * grow), 0.0)


def _cluster(squared: Floats, order: Ints, clusters: int, iterations: int, init: str) -> Ints:
    """(n,) cluster of each candidate."""
    if init == "order":
        return _kmeans(squared, order[:clusters], iterations)[0]
    n = len(squared)
    if init == "farthest":
        i, j = np.triu_indices(n, 1)
        pair = _lowest(-squared[i, j])
        return _kmeans(squared, _farthest(squared, [int(i[pair]), int(j[pair])], clusters), iterations)[0]
    starts = [_kmeans(squared, _farthest(squared, [i], clusters), iterations) for i in range(n)]
    return starts[_lowest(np.array([inertia for _, inertia in starts]))][0]


def _farthest(squared: Floats, seeds: list[int], clusters: int) -> Ints:
    """Seeds completed by the candidate farthest from those so far, one after the other."""
    while len(seeds) < clusters:
        seeds = [*seeds, int(_lowest(-squared[seeds].min(0)))]
    return np.array(seeds)


def _kmeans(squared: Floats, seeds: Ints, iterations: int) -> tuple[Ints, float]:
    """Lloyd's algorithm on the K x K algebra: labels and inertia."""
    numbers = np.arange(len(seeds))[:, None]
    sums = squared[seeds]
    counts: Floats = np.ones((len(seeds), 1))
    within: Floats = np.zeros((len(seeds), 1))
    labels = None
    for _ in range(iterations):
        means = sums / counts
        score = means - within / (2.0 * counts * counts)
        score[score < ROUNDING * means] = 0.0  # on the centroid
        previous, labels = labels, np.asarray(_lowest(score, 0))
        if previous is not None and (labels == previous).all():
            break
        member = np.equal(labels, numbers).astype(np.float64)
        size = member.sum(1, keepdims=True)
        row = member @ squared
        inner = (row * member).sum(1, keepdims=True)
        if size.all():
            sums, counts, within = row, size, inner
        else:  # an empty cluster keeps its centroid
            sums = np.where(size > 0, row, sums)
            counts, within = np.where(size > 0, size, counts), np.where(size > 0, inner, within)
    return labels, float((inner / (2.0 * np.maximum(size, 1.0))).sum())  # type: ignore[return-value]


def _rank(distances: Floats, labels: Ints, clusters: int) -> Ints:
    """Relabel so that 0 is the winner: most members, then smallest inner distances, then lowest first member."""
    member = (labels == np.arange(clusters)[:, None]).astype(np.float64)
    inner = ((member @ distances) * member).sum(1).astype(np.float32)
    order = np.lexsort((member.argmax(1), inner, -member.sum(1)))
    rank = np.empty(clusters, np.int64)
    rank[order] = np.arange(clusters)
    return rank[labels]
