"""Which numbers of a chunk count, and how they are compared."""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Union

import numpy as np
from numpy.typing import NDArray

from keystone_robotics.select import rotations

#: A count n (the first n), a slice, a range, or explicit indices.
Indices = Union[int, slice, range, Sequence[int], None]
Gripper = Union[Literal["logit"], float]


@dataclass(frozen=True)
class ActionSpace:
    """Which action dimensions and steps count in distances, and how.

    Distances see only what is counted; the chunk that is returned is always whole.

    Args:
        dims: action dimensions that count: ``7`` for the first seven, or a slice, range or list. Default: all.
            Set it whenever the policy pads its actions: padding is noise that outvotes the real dimensions.
        steps: steps of the chunk that count, in the same forms: ``8`` for the eight that will be executed, or
            ``range(1, 9)`` for a policy whose chunk begins in the past. Default: all.
        scale: size of one unit, by which differences are divided: one number, one per action dimension of the chunk, or
            ``{dim: scale}`` for some. For a rotation the unit is radians. Default: 1.
        rotation: dimensions that hold rotations, as ``{layout: first dimension}`` or ``{layout: [first, …]}`` for several
            arms; layouts in `select.rotations` (``angle``, ``axis-angle``, ``quaternion-xyzw``, ``6d``, ``euler-xyz`` …).
            They are compared as rotations: the distance of two is 2 sin(θ/2), θ the angle between them.
        gripper: dimensions that open or close, as ``{dim: "logit"}`` (compared after a sigmoid) or ``{dim: threshold}``
            (compared as open or closed). Synthesising rules take a vote there instead of a mean.

    >>> space = ActionSpace(dims=7, steps=8, rotation={"axis-angle": 3}, gripper={6: 0.5})
    >>> space.embed(np.zeros((16, 50, 32))).shape      # 8 steps x (3 positions + 9 matrix entries + 1 gripper)
    (16, 104)
    """

    dims: Indices = None
    steps: Indices = None
    scale: float | Sequence[float] | Mapping[int, float] | None = None
    rotation: Mapping[str, int | Sequence[int]] | None = None
    gripper: Mapping[int, Gripper] | None = None

    def __post_init__(self) -> None:
        # Copies, so that a later change to the caller's list or dict changes nothing here.
        for name in ("dims", "steps"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, (slice, range)):
                object.__setattr__(self, name, _whole(name, value))
        object.__setattr__(self, "scale", _checked_scale(self.scale))
        object.__setattr__(self, "rotation", _checked_rotation(self.rotation))
        object.__setattr__(self, "gripper", _checked_gripper(self.gripper))
        object.__setattr__(self, "_layouts", {})

    def layout(self, steps: int, dims: int) -> Layout:
        """The space for chunks of a given shape, checked against it once.

        >>> ActionSpace(dims=2, gripper={1: "logit"}).layout(4, 3).plain
        (0,)
        """
        layouts: dict[tuple[int, int], Layout] = self._layouts  # type: ignore[attr-defined]
        if (steps, dims) not in layouts:
            layouts[steps, dims] = Layout.of(self, steps, dims)
        return layouts[steps, dims]

    def embed(self, chunks: NDArray[Any]) -> NDArray[Any]:
        """(..., T, D) chunks to (..., N) features whose Euclidean distance is the distance of the chunks.

        >>> ActionSpace(dims=2, steps=3, scale=10).embed(np.ones((4, 50, 32)))[0]
        array([0.1, 0.1, 0.1, 0.1, 0.1, 0.1])
        """
        return self.layout(*chunks.shape[-2:]).embed(chunks)


@dataclass(frozen=True)
class Layout:
    """An `ActionSpace` resolved for chunks of T steps x D dimensions: plain tuples of indices."""

    steps: tuple[int, ...]
    plain: tuple[int, ...]
    rotations: tuple[tuple[str, tuple[int, ...]], ...]
    grippers: tuple[tuple[int, Gripper], ...]
    scale: tuple[float, ...]

    @staticmethod
    def of(space: ActionSpace, steps: int, dims: int) -> Layout:
        counted = _resolve(space.dims, dims, "dims", "action dimensions")
        window = _resolve(space.steps, steps, "steps", "steps")
        taken: set[int] = set()

        def take(indices: Sequence[int], what: str) -> None:
            for i in indices:
                if i not in counted:
                    raise ValueError(
                        f"{what} needs dimension {i}, which does not count: dims={space.dims!r}, D={dims}. "
                        "Add it to dims, or leave the layout out"
                    )
                if i in taken:
                    raise ValueError(f"dimension {i} is used twice, the second time by {what}")
                taken.add(i)

        blocks = []
        for name, firsts in (space.rotation or {}).items():
            for first in [firsts] if isinstance(firsts, int) else firsts:
                block = tuple(range(first, first + rotations.width(name)))
                take(block, f"rotation {name!r} at {first}")
                blocks.append((name, block))
        grippers = tuple((space.gripper or {}).items())
        take([dim for dim, _ in grippers], "gripper")
        scale = _resolve_scale(space.scale, dims)
        for name, block in blocks:
            if len({scale[i] for i in block}) > 1:
                raise ValueError(f"the dimensions {block} of rotation {name!r} must share one scale")
        return Layout(window, tuple(i for i in counted if i not in taken), tuple(blocks), grippers, scale)

    @property
    def is_plain(self) -> bool:
        """Nothing but a choice of steps and dimensions, perhaps scaled."""
        return not self.rotations and not self.grippers

    @property
    def is_exact(self) -> bool:
        """Features are the numbers themselves; scaling in float32 would round away what tells close candidates apart."""
        return self.is_plain and all(s == 1.0 for s in self.scale)

    def embed(self, chunks: NDArray[Any]) -> NDArray[Any]:
        """(..., T, D) to (..., N); see `ActionSpace.embed`."""
        window = chunks[..., _index(self.steps), :]
        plain = window[..., _index(self.plain)]
        if not self.is_exact:
            plain = plain / np.array([self.scale[i] for i in self.plain], chunks.dtype)
        parts = [plain]
        for name, block in self.rotations:
            matrices = rotations.to_matrix(name, window[..., _index(block)])
            # Frobenius distance of two rotation matrices is 2 sqrt(2) sin(angle / 2)
            entries = matrices.reshape(*window.shape[:-1], 9)
            parts.append(entries / (math.sqrt(2.0) * self.scale[block[0]]))
        for dim, kind in self.grippers:
            parts.append(self.opening(window[..., dim : dim + 1], kind) / self.scale[dim])
        features = plain if self.is_plain else np.concatenate(parts, -1)
        return features.reshape(*features.shape[:-2], -1)

    @staticmethod
    def opening(values: NDArray[Any], kind: Gripper) -> NDArray[Any]:
        """Gripper numbers as a share of open: the sigmoid of a logit, or 0 and 1 on the two sides of a threshold."""
        return np.asarray(0.5 * (1 + np.tanh(values / 2)) if kind == "logit" else values > kind, values.dtype)


def _index(indices: tuple[int, ...]) -> Any:
    """What numpy takes these indices with: a slice where they are consecutive, which copies nothing."""
    first, end = (indices[0], indices[-1] + 1) if indices else (0, 0)
    return slice(first, end) if indices == tuple(range(first, end)) else list(indices)


def _resolve(indices: Indices, size: int, name: str, what: str) -> tuple[int, ...]:
    if indices is None:
        return tuple(range(size))
    if isinstance(indices, int):
        if not 1 <= indices <= size:
            raise ValueError(f"{name}={indices!r} does not fit chunks of {size} {what}: a count is 1 to {size}")
        return tuple(range(indices))
    resolved = tuple(range(size))[indices] if isinstance(indices, slice) else tuple(indices)
    if not resolved:
        raise ValueError(f"{name}={indices!r} leaves no {what} of {size} to compare: the window is empty")
    wrong = [i for i in resolved if not 0 <= i < size]
    if wrong:
        raise ValueError(f"{name}={indices!r} names {wrong}, but chunks have {size} {what}: 0 to {size - 1}")
    if len(set(resolved)) < len(resolved):
        raise ValueError(f"{name}={indices!r} names an index twice")
    return resolved


def _whole(name: str, value: Any) -> int | tuple[int, ...]:
    """One whole number or several, numpy's too. No mask: True and False would be read as 1 and 0."""
    try:
        several = list(value) if isinstance(value, Iterable) else [value]
        if any(isinstance(i, (bool, np.bool_)) for i in several):
            raise TypeError
        indices = tuple(map(operator.index, several))
    except TypeError:
        raise TypeError(f"{name}={value!r}: expected one whole number or several, not a mask") from None
    return indices if isinstance(value, Iterable) else indices[0]


def _one(name: str, dim: Any) -> int:
    """The dimension that is a key of a mapping."""
    whole = _whole(name, dim)
    if not isinstance(whole, int):
        raise TypeError(f"{name}={{{dim!r}: …}}: expected one dimension for each entry")
    return whole


def _checked_scale(scale: float | Sequence[float] | Mapping[int, float] | None) -> object:
    if scale is None:
        return None
    checked: object
    try:
        if isinstance(scale, Mapping):
            values = [float(value) for value in scale.values()]
            checked = dict(zip((_one("scale", dim) for dim in scale), values, strict=True))
        elif isinstance(scale, (int, float, numbers.Real)):
            checked = float(scale)
            values = [checked]
        else:
            values = [float(value) for value in scale]
            checked = tuple(values)
    except (TypeError, ValueError):
        raise TypeError(f"scale={scale!r}: expected a number, one per dimension, or {{dim: number}}") from None
    if not all(math.isfinite(value) and value > 0 for value in values):
        raise ValueError(f"scale={scale!r}: every scale must be a positive number (differences are divided by it)")
    return checked


def _resolve_scale(scale: float | Sequence[float] | Mapping[int, float] | None, dims: int) -> tuple[float, ...]:
    if scale is None or isinstance(scale, (int, float)):
        return (1.0 if scale is None else float(scale),) * dims
    if isinstance(scale, Mapping):
        wrong = [dim for dim in scale if not 0 <= dim < dims]
        if wrong:
            raise ValueError(f"scale names dimensions {wrong}, but chunks have {dims}: 0 to {dims - 1}")
        return tuple(scale.get(i, 1.0) for i in range(dims))
    if len(scale) != dims:
        raise ValueError(f"scale has {len(scale)} numbers, chunks have {dims} dimensions: give one per dimension")
    return tuple(scale)


def _checked_rotation(rotation: object) -> object:
    if rotation is None:
        return None
    if not isinstance(rotation, Mapping):
        raise TypeError(f"rotation={rotation!r}: expected {{layout: first dimension}}, for example {{'axis-angle': 3}}")
    for layout in rotation:
        rotations.width(layout)
    return {layout: _whole("rotation", first) for layout, first in rotation.items()}


def _checked_gripper(gripper: object) -> object:
    if gripper is None:
        return None
    if not isinstance(gripper, Mapping):
        raise TypeError(f"gripper={gripper!r}: expected {{dim: 'logit'}} or {{dim: threshold}}, for example {{6: 0.5}}")
    for dim, kind in gripper.items():
        threshold = isinstance(kind, numbers.Real) and not isinstance(kind, bool) and math.isfinite(kind)
        if kind != "logit" and not threshold:
            raise ValueError(f"gripper dimension {dim} is {kind!r}: expected 'logit' or a threshold such as 0.5")
    return {_one("gripper", dim): kind if kind == "logit" else float(kind) for dim, kind in gripper.items()}
