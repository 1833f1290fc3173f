"""The compiled path: distances, guard, k-means, medoid, core and disagreement of many rounds in one call.

Everything after the pairwise distances needs only the K x K matrix S of squared distances, because the squared distance of
candidate i to the centroid of a cluster of n members is  sum_j S_ij / n  -  sum_jk S_jk / (2 n^2)  (sums over members).

float32 candidates are first compared in float32, from direct differences, which cancel nothing. Every decision notes its
margin; where one is below `CLEAR`, the round is decided again in float64. There, numbers are compared after rounding to
float32, so that what is equal up to rounding counts as equal and the lowest index wins. `numpy_path`, which serves where numba
is missing, compares in the same way: both decide alike.

Only the distance loops may be reassociated by the compiler; the decisions are compiled strictly.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from keystone_robotics.select.engine import Decision, Output

# Numba's cache on disk knows when this file changes, and no other: the constants of `metrics`, written here once more.
CANCELLED, EPSILON, GROUP_DIAMETERS = 1e-2, 1e-8, 1.251
JITTER, LARGEST, ROUNDING = 1e-5, 2.0**49, 1e-13

# For the same reason: what is compiled knows the fields by their place.
assert Decision._fields == ("metric", "clusters", "tau", "iterations", "init", "average", "share")

Array = NDArray[Any]

#: Relative margin below which a decision made in float32 is made again in float64.
CLEAR = 1e-5

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


@_strict
def _usable(features, b, position):
    """Note which candidates of round b hold only numbers of the size of an action; returns how many do."""
    n = 0
    largest = features.dtype.type(LARGEST)  # exact in float32
    for i in range(features.shape[1]):
        wrong = 0
        for t in range(features.shape[2]):
            wrong += not abs(features[b, i, t]) < largest  # true for NaN
        if wrong == 0:
            position[n] = i
            n += 1
    return n


@_strict
def _load(features, b, position, n, rows):
    """Copy the usable candidates of round b into scratch."""
    for i in range(n):
        for t in range(features.shape[2]):
            rows[i, t] = features[b, position[i], t]


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
def _smallest(values, m, k):
    """The k-th smallest (from 0) of the first m values; brings the k + 1 smallest to the front.

    Quickselect with a partition that has no branch to mispredict: on random numbers that is half of the time.
    """
    low, high = 0, m
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
            if (
                k < below or below == low
            ):  # the latter with a NaN alone, which no path lets in: better wrong than endless
                return pivot
            low = below
    return values[low]


@_strict
def _lower_median(distances, n, values):
    """The (m-1)//2-th smallest of the m distances above the diagonal."""
    m = 0
    for i in range(n):
        for j in range(i + 1, n):
            values[m] = distances[i, j]
            m += 1
    return _smallest(values, m, (m - 1) // 2)


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
def _kmeans(n, clusters, iterations, labels, s):
    """Lloyd's algorithm on the K x K algebra; labels in place, returns the margin.

    ``means[c, i]`` is the mean of the squared distances of candidate i to the members of c; the squared distance of i to the
    centroid is that less ``offset[c]``, half of the mean within the cluster.
    """
    squared, seeds, means, offset, count = s.squared, s.seeds, s.means, s.offset, s.counts
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
def _cluster(order, rule, clusters, n, s):
    """Split the candidates: labels in place, returns the margin."""
    if rule.init == 0:
        for i in range(order.size):
            s.trial[i] = -1
        for i in range(n):
            s.trial[s.position[i]] = i
        found = 0
        for candidate in order:
            if s.trial[candidate] >= 0 and found < clusters:
                s.seeds[found] = s.trial[candidate]
                found += 1
        return _kmeans(n, clusters, rule.iterations, s.labels, s)
    if rule.init == 1:
        margin = min(_farthest_pair(s.squared, n, s.seeds), _farthest(s.squared, n, s.seeds, 2, clusters, s.totals))
        clear = _kmeans(n, clusters, rule.iterations, s.labels, s)
        return min(margin, clear)
    inertia = np.empty(n)
    margin = np.inf
    for start in range(n):
        s.seeds[0] = start
        margin = min(margin, _farthest(s.squared, n, s.seeds, 1, clusters, s.totals))
        clear = _kmeans(n, clusters, rule.iterations, s.trial, s)
        margin = min(margin, clear)
        inertia[start] = _inertia(s.squared, n, s.trial, clusters)
    best, _ = _lowest(inertia, n)
    for start in range(n):  # equal partitions have equal inertia; a near tie of different ones is not clear
        apart = abs(inertia[start] - inertia[best]) / max(inertia[best], 1e-300)
        if 1e-6 < apart < CLEAR:
            margin = 0.0
    s.seeds[0] = best
    _farthest(s.squared, n, s.seeds, 1, clusters, s.totals)
    _kmeans(n, clusters, rule.iterations, s.labels, s)
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
def _rank_clusters(n, clusters, s, sizes, b):
    """Relabel so that 0 is the winner: most members, then smallest inner distances, then lowest first member.

    Writes the sizes in that order, returns the margin.
    """
    distances, labels, count, rank = s.distances, s.labels, s.counts, s.rank
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
def _nearest(distances, n, centre, size, members):
    """Mark the ``size`` candidates nearest to the centre, ties to the lower index; returns the margin."""
    inside, outside = 0.0, np.inf
    for i in range(n):
        own, rank = np.float32(distances[centre, i]), 0
        for j in range(n):
            other = np.float32(distances[centre, j])
            rank += (other < own) | ((other == own) & (j < i))
        members[i] = rank < size
        if rank < size:
            inside = max(inside, distances[centre, i])
        else:
            outside = min(outside, distances[centre, i])
    return (outside - inside) / max(outside, 1e-300) if outside < np.inf else np.inf


@_strict
def _tightest(distances, n, size, values, means):
    """(index, margin) of the candidate with the smallest mean distance to its ``size`` nearest, itself included."""
    for i in range(n):
        for j in range(n):
            values[j] = distances[i, j]
        _smallest(values, n, size - 1)
        total = 0.0
        for j in range(size):
            total += values[j]
        means[i] = total / size
    return _lowest(means, n)


@_reassociating
def _distances_to(rows, n, point, metric, out):
    for i in range(n):
        total = 0.0
        if metric == 1:
            for t in range(point.size):
                total += abs(rows[i, t] - point[t])
        else:
            for t in range(point.size):
                total += (rows[i, t] - point[t]) * (rows[i, t] - point[t])
        out[i] = math.sqrt(total) if metric == 0 else total


@_strict
def _add(row, out):
    for t in range(out.size):
        out[t] += row[t]


@_strict
def _nearest_to_mean(features, b, rows, n, metric, s):
    """The candidate nearest to the mean of the members."""
    mean = np.zeros(features.shape[2])
    count = 0
    for i in range(n):
        if s.members[i]:
            count += 1
            _add(features[b, s.position[i]], mean)
    mean /= count
    if metric == 2:
        _to_unit_length(mean.reshape(1, mean.size), 1)
    _distances_to(rows, n, mean, metric, s.totals)
    return _lowest(s.totals, n)[0]


@_strict
def _core_diameter(distances, n, values):
    """Largest distance within the tightest half: the smallest ball around a candidate that holds half of the candidates."""
    half = (n + 1) // 2
    best = np.inf
    for i in range(n):
        nearer = 0
        for j in range(n):
            nearer += distances[i, j] < best
        if nearer >= half:
            for j in range(n):
                values[j] = distances[i, j]
            best = _smallest(values, n, half - 1)
    best *= 1 + JITTER  # ties are not decided by rounding
    smallest = np.inf  # of several balls of that size, whatever the order of the candidates
    for centre in range(n):
        inside = 0
        for j in range(n):
            inside += distances[centre, j] <= best
        if inside < half:
            continue
        diameter = 0.0
        for i in range(n):
            if distances[centre, i] <= best:
                for j in range(i):
                    if distances[centre, j] <= best:
                        diameter = max(diameter, distances[i, j])
        smallest = min(smallest, diameter)
    return smallest


@_strict
def _motion(row, length, steps, metric):
    """`metrics.motion` of one candidate."""
    if metric == 2:
        return 1.0
    width = length // steps
    total = 0.0
    for begin in range(0 if steps == 1 else width, length, width):
        for t in range(width):
            away = np.float64(row[begin + t]) - (0.0 if steps == 1 else np.float64(row[t]))
            total += abs(away) if metric == 1 else away * away
    return total if metric == 1 else math.sqrt(total)


class _Scratch(NamedTuple):
    """Memory that all rounds of a call share."""

    position: Array
    labels: Array
    trial: Array
    seeds: Array
    counts: Array
    rank: Array
    members: Array
    distances: Array
    squared: Array
    means: Array
    totals: Array
    offset: Array
    values: Array


class _Call(NamedTuple):
    """What does not change from round to round."""

    features: Array
    steps: int
    order: Array
    rule: Decision


class _Written(NamedTuple):
    """The first three of an `Output`."""

    indices: Array
    sizes: Array
    measures: Array


def select_rounds(features: Array, steps: int, order: Array, rule: Decision, out: Output) -> int:
    """Select in every round; one call for the whole batch.

    Args:
        features: (B, K, N) float32 or float64; a candidate with a number that is not below `LARGEST` is dropped.
        steps: S, how many steps the N numbers are.
        order: (K,) permutation; ``init`` 0 takes the first valid candidates of it as centroids.
        rule: a `Decision`.
        out: `Output`, filled; ``members`` is not written if nobody is averaged.

    Returns:
        How many candidates were dropped.
    """
    return compiled_rounds(features, steps, order, *rule, *out)  # type: ignore[no-any-return]


@_strict
def compiled_rounds(
    features, steps, order, metric, clusters, tau, iterations, init, average, share, indices, sizes, measures, members
):
    """`select_rounds`. Tuples at this border would cost two microseconds a call, a seventh of it."""
    batch, k, length = features.shape
    # whole tiles and whole vectors: the padding is zero, adds nothing
    even, padded = k + k % 2, (length + 31) // 32 * 32
    rows = np.empty((even, padded), features.dtype)
    rows[:, length:] = 0
    rows[k:] = 0
    # Few allocations, cut up: at this size one costs as much as a step of k-means.
    c = min(clusters, k)
    whole = np.empty((7, k), np.int64)
    real = np.empty((2 * even + c + 2, even))
    scratch = _Scratch(
        whole[0], whole[1], whole[2], whole[3], whole[4], whole[5], whole[6],
        real[:even], real[even : 2 * even], real[2 * even : 2 * even + c], real[-2], real[-1],
        np.empty(max(k * (k - 1) // 2, k)),
    )  # fmt: skip
    call = _Call(features, steps, order, Decision(metric, clusters, tau, iterations, init, average, share))
    out = _Written(indices, sizes, measures)
    exact = np.empty((0, 0))
    dropped = 0
    for b in range(batch):
        n = _usable(features, b, scratch.position)  # once: both precisions decide on the same candidates
        _load(features, b, scratch.position, n, rows)
        dropped += k - n
        margin = _select_round(call, b, rows, n, scratch, out)
        if features.itemsize == 4 and margin < CLEAR:
            if exact.size == 0:
                exact = np.zeros((even, padded))
            _load(features, b, scratch.position, n, exact)
            _select_round(call, b, exact, n, scratch, out)
        if average > 0:
            members[b] = False
            for i in range(n):
                members[b, scratch.position[i]] = scratch.members[i] == 1
    return dropped


@_strict
def _select_round(call, b, rows, n, s, out):
    """Round b; returns the smallest margin of its decisions."""
    rule, indices, sizes, measures = call.rule, out.indices, out.sizes, out.measures
    for i in range(indices.shape[1]):
        indices[b, i] = -1
    indices[b, 1] = 0
    for c in range(rule.clusters):
        sizes[b, c] = 0
    for i in range(measures.shape[1]):
        measures[b, i] = 0.0
    if n == 0:
        return np.inf
    sizes[b, 0] = n
    for i in range(n):
        s.labels[i] = 0
        s.members[i] = 1
    metric = rule.metric
    if metric == 2:
        if rows.itemsize == 4:
            return 0.0  # rounding to unit length would lose what tells close candidates apart
        _to_unit_length(rows, n)
    largest = _pairwise(rows, n, metric, s.distances, s.squared)
    if rows.itemsize == 4 and n > 1 and not 1e-30 < largest < 1e30:
        return 0.0  # squares overflow or vanish in float32
    _row_sums(s.distances, n, s.totals)
    winner, margin = _lowest(s.totals, n)
    if n > 1:
        median = _lower_median(s.distances, n, s.values)
        _row_sums(s.squared, n, s.totals)
        spread = _gap(rows, s.totals, n, winner, metric) / (median + EPSILON)
        motion = _motion(rows[winner], call.features.shape[2], call.steps, metric)
        c = min(rule.clusters, n)
        if c > 1 and abs(rule.tau) < np.inf:
            margin = min(margin, abs(spread - rule.tau))
        if c > 1 and spread >= rule.tau:
            margin = min(margin, _cluster(call.order, rule, c, n, s))
            margin = min(margin, _rank_clusters(n, c, s, sizes, b))
            winner, clear = _medoid(s.distances, n, s.labels, s.means[0], s.totals)
            margin = min(margin, clear)
            indices[b, 1] = 1
        if rule.average > 0:
            margin = min(margin, _mark_members(rule, winner, n, s))
            winner = _nearest_to_mean(call.features, b, rows, n, metric, s)
        agreeing = sizes[b, 0]
        if indices[b, 1] == 0:
            rounding = JITTER * JITTER if metric == 2 else JITTER * motion
            radius = max(GROUP_DIAMETERS * _core_diameter(s.distances, n, s.values), rounding)
            agreeing = 0
            for i in range(n):
                agreeing += s.distances[winner, i] <= radius
            measures[b, 4] = radius
        measures[b, 0] = spread
        measures[b, 1] = median
        measures[b, 2] = agreeing / n
        if median > 0.0:
            measures[b, 3] = median / (median + motion)
    else:
        measures[b, 2] = 1.0
    indices[b, 0] = s.position[winner]
    for i in range(n):
        indices[b, 2 + s.position[i]] = s.labels[i]
    return margin


@_strict
def _mark_members(rule, medoid, n, s):
    """Mark who is averaged; returns the margin."""
    if rule.average == 1:
        for i in range(n):
            s.members[i] = s.labels[i] == 0
        return np.inf
    size = max(1, int(n * rule.share + 0.5))
    if size == n:
        return np.inf
    if rule.average == 2:
        return _nearest(s.distances, n, medoid, size, s.members)
    centre, margin = _tightest(s.distances, n, size, s.values, s.totals)
    return min(margin, _nearest(s.distances, n, centre, size, s.members))


@_strict
def mean_chunks(chunks, members, out):
    """Mean of the members of each round: (B, K, M) chunks and (B, K) bool to (B, M) float64, summed in order."""
    for b in range(chunks.shape[0]):
        count = 0
        mean = out[b]
        mean[:] = 0.0
        for i in range(chunks.shape[1]):
            if members[b, i]:
                count += 1
                _add(chunks[b, i], mean)
        mean /= count
