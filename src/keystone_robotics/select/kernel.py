"""The compiled CPU path: distances, guard, k-means and medoid of many rounds in one call, without Python in between.

Everything after the pairwise distances needs only the K x K matrix S of squared distances, because the squared distance of
candidate i to the centroid of a cluster of n members is  sum_j S_ij / n  -  sum_jk S_jk / (2 n^2)  (sums over members).

float32 candidates are first compared in float32, from direct differences, which cancel nothing. Every decision notes how
clear it was; where one was not (`CLEAR`), the round is decided again in float64. There, numbers are compared after rounding
to float32, so that what is equal up to rounding counts as equal and the lowest index wins. The other two paths
(``early_exit.py``, ``branch_free.py``) compare in the same way: all three decide alike.

Only the distance loops may be reassociated by the compiler; the decisions are compiled strictly.
"""

from __future__ import annotations

import math

import numba
import numpy as np

#: A candidate of a larger norm is dropped like one with an infinity: no action is of that size, and squares stay finite.
LARGEST = 1e15
EPSILON = 1e-8
#: Relative margin below which a decision made in float32 is made again in float64.
CLEAR = 1e-5
#: A difference that is smaller than this against what it is the difference of is rounding: nothing.
ROUNDING = 1e-13
#: Below this share of its two terms, the gap is no longer taken from their difference but from the mean itself.
CANCELLED = 1e-2

_strict = numba.njit(cache=True, nogil=True, boundscheck=False, error_model="numpy")
_reassociating = numba.njit(
    cache=True, nogil=True, boundscheck=False, error_model="numpy", fastmath={"reassoc", "contract", "nsz"}
)


@_reassociating
def _all_squared_l2(rows, n, out):
    """Squared distances of all pairs below the diagonal, in 2 x 2 tiles so that each number loaded is used twice."""
    zero = rows.dtype.type(0)  # of the rows' own type, so that float32 is summed in float32
    for i in range(0, n, 2):
        for j in range(0, i, 2):
            s00 = s01 = s10 = s11 = zero
            for t in range(rows.shape[1]):
                a0, a1, b0, b1 = rows[i, t], rows[i + 1, t], rows[j, t], rows[j + 1, t]
                s00 += (a0 - b0) * (a0 - b0)
                s01 += (a0 - b1) * (a0 - b1)
                s10 += (a1 - b0) * (a1 - b0)
                s11 += (a1 - b1) * (a1 - b1)
            out[i, j], out[i, j + 1], out[i + 1, j], out[i + 1, j + 1] = s00, s01, s10, s11
        total = zero
        for t in range(rows.shape[1]):
            difference = rows[i + 1, t] - rows[i, t]
            total += difference * difference
        out[i + 1, i] = total


@_reassociating
def _l1(a, b):
    total = 0.0
    for t in range(a.size):
        total += abs(a[t] - b[t])
    return total


@_reassociating
def _row_sums(matrix, n, out):
    for i in range(n):
        total = 0.0
        for j in range(n):
            total += matrix[i, j]
        out[i] = total


@_reassociating
def _load(features, b, rows, position):
    """Copy the usable candidates of round b into scratch, note where each came from; returns their number."""
    zero = features.dtype.type(0)
    n = 0
    for i in range(features.shape[1]):
        total = zero
        for t in range(features.shape[2]):
            value = features[b, i, t]
            rows[n, t] = value
            total += value * value
        if total < LARGEST * LARGEST:  # false for NaN
            position[n] = i
            n += 1
    return n


@_strict
def _to_unit_length(rows, n):
    for i in range(n):
        largest = 0.0
        for value in rows[i]:
            largest = max(largest, abs(value))
        if largest > 0.0:
            total = 0.0
            for t in range(rows.shape[1]):
                rows[i, t] /= largest  # so that the squares of tiny numbers do not vanish
                total += rows[i, t] * rows[i, t]
            for t in range(rows.shape[1]):
                rows[i, t] /= math.sqrt(total)


@_strict
def _pairwise(rows, n, metric, distances, squared):
    """Fill both (n, n) matrices; returns the largest squared distance."""
    _all_squared_l2(rows, n, squared)
    largest = 0.0
    for i in range(n):
        squared[i, i] = 0.0
        distances[i, i] = 0.0
        for j in range(i):
            s = squared[i, j]
            squared[j, i] = s
            largest = max(largest, s)
            if metric == 0:
                d = math.sqrt(s)
            elif metric == 1:
                d = _l1(rows[i], rows[j])
            else:
                d = s / 2.0
            distances[i, j] = d
            distances[j, i] = d
    return largest


@_strict
def _lower_median(distances, n, values):
    """The (m-1)//2-th smallest of the m distances above the diagonal.

    Quickselect with a partition that has no branch to mispredict: on random numbers that is half of the time.
    """
    m = 0
    for i in range(n):
        for j in range(i + 1, n):
            values[m] = distances[i, j]
            m += 1
    low, high, k = 0, m, (m - 1) // 2
    while high - low > 1:
        a, b, c = values[low], values[(low + high) // 2], values[high - 1]
        pivot = max(min(a, b), min(max(a, b), c))
        below = low
        for i in range(low, high):
            value = values[i]
            values[i] = values[below]
            values[below] = value
            below += value < pivot
        if k < below:
            high = below
        elif below > low:
            low = below
        else:  # the pivot is the smallest: set its equals aside
            for i in range(low, high):
                value = values[i]
                values[i] = values[below]
                values[below] = value
                below += value <= pivot
            if k < below:
                return pivot
            low = below
    return values[low]


@_strict
def _lowest(values, n):
    """(index, margin): the first of the lowest values, and by how much, relatively, the next one is higher."""
    best, winner, second = np.float32(np.inf), 0, np.inf
    lowest = np.inf
    for i in range(n):
        rounded = np.float32(values[i])
        if rounded < best:
            second = lowest
            best, winner, lowest = rounded, i, values[i]
        elif values[i] < second:
            second = values[i]
    if not second < np.inf:
        return winner, np.inf
    return winner, (second - lowest) / max(abs(lowest), abs(second), 1e-300)


@_strict
def _medoid(distances, n, labels, weights, totals):
    """(index, margin) of the member of cluster 0 with the smallest sum of distances to the others."""
    for i in range(n):
        weights[i] = labels[i] == 0
    for i in range(n):
        total = 0.0
        for j in range(n):
            total += distances[i, j] * weights[j]
        totals[i] = total if labels[i] == 0 else np.inf
    return _lowest(totals, n)


@_strict
def _gap(rows, sums, n, medoid, metric):
    """Distance of the mean to the medoid, in the metric; ``sums`` are the row sums of the squared distances."""
    total = 0.0
    for i in range(n):
        total += sums[i]
    to_medoid = sums[medoid] / n
    total = total / (2.0 * n * n)
    if metric == 0 and to_medoid - total > CANCELLED * to_medoid:
        return math.sqrt(to_medoid - total)
    if metric == 2:  # 1 - cos(mean, medoid) of unit vectors, written so that nothing cancels
        near = to_medoid / 2.0
        grow = math.expm1(-0.5 * math.log1p(-min(total, 1.0 - 1e-12)))
        return max(near - grow + near * grow, 0.0)
    apart = np.zeros(rows.shape[1])  # as seen from the medoid, so that equal candidates are exactly there
    for i in range(n):
        for t in range(rows.shape[1]):
            apart[t] += np.float64(rows[i, t]) - np.float64(rows[medoid, t])
    apart /= n
    return np.abs(apart).sum() if metric == 1 else math.sqrt((apart * apart).sum())


@_strict
def _farthest(squared, n, seeds, begin, clusters, work):
    """Fill seeds[begin:] with the candidate farthest from the seeds so far, one after the other; returns the margin."""
    margin = np.inf
    for c in range(begin, clusters):
        for i in range(n):
            nearest = np.inf
            for s in range(c):
                nearest = min(nearest, squared[seeds[s], i])
            work[i] = -nearest
        seeds[c], clear = _lowest(work, n)
        margin = min(margin, clear)
    return margin


@_strict
def _farthest_pair(squared, n, seeds):
    best, second = np.float32(-1.0), -1.0
    highest = -1.0
    for i in range(n):
        for j in range(i + 1, n):
            rounded = np.float32(squared[i, j])
            if rounded > best:
                second = highest
                best, highest = rounded, squared[i, j]
                seeds[0], seeds[1] = i, j
            elif squared[i, j] > second:
                second = squared[i, j]
    return (highest - second) / max(highest, 1e-300)


@_strict
def _kmeans(squared, n, seeds, clusters, iterations, labels, means, offset, count):
    """Lloyd's algorithm on the K x K algebra; labels in place, returns the margin.

    ``means[c, i]`` is the mean of the squared distances of candidate i to the members of c; the squared distance of i to the
    centroid is that less ``offset[c]``, half of the mean within the cluster.
    """
    largest = 0.0
    for c in range(clusters):
        offset[c] = 0.0
        for i in range(n):
            means[c, i] = squared[seeds[c], i]
            largest = max(largest, means[c, i])
    margin = np.inf
    for iteration in range(iterations):
        changed = iteration == 0
        for i in range(n):
            best, winner, lowest, second = np.float32(np.inf), 0, np.inf, np.inf
            for c in range(clusters):
                score = means[c, i] - offset[c]
                if score < ROUNDING * means[c, i]:
                    score = 0.0  # on the centroid
                rounded = np.float32(score)
                if rounded < best:
                    second = lowest
                    best, winner, lowest = rounded, c, score
                elif score < second:
                    second = score
            margin = min(margin, second - lowest)
            changed |= labels[i] != winner
            labels[i] = winner
        if not changed:
            break
        for c in range(clusters):
            count[c] = 0
        for i in range(n):
            count[labels[i]] += 1
        for c in range(clusters):
            if count[c] > 0:  # an empty cluster keeps its centroid
                offset[c] = 0.0
                for i in range(n):
                    means[c, i] = 0.0
        for j in range(n):
            c = labels[j]
            share = 1.0 / count[c]
            for i in range(n):
                means[c, i] += squared[j, i] * share
        for i in range(n):
            c = labels[i]
            offset[c] += means[c, i] / (2.0 * count[c])
    return margin / max(largest, 1e-300)


@_strict
def _inertia(squared, n, labels, clusters):
    """Sum of the squared distances of the candidates to the centroids of their clusters."""
    inertia = 0.0
    for c in range(clusters):
        size, total = 0, 0.0
        for i in range(n):
            if labels[i] == c:
                size += 1
                for j in range(n):
                    if labels[j] == c:
                        total += squared[i, j]
        if size > 0:
            inertia += total / (2.0 * size)
    return inertia


@_strict
def _cluster(squared, n, position, order, init, clusters, iterations, seeds, labels, trial, work, means, offset, count):
    """Split the candidates: labels in place, returns the margin."""
    if init == 0:
        for i in range(order.size):
            trial[i] = -1
        for i in range(n):
            trial[position[i]] = i
        found, o = 0, 0
        while found < clusters:
            if trial[order[o]] >= 0:
                seeds[found] = trial[order[o]]
                found += 1
            o += 1
        return _kmeans(squared, n, seeds, clusters, iterations, labels, means, offset, count)
    if init == 1:
        margin = min(_farthest_pair(squared, n, seeds), _farthest(squared, n, seeds, 2, clusters, work))
        return min(margin, _kmeans(squared, n, seeds, clusters, iterations, labels, means, offset, count))
    inertia = np.empty(n)
    margin = np.inf
    for start in range(n):
        seeds[0] = start
        margin = min(margin, _farthest(squared, n, seeds, 1, clusters, work))
        margin = min(margin, _kmeans(squared, n, seeds, clusters, iterations, trial, means, offset, count))
        inertia[start] = _inertia(squared, n, trial, clusters)
    best, _ = _lowest(inertia, n)
    for start in range(n):  # equal partitions have equal inertia; a near tie of different ones is not clear
        apart = abs(inertia[start] - inertia[best]) / max(inertia[best], 1e-300)
        if 1e-6 < apart < CLEAR:
            margin = 0.0
    seeds[0] = best
    _farthest(squared, n, seeds, 1, clusters, work)
    _kmeans(squared, n, seeds, clusters, iterations, labels, means, offset, count)
    return margin


@_strict
def _inner(distances, n, labels, c):
    """Sum of the distances within a cluster."""
    total = 0.0
    for i in range(n):
        if labels[i] == c:
            for j in range(n):
                if labels[j] == c:
                    total += distances[i, j]
    return total


@_strict
def _first_member(n, labels, c):
    for i in range(n):
        if labels[i] == c:
            return i
    return n


@_strict
def _rank_clusters(distances, n, labels, clusters, count, rank, sizes, b):
    """Relabel so that 0 is the winner: most members, then smallest inner distances, then lowest first member.

    Writes the sizes in that order, returns the margin.
    """
    for c in range(clusters):
        count[c] = rank[c] = 0
    for i in range(n):
        count[labels[i]] += 1
    margin = np.inf
    for one in range(clusters):
        for other in range(one):
            if count[one] == count[other]:
                inner, inner_other = _inner(distances, n, labels, one), _inner(distances, n, labels, other)
                margin = min(margin, abs(inner - inner_other) / max(inner, inner_other, 1e-300))
                if np.float32(inner) != np.float32(inner_other):
                    wins = inner < inner_other
                else:
                    wins = _first_member(n, labels, one) < _first_member(n, labels, other)
            else:
                wins = count[one] > count[other]
            rank[other if wins else one] += 1
    for c in range(clusters):
        sizes[b, rank[c]] = count[c]
    for i in range(n):
        labels[i] = rank[labels[i]]
    return margin


@_strict
def choose(features, order, metric, clusters, tau, iterations, init, indices, sizes, measures):
    """Select in every round; one call for the whole batch.

    Args:
        features: (B, K, N) float32 or float64; a candidate with a non-finite number is dropped.
        order: (K,) permutation; ``init`` 0 takes the first valid candidates of it as centroids.
        metric: 0 L2, 1 L1, 2 cosine.
        clusters: C, at least 1.
        tau: cluster where the spread is not below it.
        iterations: most k-means iterations.
        init: 0 from ``order``, 1 farthest points, 2 the best of K farthest-point starts.
        indices: out, (B, K + 2) int64: chosen index (-1: no valid candidate), clustered (0 or 1), labels (-1: dropped).
        sizes: out, (B, C) int64, largest first.
        measures: out, (B, 2) float64: spread, median distance.

    Returns:
        How many candidates were dropped.
    """
    batch, k, length = features.shape
    even, padded = (
        k + k % 2,
        (length + 31) // 32 * 32,
    )  # whole tiles and whole vectors: the padding is zero, adds nothing
    rows = np.empty((even, padded), features.dtype)
    rows[:, length:] = 0
    rows[k:] = 0
    # Few allocations, cut up: at this size one costs as much as a step of k-means.
    c = min(clusters, k)
    whole = np.empty((6, k), np.int64)
    real = np.empty((2 * even + c + 2, even))
    position, labels, trial, seeds, count, rank = whole[0], whole[1], whole[2], whole[3], whole[4], whole[5]
    distances, squared, means = real[:even], real[even : 2 * even], real[2 * even : 2 * even + c]
    totals, offset, upper = real[-2], real[-1], np.empty(k * (k - 1) // 2 + 1)
    exact = np.empty((0, 0))
    dropped = 0
    for b in range(batch):
        n = _load(features, b, rows, position)
        dropped += k - n
        margin = _decide(
            b, rows, n, order, metric, clusters, tau, iterations, init, indices, sizes, measures, position, labels,
            trial, seeds, count, rank, distances, squared, means, totals, offset, upper,
        )  # fmt: skip
        if features.itemsize == 4 and margin < CLEAR:
            if exact.size == 0:
                exact = np.zeros((even, padded))
            _load(features, b, exact, position)
            _decide(
                b, exact, n, order, metric, clusters, tau, iterations, init, indices, sizes, measures, position, labels,
                trial, seeds, count, rank, distances, squared, means, totals, offset, upper,
            )  # fmt: skip
    return dropped


@_strict
def _decide(
    b, rows, n, order, metric, clusters, tau, iterations, init, indices, sizes, measures, position, labels,
    trial, seeds, count, rank, distances, squared, means, totals, offset, upper,
):  # fmt: skip
    """Round b; returns how clear the least clear decision was."""
    for i in range(indices.shape[1]):
        indices[b, i] = -1
    indices[b, 1] = 0
    for c in range(clusters):
        sizes[b, c] = 0
    measures[b, 0] = measures[b, 1] = 0.0
    if n == 0:
        return np.inf
    sizes[b, 0] = n
    for i in range(n):
        labels[i] = 0
    if metric == 2:
        if rows.itemsize == 4:
            return 0.0  # rounding to unit length would lose what tells close candidates apart
        _to_unit_length(rows, n)
    largest = _pairwise(rows, n, metric, distances, squared)
    if rows.itemsize == 4 and n > 1 and not 1e-30 < largest < 1e30:
        return 0.0  # squares overflow or vanish in float32
    _row_sums(distances, n, totals)
    winner, margin = _lowest(totals, n)
    if n > 1:
        median = _lower_median(distances, n, upper)
        _row_sums(squared, n, totals)
        spread = _gap(rows, totals, n, winner, metric) / (median + EPSILON)
        measures[b, 0] = spread
        measures[b, 1] = median
        c = min(clusters, n)
        if c > 1 and abs(tau) < np.inf:
            margin = min(margin, abs(spread - tau))
        if c > 1 and spread >= tau:
            margin = min(
                margin,
                _cluster(
                    squared,
                    n,
                    position,
                    order,
                    init,
                    c,
                    iterations,
                    seeds,
                    labels,
                    trial,
                    totals,
                    means,
                    offset,
                    count,
                ),
            )
            margin = min(margin, _rank_clusters(distances, n, labels, c, count, rank, sizes, b))
            winner, clear = _medoid(distances, n, labels, means[0], totals)
            margin = min(margin, clear)
            indices[b, 1] = 1
    indices[b, 0] = position[winner]
    for i in range(n):
        indices[b, 2 + position[i]] = labels[i]
    return margin
