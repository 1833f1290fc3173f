"""Distances between candidates, and the constants by which every path compares them."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from keystone_robotics.errors import nearest_name

Floats = NDArray[np.float64]

#: Name of each metric and the number by which the two paths know it.
METRICS: dict[str, int] = {"l2": 0, "l1": 1, "cosine": 2}

#: A candidate with a number of this size is dropped like one with an infinity: no action is that large, squares stay finite.
#: A power of two and a bound on single numbers, not on their sum: every path, in every precision, drops the same ones.
LARGEST = 2.0**49
#: Added to the median distance in the guard's spread.
EPSILON = 1e-8
#: A difference that is smaller than this against what it is the difference of is rounding: nothing.
ROUNDING = 1e-13
#: Below this share of its two terms, the gap is no longer taken from their difference but from the mean itself.
CANCELLED = 1e-2

#: Where nothing was clustered, the winning group is what lies within this many core diameters of the selected candidate. The
#: core is the tightest half: the smallest ball around a candidate that holds half of them. Its diameter is about twice its
#: radius in few dimensions and hardly more than it in many, where distances concentrate: so of one Gaussian mode 88 % (2
#: dimensions) to all (30 and more) are in the group, and of two modes that differ by 2 σ in every dimension only one is (30
#: and more). Slightly more than 1.25: what lies at exactly that distance is inside, however it was rounded.
GROUP_DIAMETERS = 1.251
#: Candidates that differ by less than this share of their motion are in one group: that is rounding, not disagreement.
JITTER = 1e-5


def check_metric(metric: str) -> int:
    """The number of a metric, or a clear error.

    >>> check_metric("l1")
    1
    """
    if metric not in METRICS:
        raise ValueError(f"unknown metric {metric!r}: {nearest_name(metric, METRICS)}")
    return METRICS[metric]


def unit_length(features: Floats) -> Floats:
    """Each row divided by its norm; a zero row stays zero. Scaled first so that tiny numbers do not vanish."""
    largest = np.abs(features).max(-1, keepdims=True, initial=0.0)
    scaled = features / np.where(largest == 0, 1.0, largest)
    norm = np.sqrt(np.square(scaled).sum(-1, keepdims=True))
    return np.asarray(scaled / np.where(norm == 0, 1.0, norm))


def pairwise(features: Floats, metric: str = "l2") -> tuple[Floats, Floats]:
    """Distances in the metric, and the squared Euclidean distances that k-means works on.

    The squares come from one matrix product of the candidates *as seen from the one of middle size*, in float64: what cancels
    there is far below the resolution of float32 actions. (Products of the raw candidates lose the distances when those are
    small against the distance from zero; seen from an outlier, the others would all lie in one place.) For ``cosine`` the rows
    are first brought to unit length, where the cosine distance is half the squared Euclidean one.

    Args:
        features: (..., K, N) float64. Rows of NaN spoil nothing but themselves.
        metric: "l2", "l1" or "cosine".

    Returns:
        (distances, squared), both (..., K, K).

    >>> distances, squared = pairwise(np.array([[0.0, 0.0], [3.0, 4.0]]))
    >>> distances.tolist(), squared.tolist()
    ([[0.0, 5.0], [5.0, 0.0]], [[0.0, 25.0], [25.0, 0.0]])
    """
    if metric == "cosine":
        features = unit_length(features)
    shape = (*features.shape[:-1], features.shape[-2])
    features = features.reshape(math.prod(shape[:-2]), *features.shape[-2:])
    size = np.einsum("bkn,bkn->bk", features, features)
    middle = np.maximum((size == size).sum(1) - 1, 0) // 2
    every = np.arange(len(size))
    seen = features - features[every, size.argsort(1)[every, middle]][:, None]  # a NaN sorts last
    product = seen @ seen.transpose(0, 2, 1)
    norms = product.diagonal(0, -2, -1)
    both = norms[..., :, None] + norms[..., None, :]
    squared = both - 2 * product
    squared *= squared > both * 1e-14  # less is rounding: equal candidates are at distance zero
    if metric == "l1":
        distances = np.stack([np.abs(features - features[:, i, None]).sum(2) for i in range(shape[-1])], 2)
    else:
        distances = squared / 2 if metric == "cosine" else np.sqrt(squared)
    return distances.reshape(shape), squared.reshape(shape)


def distances_to(features: Floats, point: Floats, metric: str) -> Floats:
    """(n,) distances of (n, N) features to one (N,) point.

    >>> distances_to(np.array([[0.0, 0.0], [3.0, 4.0]]), np.zeros(2), "l1").tolist()
    [0.0, 7.0]
    """
    if metric == "l1":
        return np.asarray(np.abs(features - point).sum(-1))
    if metric == "cosine":
        features, point = unit_length(features), unit_length(point)
    squares = np.square(features - point).sum(-1)
    return np.asarray(squares / 2 if metric == "cosine" else np.sqrt(squares))


def motion(features: Floats, steps: int, metric: str) -> float:
    """How far one candidate moves: its distance to the chunk that stays at its first step, in the metric.

    A window of one step has no motion of its own: the size of the action stands in. Cosine distances are relative already: 1.

    Args:
        features: (N,) float64.
        steps: how many steps the N numbers are.

    >>> motion(np.array([1.0, 4.0, 5.0]), 3, "l2")
    5.0
    """
    if metric == "cosine":
        return 1.0
    walk = features.reshape(steps, -1)
    away = walk - walk[:1] if steps > 1 else walk
    return float(np.abs(away).sum()) if metric == "l1" else math.sqrt(np.vdot(away, away))


def group_radius(distances: Floats, typical: float, metric: str) -> float:
    """How far from the selected candidate its group reaches; see `GROUP_DIAMETERS`.

    >>> modes = np.array([0.0, 1, 2, 20, 21, 22])
    >>> group_radius(np.abs(modes[:, None] - modes), 0.0, "l2")
    2.502
    """
    half = (len(distances) + 1) // 2
    # Ties are not decided by rounding; of several balls of that size the tightest counts, whatever the order of candidates.
    radius = np.partition(distances, half - 1, axis=1)[:, half - 1].min() * (1 + JITTER)
    inside = distances <= radius
    cores = inside[inside.sum(1) >= half]
    diameter = float(min(distances[np.ix_(core, core)].max() for core in cores))
    return max(GROUP_DIAMETERS * diameter, JITTER**2 if metric == "cosine" else JITTER * typical)
