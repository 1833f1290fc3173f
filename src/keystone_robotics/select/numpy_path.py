"""The same decisions as the compiled path (see ``kernel.py``) where numba is missing.

A second code, because the kernel's loops are too slow in plain Python. One pass over the numbers of all rounds, then only
the K x K matrix of each. Comparisons are made after rounding to float32, as in the kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from keystone_robotics.select.metrics import (
    CANCELLED,
    EPSILON,
    LARGEST,
    METRICS,
    ROUNDING,
    distances_to,
    group_radius,
    motion,
    pairwise,
)

if TYPE_CHECKING:
    from keystone_robotics.select.engine import Decision, Output

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


NAMES = list(METRICS)  #: of metrics, by their number


class _Round(NamedTuple):
    """The n valid candidates of a round: distances and squared distances (n, n), features (n, N), starting order."""

    distances: Floats
    squared: Floats
    rows: Floats
    order: Ints


def select_rounds(features: NDArray[np.floating], steps: int, order: Ints, rule: Decision, out: Output) -> int:
    """Select in every round. Arguments as in ``kernel.select_rounds``."""
    indices, sizes, measures, members = out
    x = features.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        valid = np.count_nonzero(np.abs(x) < LARGEST, axis=2) == x.shape[2]
        if not valid.all():
            x[~valid] = np.nan
        distances, squared = pairwise(x, NAMES[rule.metric])
    indices[:] = -1
    indices[:, 1] = 0
    sizes[:] = 0
    measures[:] = 0.0
    members[:] = False
    everyone: Ints = np.arange(features.shape[1])
    for b, complete in enumerate(valid.all(1)):
        one, position = _Round(distances[b], squared[b], x[b], order), everyone
        if not complete:
            position = np.flatnonzero(valid[b])
            if not len(position):
                continue
            among = np.ix_(position, position)
            start = (np.cumsum(valid[b]) - 1)[order[valid[b][order]]]  # counted among the valid ones
            one = _Round(one.distances[among], one.squared[among], one.rows[position], start)
        winner, labels, averaged = _select_round(one, steps, rule, measures[b])
        indices[b, 0], indices[b, 1] = position[winner], labels is not None
        indices[b, 2 + position] = 0 if labels is None else labels
        if labels is None:
            sizes[b, 0] = len(position)
        else:
            counts = np.bincount(labels)
            sizes[b, : len(counts)] = counts
        if rule.average:
            members[b, position] = averaged
    return int(valid.size - valid.sum())


def _select_round(
    one: _Round, steps: int, rule: Decision, measures: Floats
) -> tuple[int, Ints | None, NDArray[np.bool_]]:
    """The selected candidate of one round, its labels if the candidates were clustered, and who is averaged."""
    distances, squared, rows, order = one
    n, metric = len(distances), NAMES[rule.metric]
    winner = _lowest(distances.sum(1))
    labels: Ints | None = None
    averaged: NDArray[np.bool_] = np.ones(n, bool)
    if n == 1:
        measures[2] = 1.0
        return winner, None, averaged
    # sorted, the n zeros of the diagonal come first, then every distance twice
    middle = n + 2 * ((n * (n - 1) // 2 - 1) // 2)
    median = float(np.partition(distances, middle, axis=None)[middle])
    spread = _gap(squared, rows, winner, metric) / (median + EPSILON)
    typical = motion(rows[winner], steps, metric)  # of the medoid
    clusters = min(rule.clusters, n)
    if spread >= rule.tau and clusters > 1:
        labels = _rank(distances, _cluster(squared, order, clusters, rule), clusters)
        inside = np.flatnonzero(labels == 0)
        winner = int(inside[_lowest(distances[inside][:, inside].sum(1))])
    if rule.average:
        averaged = _members(distances, labels, winner, rule)
        winner = _lowest(distances_to(rows, rows[averaged].mean(0), metric))
    radius = group_radius(distances, typical, metric) if labels is None else 0.0
    agreeing = np.count_nonzero(distances[winner] <= radius if labels is None else labels == 0)
    measures[:] = spread, median, agreeing / n, median / (median + typical) if median else 0.0, radius
    return winner, labels, averaged


def mean_chunks(chunks: NDArray[np.floating], members: NDArray[np.bool_], out: Floats) -> None:
    """Mean of the members of each round: (B, K, M) chunks and (B, K) bool to (B, M) float64, summed in order."""
    out[:] = 0.0
    for mean, candidates, averaged in zip(out, chunks, members, strict=True):
        for chunk in candidates[averaged]:
            mean += chunk
        mean /= averaged.sum()


def _members(distances: Floats, labels: Ints | None, medoid: int, rule: Decision) -> NDArray[np.bool_]:
    """(n,) who is averaged."""
    n = len(distances)
    if rule.average == 1:
        return np.ones(n, bool) if labels is None else labels == 0
    size = max(1, int(n * rule.share + 0.5))
    centre = medoid if rule.average == 2 else _lowest(np.partition(distances, size - 1, axis=1)[:, :size].mean(1))
    nearest = np.argsort(distances[centre].astype(np.float32), kind="stable")  # ties go to the lower index
    members = np.zeros(n, bool)
    members[nearest[:size]] = True
    return members


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


def _cluster(squared: Floats, order: Ints, clusters: int, rule: Decision) -> Ints:
    """(n,) cluster of each candidate."""
    iterations = rule.iterations
    if rule.init == 0:
        return _kmeans(squared, order[:clusters], iterations)[0]
    n = len(squared)
    if rule.init == 1:
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
