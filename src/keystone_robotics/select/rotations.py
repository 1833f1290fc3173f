"""Rotation layouts of action vectors, as matrices and back (numpy, batched over leading dimensions).

Layouts: ``angle`` (1 number, radians: a yaw, or a joint), ``axis-angle`` (3 numbers, radians), ``quaternion-xyzw`` and
``quaternion-wxyz`` (4), ``6d`` (the first two columns of the matrix, one after the other), and ``euler-`` followed by three
different axes: lower case for rotations about the fixed axes, upper case for rotations about the moving ones, as in scipy
(``euler-xyz`` is roll, pitch, yaw; radians).
"""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

from keystone_robotics.errors import nearest_name

Floats = NDArray[np.float64]

_EULER = ["euler-" + "".join(p) for axes in ("xyz", "XYZ") for p in itertools.permutations(axes)]

#: How many numbers each layout takes.
WIDTHS: dict[str, int] = {
    "angle": 1,
    "axis-angle": 3,
    "quaternion-xyzw": 4,
    "quaternion-wxyz": 4,
    "6d": 6,
    **dict.fromkeys(_EULER, 3),
}


def width(layout: str) -> int:
    """How many action dimensions a rotation layout takes.

    >>> width("quaternion-xyzw")
    4
    """
    if layout not in WIDTHS:
        raise ValueError(f"unknown rotation layout {layout!r}: {nearest_name(layout, WIDTHS)}")
    return WIDTHS[layout]


def to_matrix(layout: str, values: Floats) -> Floats:
    """(..., width) numbers in a layout to (..., 3, 3) rotation matrices. A quaternion or 6-D of length 0 gives NaN.

    >>> to_matrix("euler-xyz", np.zeros(3)).diagonal().tolist()
    [1.0, 1.0, 1.0]
    """
    if layout == "angle":
        return _turn(2, values[..., 0])
    if layout == "axis-angle":
        return _quaternion_to_matrix(_axis_angle_to_quaternion(values))
    if layout == "quaternion-wxyz":
        return _quaternion_to_matrix(values)
    if layout == "quaternion-xyzw":
        return _quaternion_to_matrix(np.roll(values, 1, -1))
    if layout == "6d":
        first = _unit(values[..., :3])
        second = _unit(values[..., 3:] - (first * values[..., 3:]).sum(-1, keepdims=True) * first)
        return np.stack([first, second, np.cross(first, second)], -1)
    axes = layout.removeprefix("euler-")
    turns = [_turn("xyz".index(axis.lower()), values[..., i]) for i, axis in enumerate(axes)]
    if axes.islower():
        turns.reverse()  # fixed axes: the first rotation is applied first, so it stands rightmost
    return turns[0] @ turns[1] @ turns[2]


def from_matrix(layout: str, matrix: Floats) -> Floats:
    """(..., 3, 3) rotation matrices to (..., width) numbers in a layout; the inverse of `to_matrix`.

    >>> turn = np.array([0.1, 0.2, 1.5])
    >>> [round(x, 6) for x in from_matrix("euler-xyz", to_matrix("euler-xyz", turn)).tolist()]
    [0.1, 0.2, 1.5]
    """
    if layout == "angle":
        return np.arctan2(matrix[..., 1, 0], matrix[..., 0, 0])[..., None]
    if layout == "6d":
        return matrix[..., :2].swapaxes(-1, -2).reshape(*matrix.shape[:-2], 6)
    if layout == "quaternion-wxyz":
        return _matrix_to_quaternion(matrix)
    if layout == "quaternion-xyzw":
        return np.roll(_matrix_to_quaternion(matrix), -1, -1)
    if layout == "axis-angle":
        quaternion = _matrix_to_quaternion(matrix)
        sine = _norm(quaternion[..., 1:])
        angle = 2 * np.arctan2(sine, quaternion[..., :1])
        return np.asarray(quaternion[..., 1:] * np.where(sine > 1e-12, angle / np.maximum(sine, 1e-12), 2.0))
    axes = layout.removeprefix("euler-")
    if axes.islower():  # the fixed-axis angles are the moving-axis angles of the reversed sequence
        return _moving_euler(axes[::-1], matrix)[..., ::-1]
    return _moving_euler(axes.lower(), matrix)


def mean_rotation(matrices: Floats) -> Floats:
    """The rotation nearest to all of (n, ..., 3, 3), in the chordal sense: their mean, projected back onto rotations.

    >>> two = to_matrix("axis-angle", np.array([[0.0, 0.0, 0.5], [0.0, 0.0, 1.5]]))
    >>> round(from_matrix("axis-angle", mean_rotation(two))[2].item(), 6)
    1.0
    """
    left, _, right = np.linalg.svd(matrices.mean(0))
    left[..., 2] *= np.linalg.det(left @ right)[..., None]
    return np.asarray(left @ right)


def _norm(vectors: Floats) -> Floats:
    return np.asarray(np.linalg.norm(vectors, axis=-1, keepdims=True))


def _unit(vectors: Floats) -> Floats:
    with np.errstate(invalid="ignore"):  # padding may hold zeros where a rotation would be
        return np.asarray(vectors / _norm(vectors))


def _square(entries: list[Floats], n: int) -> Floats:
    return np.stack(entries, -1).reshape(*entries[0].shape, n, n)


def _turn(axis: int, angle: Floats) -> Floats:
    cosine, sine, zero, one = np.cos(angle), np.sin(angle), np.zeros_like(angle), np.ones_like(angle)
    rows = {
        0: [one, zero, zero, zero, cosine, -sine, zero, sine, cosine],
        1: [cosine, zero, sine, zero, one, zero, -sine, zero, cosine],
        2: [cosine, -sine, zero, sine, cosine, zero, zero, zero, one],
    }[axis]
    return _square(rows, 3)


def _moving_euler(axes: str, matrix: Floats) -> Floats:
    """Angles about moving axes i, j, k (all different). At gimbal lock the third angle is set to zero."""
    i, j, k = ("xyz".index(axis) for axis in axes)
    parity = 1.0 if (i, j, k) in ((0, 1, 2), (1, 2, 0), (2, 0, 1)) else -1.0
    sine = parity * matrix[..., i, k]
    middle = np.arctan2(sine, np.hypot(matrix[..., i, i], matrix[..., i, j]))
    locked = np.abs(sine) > 1 - 1e-14  # closer than this, the other two angles have no digits left
    first = np.where(
        locked,
        np.arctan2(parity * matrix[..., k, j], matrix[..., j, j]),
        np.arctan2(-parity * matrix[..., j, k], matrix[..., k, k]),
    )
    last = np.where(locked, 0.0, np.arctan2(-parity * matrix[..., i, j], matrix[..., i, i]))
    return np.stack([first, middle, last], -1)


def _axis_angle_to_quaternion(vector: Floats) -> Floats:
    angle = _norm(vector)
    # sinc(x) = sin(pi x) / (pi x): smooth at zero, where the axis is undefined
    return np.concatenate([np.cos(angle / 2), vector * np.sinc(angle / (2 * np.pi)) / 2], -1)


def _quaternion_to_matrix(quaternion: Floats) -> Floats:
    w, x, y, z = np.moveaxis(_unit(quaternion), -1, 0)
    rows = [
        1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w),
        2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w),
        2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y),
    ]  # fmt: skip
    return _square(rows, 3)


def _matrix_to_quaternion(matrix: Floats) -> Floats:
    """(w, x, y, z) with w >= 0: the top eigenvector of a symmetric 4 x 4 matrix, stable for every angle."""
    (a, b, c), (d, e, f), (g, h, i) = np.moveaxis(matrix, (-2, -1), (0, 1))
    rows = [
        a + e + i, h - f, c - g, d - b,
        h - f, a - e - i, b + d, c + g,
        c - g, b + d, e - a - i, f + h,
        d - b, c + g, f + h, i - a - e,
    ]  # fmt: skip
    quaternion = np.linalg.eigh(_square(rows, 4)).eigenvectors[..., -1]
    return np.where(quaternion[..., :1] < 0, -quaternion, quaternion)
