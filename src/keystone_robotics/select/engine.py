"""Selects in a batch of rounds on the fastest path there is: the compiled kernel, or numpy where numba is missing."""

from __future__ import annotations

import functools
import logging
import threading
import types
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from keystone_robotics.errors import nearest_name
from keystone_robotics.select import numpy_path
from keystone_robotics.select.metrics import METRICS
from keystone_robotics.select.rounds import Candidates

log = logging.getLogger("keystone")

#: How k-means may start. "random" is the paper's, "first" is what the authors' code does; the other two are deterministic
#: and do not depend on the order of the candidates: the farthest pair (then farthest points), and the best of K such starts.
INITS: dict[str, int] = {"random": 0, "first": 0, "farthest": 1, "best": 2}

EVERYTHING = float("inf")  #: as tau: never cluster, return the global medoid
NOTHING = float("-inf")  #: as tau: always cluster


#: Whose mean a synthesising rule returns: nobody's, the winning cluster's (all candidates' where nothing was clustered),
#: that of the share nearest to the medoid, or of the tightest share.
AVERAGES: dict[str, int] = {"none": 0, "cluster": 1, "around medoid": 2, "tightest": 3}


class Clustering(NamedTuple):
    """When candidates are clustered, and how; by default never. Parameters as in `keystone_robotics.select.rules.keystone`."""

    clusters: int = 1
    tau: float = EVERYTHING
    iterations: int = 10
    init: str = "farthest"


NEVER = Clustering()


class Decision(NamedTuple):
    """What to decide by, for the kernel and for `numpy_path`.

    Attributes:
        metric: 0 L2, 1 L1, 2 cosine.
        clusters: C, at least 1.
        tau: cluster where the spread is not below it.
        iterations: most k-means iterations.
        init: 0 from the starting order, 1 farthest points, 2 the best of K farthest-point starts.
        average: which candidates are averaged: 0 none, 1 the winning cluster (all, where not clustered), 2 the share nearest to
            the medoid, 3 the tightest share. The selected index is then the candidate nearest to their mean.
        share: of the candidates, for ``average`` 2 and 3.
    """

    metric: int
    clusters: int
    tau: float
    iterations: int
    init: int
    average: int
    share: float


#: Arrays that a path fills: the first four of a `BatchResult`. (A named tuple would cost 3 % of a selection.)
Output = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64], NDArray[np.bool_]]


class BatchResult(NamedTuple):
    """What was decided for B rounds of K candidates, on the host.

    Attributes:
        indices: (B, 2 + K): selected (-1: no valid candidate), clustered (0 or 1), labels (-1: dropped).
        sizes: (B, C) members of each cluster, the winner's first.
        measures: (B, 5): spread, median distance, consensus, dispersion, radius of the winning group (0 where clustered).
        members: (B, K) whose mean is wanted; empty if nobody's.
        dropped: candidates of all rounds that are not finite.
        chunks: (B, T, D) synthesised chunks.
    """

    indices: NDArray[np.int64]
    sizes: NDArray[np.int64]
    measures: NDArray[np.float64]
    members: NDArray[np.bool_]
    dropped: int
    chunks: NDArray[np.float64] | None = None

    @property
    def labels(self) -> NDArray[np.int64]:
        """(B, K) cluster of each candidate: 0 the winner, -1 dropped."""
        return self.indices[:, 2:]


@functools.cache
def compiled_kernel() -> types.ModuleType | None:
    """The numba kernel, or None where numba is not installed (or not usable with this numpy)."""
    try:
        from keystone_robotics.select import kernel
    except ImportError as error:
        log.info("selecting with numpy: numba is not usable here (%s); install keystone-robotics[fast]", error)
        return None
    except Exception as error:  # numba found no folder for its cache, or does not support this CPU or numpy
        log.warning("selecting with numpy: the compiled selector failed to load (%s)", error)
        return None
    return kernel


@functools.cache
def warm_up() -> None:
    """Compile (or load from numba's cache) what the first selection would otherwise wait for."""
    if compiled_kernel() is not None:
        log.info("preparing the compiled selector (the first time on a machine this takes some seconds)")
    for dtype in (np.float32, np.float64):
        chunks: NDArray[Any] = np.zeros((1, 2, 1, 1), dtype)
        result = select_rounds(Candidates(chunks, chunks[..., 0], None, "l2", 0), Clustering(2), "cluster")
        mean_chunks(chunks, result.members)


class _Threads(threading.local):
    """A generator for each thread, to be seeded anew: making one takes forty times as long."""

    def __init__(self) -> None:
        self.generator = np.random.RandomState()


_threads = _Threads()


@functools.lru_cache(maxsize=256)
def starting_order(init: str, k: int, seed: int) -> NDArray[np.int64]:
    """(k,) the order in which candidates become initial centroids.

    numpy guarantees that this legacy generator's stream never changes, so a seed means the same everywhere.
    """
    order: NDArray[np.int64] = np.arange(k, dtype=np.int64)
    if init == "random":
        generator = _threads.generator
        generator.seed(check_seed(seed) % 2**32)
        order = generator.permutation(k).astype(np.int64)
    order.flags.writeable = False  # the cache hands out the same array to all
    return order


def check_seed(seed: int) -> int:
    """A seed, or a clear error."""
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)):
        raise TypeError(f"seed={seed!r}: expected a whole number")
    return int(seed)


def check_init(init: str) -> str:
    """The name of an initialisation, or a clear error."""
    if init not in INITS:
        raise ValueError(f"unknown init {init!r}: {nearest_name(init, INITS)}")
    return init


def select_rounds(
    candidates: Candidates, clustering: Clustering = NEVER, average: str = "none", share: float = 1.0
) -> BatchResult:
    """The medoid of each round, or of its largest cluster where the spread is not below ``tau``.

    Args:
        candidates: what to select from.
        clustering: when and how candidates are clustered.
        average: a name in `AVERAGES`: notes those candidates in ``members`` and selects the one nearest to their mean.
        share: of the candidates that is averaged.
    """
    features = candidates.features
    batch, k, _ = features.shape
    decision = _decision(candidates.metric, k, clustering, average, share)
    out = (
        np.empty((batch, k + 2), np.int64),
        np.empty((batch, decision.clusters), np.int64),
        np.empty((batch, 5)),
        np.empty((batch, k) if decision.average else (0, 0), np.bool_),
    )
    order = starting_order(clustering.init, k, candidates.seed)
    dropped = _path().select_rounds(features, candidates.steps, order, decision, out)
    return BatchResult(*out, dropped)


@functools.lru_cache(maxsize=256)
def _decision(metric: str, k: int, clustering: Clustering, average: str, share: float) -> Decision:
    """With the numbers of names, in the types that the kernel is compiled for: not a tau of 1, nor numpy's numbers."""
    clusters, tau, iterations, init = clustering
    return Decision(
        METRICS[metric],
        min(int(clusters), k),
        float(tau),
        int(iterations),
        INITS[init],
        AVERAGES[average],
        float(share),
    )


def mean_chunks(chunks: NDArray[Any], members: NDArray[np.bool_]) -> NDArray[np.float64]:
    """(B, T, D) the mean of the (B, K) members of (B, K, T, D) chunks."""
    batch, k, steps, dims = chunks.shape
    means = np.empty((batch, steps * dims))
    _path().mean_chunks(chunks.reshape(batch, k, -1), members, means)
    return means.reshape(batch, steps, dims)


def _path() -> types.ModuleType:
    return compiled_kernel() or numpy_path
