"""`keystone.select`: candidates in, `Selection` out."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from keystone_robotics.errors import NoValidCandidate
from keystone_robotics.select.engine import BatchResult, check_seed
from keystone_robotics.select.metrics import LARGEST, check_metric
from keystone_robotics.select.rounds import Candidates, as_candidates, is_tensor, refuse_invalid, what_is_wrong
from keystone_robotics.select.rules import Rule, bind
from keystone_robotics.select.selection import Selection
from keystone_robotics.select.space import ActionSpace

_LARGEST_BFLOAT16 = 3.3895313892515355e38  #: numpy's bfloat16, of ml_dtypes, has no finfo


def select(
    candidates: Any,
    rule: str | Callable[..., Any] | Rule = "keystone",
    space: ActionSpace | None = None,
    seed: int = 0,
    *,
    metric: str = "l2",
    **params: Any,
) -> Selection:
    """Select the chunk to execute among K candidates.

    Args:
        candidates: (K, T, D) or (B, K, T, D), a torch tensor on any device or a numpy array of any float dtype, or a list of
            K chunks (T, D). Candidates that hold a NaN, an infinity or a number beyond 5.6e14 are dropped.
        rule: a name in `keystone.RULES`, or a function of a `keystone.Round` that returns an index or a `keystone.RuleResult`.
        space: which dimensions and steps count and how they are compared; default: everything, as it is.
        seed: for rules that draw random numbers. The same candidates and seed give the same selection everywhere.
        metric: "l2", "l1" or "cosine".
        **params: of the rule, for example ``tau=0.3, clusters=2`` for "keystone".

    Returns:
        A `Selection`. Its ``chunk`` is one of the inputs, whole, unless ``synthesised`` says otherwise, and always finite:
        where a rule makes a chunk that is not (in the candidates' dtype), the candidate that it names is returned instead, with
        a warning.

    Raises:
        NoValidCandidate: if every candidate of a round was dropped.

    >>> import numpy as np, keystone_robotics as keystone
    >>> chunks = np.random.default_rng(0).normal(size=(16, 50, 7))
    >>> keystone.select(chunks, rule="density", space=keystone.ActionSpace(steps=10), neighbours=4).index
    10
    >>> def calmest(round):                                      # a rule of your own: the least total movement
    ...     return np.abs(np.diff(round.chunks, axis=1)).sum((1, 2)).argmin()
    >>> keystone.select(chunks, rule=calmest).rule
    'calmest'
    """
    bound = bind(rule, params)
    check_metric(metric)
    seed = check_seed(seed)
    prepared, batched = as_candidates(candidates, space, metric, seed)
    result = bound.select_batch(prepared)
    if result.dropped:
        refuse_invalid(prepared, result.labels, batched)
        why = what_is_wrong(prepared, result.labels)
        warnings.warn(
            f"dropped {result.dropped} of {result.labels.size} candidates: {why}", RuntimeWarning, stacklevel=2
        )
    if not _is_finite(result, prepared, candidates):
        result = _with_finite_chunks(result, prepared, candidates, bound.name)
    if batched:
        return _batched(candidates, prepared.chunks, bound.name, result)
    indices, sizes, measures, _, _, made = result
    index = indices.item(0)
    spread, median_distance, consensus, dispersion, _ = measures[0].tolist()
    return Selection(
        index,
        candidates[index] if made is None else _like(made[0], candidates),
        indices[0, 2:],
        sizes[0],
        indices.item(1) == 1,
        consensus,
        spread,
        median_distance,
        dispersion,
        bound.name,
        made is not None,
    )


def _batched(candidates: Any, chunks: NDArray[Any], rule: str, result: BatchResult) -> Selection:
    indices, sizes, measures, _, _, made = result
    index = indices[:, 0]
    if made is None and is_tensor(candidates) and (candidates.requires_grad or not candidates.is_cpu):
        # the winners stay where they are and keep their gradients
        chunk = candidates[np.arange(len(index)), index]
    elif made is None:
        batch, k, steps, dims = chunks.shape
        # rows of one long list: a quarter of the time of indexing with two arrays
        winners = chunks.reshape(batch * k, steps, dims).take(_first_candidates(batch, k) + index, axis=0)
        chunk = _like(winners, candidates)
    else:
        chunk = _like(made, candidates)
    return Selection(
        index,
        chunk,
        indices[:, 2:],
        sizes,
        indices[:, 1].astype(bool),
        measures[:, 2],
        measures[:, 0],
        measures[:, 1],
        measures[:, 3],
        rule,
        made is not None,
    )


@functools.lru_cache(maxsize=64)
def _first_candidates(batch: int, k: int) -> NDArray[np.int64]:
    """(B,) where each round begins when all candidates lie one after the other."""
    return np.arange(0, batch * k, k)


def _like(chunk: NDArray[Any], candidates: Any) -> Any:
    """Host numbers in the type, device and dtype of the candidates (float32 holds every float16 and bfloat16)."""
    example = candidates[0] if isinstance(candidates, (list, tuple)) else candidates
    if is_tensor(example):
        import torch

        if example.dtype is torch.float32:
            chunk = chunk.astype(np.float32, copy=False)  # a third of the time of torch's conversion
        host = torch.from_numpy(chunk)
        return host if example.dtype is host.dtype and example.is_cpu else host.to(example.device, example.dtype)
    return chunk.astype(example.dtype, copy=False)


def _is_finite(result: BatchResult, prepared: Candidates, candidates: Any) -> bool:
    """Whether the chunks to execute are finite in the candidates' dtype, whatever the rule and the path."""
    if result.chunks is not None:
        return bool((np.abs(result.chunks) <= _largest_of(candidates)).all())
    chunks, index = prepared.chunks, result.indices[:, 0]
    # Of usable candidates the squares are finite: one product says the same as a test of every number, in half of the time.
    return all(math.isfinite(np.vdot(chunks[b, i], chunks[b, i])) for b, i in enumerate(index.tolist()))


def _with_finite_chunks(result: BatchResult, prepared: Candidates, candidates: Any, rule: str) -> BatchResult:
    """In rounds whose chunk is not finite, the candidate that the rule named in its place, or the first that is usable."""
    indices, made = result.indices.copy(), result.chunks
    usable = (np.abs(prepared.chunks) < LARGEST).all((2, 3))
    if made is None:
        broken = ~usable[np.arange(len(indices)), indices[:, 0]]
    else:
        broken, made = ~(np.abs(made) <= _largest_of(candidates)).all((1, 2)), made.copy()
    for row in np.flatnonzero(broken):
        if not usable[row].any():
            raise NoValidCandidate(f"rule {rule} selected a candidate with a NaN or an infinity, and there is no other")
        if not usable[row, indices[row, 0]]:
            indices[row, 0] = usable[row].argmax()
        if made is not None:
            made[row] = prepared.chunks[row, indices[row, 0]]
    warnings.warn(
        f"rule {rule} returned a chunk that is not finite in the candidates' dtype: candidate "
        f"{', '.join(map(str, indices[broken, 0]))} is returned instead",
        RuntimeWarning,
        stacklevel=3,
    )
    return result._replace(indices=indices, chunks=None if broken.all() else made)


def _largest_of(candidates: Any) -> float:
    """The largest finite number of the candidates' dtype."""
    example = candidates[0] if isinstance(candidates, (list, tuple)) else candidates
    if is_tensor(example):
        import torch

        return torch.finfo(example.dtype).max
    return float(np.finfo(example.dtype).max) if example.dtype.kind == "f" else _LARGEST_BFLOAT16
