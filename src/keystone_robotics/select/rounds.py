"""What a rule works on: the candidates of one call, and of one round."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from keystone_robotics.errors import NoValidCandidate
from keystone_robotics.select import rotations
from keystone_robotics.select.metrics import LARGEST, pairwise
from keystone_robotics.select.space import ActionSpace, Layout


class Candidates(NamedTuple):
    """B rounds of K candidates on the host, as `keystone.select` hands them to a rule.

    Attributes:
        array: (B, K, T, D) or (K, T, D) float32 or float64.
        features: (B, K, N) what distances are measured on; contains NaN for a candidate that holds a non-finite number.
        space: which of a chunk's numbers count.
        metric: "l2", "l1" or "cosine".
        seed: of the caller.
    """

    array: NDArray[Any]
    features: NDArray[Any]
    space: ActionSpace | None
    metric: str
    seed: int

    @property
    def chunks(self) -> NDArray[Any]:
        """(B, K, T, D) the candidates whole."""
        return self.array if self.array.ndim == 4 else self.array[None]

    @property
    def layout(self) -> Layout | None:
        """The action space, resolved for these chunks; None where everything counts as it is."""
        return None if self.space is None else self.space.layout(*self.array.shape[-2:])

    @property
    def steps(self) -> int:
        """How many steps the features cover."""
        return self.array.shape[-2] if self.space is None else len(self.layout.steps)  # type: ignore[union-attr]


@dataclass(frozen=True)
class RuleResult:
    """What a rule returns for one round.

    Attributes:
        index: the selected candidate, counted among those the rule was shown.
        labels: cluster of each of them (any numbers), if the rule clustered them.
        chunk: (T, D) a synthesised chunk, if the rule made one; ``index`` is then the candidate nearest to it.

    >>> RuleResult(index=2).labels is None
    True
    """

    index: int
    labels: Any = None
    chunk: Any = None


class Round:
    """The valid candidates of one round, as a rule sees them.

    Attributes:
        chunks: (n, T, D) float64, the candidates whole.
        features: (n, N) float64, the numbers that count, scaled and embedded as the `ActionSpace` says.
        metric: "l2", "l1" or "cosine".
        space: the `ActionSpace` in force.
        seed: the caller's seed.
        row: which round of the batch this is.

    >>> chunks = np.array([[[0.0]], [[3.0]]])
    >>> Round(chunks, chunks.reshape(2, 1), "l2", ActionSpace(), 0).distances
    array([[0., 3.],
           [3., 0.]])
    """

    def __init__(
        self, chunks: NDArray[Any], features: NDArray[Any], metric: str, space: ActionSpace, seed: int, row: int = 0
    ) -> None:
        self.chunks: NDArray[np.float64] = chunks.astype(np.float64)
        self.features: NDArray[np.float64] = features.astype(np.float64)
        self.metric = metric
        self.space = space
        self.seed = seed
        self.row = row

    @property
    def layout(self) -> Layout:
        """The action space, resolved for these chunks."""
        return self.space.layout(*self.chunks.shape[1:])

    @functools.cached_property
    def distances(self) -> NDArray[np.float64]:
        """(n, n) distances in the metric."""
        return pairwise(self.features, self.metric)[0]

    def distances_to(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """(n, m) distances in the metric to other features (m, N), for example of the previous chunk."""
        n = len(self.features)
        return pairwise(np.concatenate([self.features, features]), self.metric)[0][:n, n:]

    def embed(self, chunks: NDArray[Any]) -> NDArray[np.float64]:
        """(..., T, D) other chunks in the same features, (..., N)."""
        return self.layout.embed(np.asarray(chunks, np.float64))


def lowest(values: NDArray[np.float64]) -> int:
    """The lowest, and of those equal up to rounding the first: what differs beyond float32 differs by machine, too.

    >>> lowest(np.array([2.0, 0.1 + 0.2, 0.3]))
    1
    """
    return int(values.astype(np.float32).argmin())


def as_candidates(candidates: Any, space: ActionSpace | None, metric: str, seed: int) -> tuple[Candidates, bool]:
    """Bring whatever the caller holds into one form. Returns it, and whether the input was batched."""
    array = _as_array(candidates)
    shape = array.shape
    check_shape(shape)
    batched = len(shape) == 4
    features: NDArray[Any]
    if space is None:
        features = array.reshape(shape[0], shape[1], -1) if batched else array.reshape(1, shape[0], -1)
    else:
        if not isinstance(space, ActionSpace):
            raise TypeError(f"space={space!r}: expected a keystone.ActionSpace")
        features = _embedded(array if batched else array[None], space)
    return Candidates(array, features, space, metric, seed), batched


def is_tensor(value: Any) -> bool:
    """Whether a value is a torch tensor. There is none where torch was not imported, so it is not imported here."""
    return isinstance(value, getattr(sys.modules.get("torch"), "Tensor", ()))


def _as_array(candidates: Any) -> NDArray[Any]:
    """float32 or float64, contiguous, on the host; shares memory with the input where possible.

    Arrays that are read-only (from JAX, from a socket) are copied: the kernel would be compiled once more for them.
    """
    if is_tensor(candidates):
        if not candidates.is_floating_point():
            raise not_floating(candidates.dtype)
        if candidates.dtype.itemsize < 4:  # bfloat16 has no numpy type
            candidates = candidates.float()
        array = candidates.numpy(force=True)  # detached and on the host; no copy if it is there already
    elif isinstance(candidates, np.ndarray):
        array = _float_array(candidates)
    elif isinstance(candidates, (list, tuple)):
        array = _stack(candidates)
    else:
        raise TypeError(
            f"candidates are a {type(candidates).__name__}: expected a torch tensor, a numpy array, or a list of chunks "
            "(numpy.asarray(candidates) may help)"
        )
    # An axis of length 1 may have a negative stride in an array that counts as contiguous; torch refuses it.
    return array if array.flags.carray and min(array.strides, default=0) >= 0 else np.array(array, order="C")


def as_float64(value: Any) -> NDArray[np.float64]:
    """Numbers a caller gave beside the candidates: a tensor of any dtype and device, an array, nested lists."""
    return np.asarray(value.detach().cpu().double() if is_tensor(value) else value, dtype=np.float64)


def _stack(chunks: list[Any] | tuple[Any, ...]) -> NDArray[Any]:
    if not chunks:
        raise ValueError("candidates are an empty list: there is nothing to select from")
    if not all(hasattr(chunk, "shape") for chunk in chunks):
        raise TypeError(
            f"candidates are a list of {type(chunks[0]).__name__}: expected chunks, each a tensor or an array (T, D); "
            "numpy.asarray(candidates, dtype=float) makes an array of nested lists"
        )
    shapes = {tuple(chunk.shape) for chunk in chunks}
    if len(shapes) > 1 or len(next(iter(shapes))) != 2:
        raise ValueError(f"a list of candidates must hold chunks of one shape (T, D), got shapes {sorted(shapes)}")
    return np.stack([_as_array(chunk) for chunk in chunks])


def _float_array(array: NDArray[Any]) -> NDArray[Any]:
    if array.dtype == np.float32 or array.dtype == np.float64:
        return array
    if array.dtype == np.float16 or array.dtype.name == "bfloat16":
        return array.astype(np.float32)
    if array.dtype.kind == "f":
        return array.astype(np.float64)
    raise not_floating(array.dtype)


def _embedded(chunks: NDArray[Any], space: ActionSpace) -> NDArray[Any]:
    """(B, K, N) the numbers that count; NaN throughout for a candidate with an unusable number anywhere."""
    layout = space.layout(*chunks.shape[2:])
    with np.errstate(over="ignore", invalid="ignore"):
        usable = (np.abs(chunks) < LARGEST).all((-2, -1))
        features = layout.embed(chunks if layout.is_exact else chunks.astype(np.float64))
    if not usable.all():  # a number that does not count is still executed
        features = np.where(usable[..., None], features, np.nan).astype(features.dtype)
    return np.ascontiguousarray(features)


def check_shape(shape: Sequence[int]) -> None:
    """Raise unless the shape is (K, T, D) or (B, K, T, D) with at least one number."""
    if len(shape) not in (3, 4):
        hint = " (one chunk alone? add a leading axis: candidates[None])" if len(shape) == 2 else ""
        raise ValueError(
            f"candidates have shape {tuple(shape)}: "
            f"expected (K, T, D), K chunks of T steps x D dimensions, or (B, K, T, D){hint}"
        )
    if 0 in shape:
        raise ValueError(f"candidates have shape {tuple(shape)}: there is nothing to select from")


def not_floating(dtype: object) -> TypeError:
    """The error for candidates of whole numbers or the like."""
    return TypeError(f"candidates are {dtype}: expected floating-point actions (convert them first)")


def refuse_invalid(candidates: Candidates, labels: NDArray[np.int64], batched: bool) -> None:
    """Raise where a round has no valid candidate."""
    empty = np.flatnonzero((labels < 0).all(1))
    if len(empty):
        where = f" in rounds {empty.tolist()} of the batch" if batched else ""
        error = NoValidCandidate(
            f"none of the {labels.shape[1]} candidates is usable{where}: each holds "
            f"{what_is_wrong(candidates, labels)}; nothing was selected"
        )
        error.rows = tuple(empty.tolist())
        raise error


def what_is_wrong(candidates: Candidates, labels: NDArray[np.int64]) -> str:
    """Why candidates were dropped, those with a negative label."""
    chunks, features = candidates.chunks[labels < 0], candidates.features[labels < 0]
    finite, small = np.isfinite(chunks), np.abs(chunks) < LARGEST
    causes = []
    if not finite.all():
        causes.append("a NaN or an infinity")
    if (finite & ~small).any():
        causes.append(f"a number of {LARGEST:.2g} or more")
    of_space = small.all((1, 2))  # nothing is wrong with these numbers: it is how they are compared
    layout = candidates.layout
    if of_space.any() and layout is not None:
        window = chunks[of_space][:, list(layout.steps)].astype(np.float64)
        for name, block in layout.rotations:
            if not np.isfinite(rotations.to_matrix(name, window[..., list(block)])).all():
                causes.append(f"a {name} rotation of length 0 in dimensions {block[0]} to {block[-1]}")
        if (np.abs(features[of_space]) >= LARGEST).any():
            causes.append(
                f"a number of {LARGEST:.2g} or more after division by its scale (smallest {min(layout.scale):.2g})"
            )
    return ", or ".join(causes)
