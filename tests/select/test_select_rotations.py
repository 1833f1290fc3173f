"""Rotation layouts against scipy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from keystone_robotics.select import rotations
from keystone_robotics.select.rotations import WIDTHS, from_matrix, mean_rotation, to_matrix, width

LAYOUTS = sorted(set(WIDTHS) - {"angle"})  # those of any rotation in space
EULERS = [layout for layout in LAYOUTS if layout.startswith("euler-")]


def written(layout: str, turns: Rotation) -> np.ndarray:
    """What scipy writes for rotations in one of our layouts."""
    if layout == "axis-angle":
        return turns.as_rotvec()
    if layout == "quaternion-xyzw":
        return turns.as_quat()
    if layout == "quaternion-wxyz":
        return turns.as_quat()[..., [3, 0, 1, 2]]
    if layout == "6d":
        return np.concatenate([turns.as_matrix()[..., 0], turns.as_matrix()[..., 1]], -1)
    return turns.as_euler(layout.removeprefix("euler-"))


def random_turns(n: int, seed: int = 0) -> Rotation:
    return Rotation.random(n, random_state=seed)


def test_there_are_sixteen_layouts_of_any_rotation():
    assert len(EULERS) == 12
    assert set(LAYOUTS) - set(EULERS) == {"axis-angle", "quaternion-xyzw", "quaternion-wxyz", "6d"}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_to_matrix(layout):
    turns = random_turns(200)
    values = written(layout, turns)
    assert values.shape == (200, width(layout))
    np.testing.assert_allclose(to_matrix(layout, values), turns.as_matrix(), atol=1e-12)
    many = to_matrix(layout, values.reshape(4, 50, 1, -1))
    assert many.shape == (4, 50, 1, 3, 3)
    np.testing.assert_allclose(many.reshape(200, 3, 3), turns.as_matrix(), atol=1e-12)


def test_an_angle_is_a_turn_about_one_axis():
    angles = np.linspace(-9, 9, 200)
    matrices = to_matrix("angle", angles[:, None])
    np.testing.assert_allclose(matrices, Rotation.from_euler("z", angles[:, None]).as_matrix(), atol=1e-12)
    back = from_matrix("angle", matrices)[:, 0]
    np.testing.assert_allclose(np.exp(1j * back), np.exp(1j * angles), atol=1e-12)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_from_matrix(layout):
    turns = random_turns(200, 1)
    values = from_matrix(layout, turns.as_matrix())
    expected = written(layout, turns)
    if layout.startswith("quaternion"):
        w = expected[:, :1] if layout.endswith("wxyz") else expected[:, 3:]
        expected = np.where(w < 0, -expected, expected)
    np.testing.assert_allclose(values, expected, atol=1e-9)


@pytest.mark.parametrize("layout", EULERS[::4])
@pytest.mark.parametrize("away", [1e-2, 3e-5, 1e-7, 0.0])
def test_euler_near_gimbal_lock(layout, away):
    """The angles are not unique there, the rotation is."""
    rng = np.random.default_rng(2)
    angles = rng.uniform(-3, 3, size=(100, 3))
    angles[:, 1] = rng.choice([-1, 1], size=100) * (np.pi / 2 - away)
    matrices = Rotation.from_euler(layout.removeprefix("euler-"), angles).as_matrix()
    again = to_matrix(layout, from_matrix(layout, matrices))
    np.testing.assert_allclose(again, matrices, atol=1e-6)


@pytest.mark.parametrize("layout", [*sorted(set(LAYOUTS) - set(EULERS)), *EULERS[::5]])
@pytest.mark.parametrize("angle", [0.0, 1e-9, 1e-5, np.pi - 1e-7, np.pi])
def test_small_and_half_turns(layout, angle):
    axes = np.random.default_rng(3).normal(size=(50, 3))
    axes = np.concatenate([axes / np.linalg.norm(axes, axis=1, keepdims=True), np.eye(3), -np.eye(3)])
    matrices = Rotation.from_rotvec(axes * angle).as_matrix()
    values = from_matrix(layout, matrices)
    assert np.isfinite(values).all()
    np.testing.assert_allclose(to_matrix(layout, values), matrices, atol=1e-6)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.floats(-20, 20), min_size=3, max_size=3), st.integers(-3, 3))
def test_axis_angle_wraps_around(vector, times):
    vector = np.array(vector)
    length = np.linalg.norm(vector)
    if length < 1e-3:
        return
    other = vector * (length + 2 * np.pi * times) / length
    np.testing.assert_allclose(to_matrix("axis-angle", vector), to_matrix("axis-angle", other), atol=1e-9)
    np.testing.assert_allclose(to_matrix("axis-angle", vector), Rotation.from_rotvec(vector).as_matrix(), atol=1e-9)


def test_quaternions_of_any_length_and_sign():
    quaternions = np.random.default_rng(4).normal(size=(50, 4))
    for layout in ("quaternion-xyzw", "quaternion-wxyz"):
        matrices = to_matrix(layout, quaternions)
        np.testing.assert_allclose(matrices, to_matrix(layout, -3.5 * quaternions), atol=1e-12)
    assert np.isnan(to_matrix("quaternion-xyzw", np.zeros(4))).all()


def test_6d_need_not_be_orthonormal():
    """Networks emit two rough columns; Gram and Schmidt do the rest."""
    rough = np.random.default_rng(5).normal(size=(50, 6))
    matrices = to_matrix("6d", rough)
    np.testing.assert_allclose(matrices @ matrices.swapaxes(-1, -2), np.broadcast_to(np.eye(3), (50, 3, 3)), atol=1e-12)
    np.testing.assert_allclose(np.linalg.det(matrices), 1, atol=1e-12)
    np.testing.assert_allclose(
        matrices[:, :, 0], rough[:, :3] / np.linalg.norm(rough[:, :3], axis=1, keepdims=True), atol=1e-12
    )
    np.testing.assert_allclose(to_matrix("6d", from_matrix("6d", matrices)), matrices, atol=1e-12)


@pytest.mark.parametrize("n", [1, 2, 3, 7])
@pytest.mark.parametrize("apart", [0.01, 0.5, 2.0])
def test_mean_rotation(n, apart):
    """scipy's mean is the chordal one, too."""
    rng = np.random.default_rng(n)
    turns = [Rotation.from_rotvec(apart * rng.normal(size=(n, 3))) * random_turns(1, seed)[0] for seed in range(6)]
    matrices = np.stack([turn.as_matrix() for turn in turns], 1)  # (n, 6, 3, 3)
    expected = np.stack([turn.mean().as_matrix() for turn in turns])
    np.testing.assert_allclose(mean_rotation(matrices), expected, atol=1e-9)


def test_mean_of_opposite_turns_is_still_a_rotation():
    half = Rotation.from_rotvec([[0, 0, 0.0], [0, 0, np.pi]]).as_matrix()
    mean = mean_rotation(half)
    np.testing.assert_allclose(mean @ mean.T, np.eye(3), atol=1e-12)
    assert float(np.linalg.det(mean)) == pytest.approx(1)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_float32_values(layout):
    turns = random_turns(30, 6)
    matrices = to_matrix(layout, written(layout, turns).astype(np.float32))
    assert matrices.dtype == np.float32
    np.testing.assert_allclose(matrices, turns.as_matrix(), atol=2e-6)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("euler", "euler-"),
        ("quaternion", "quaternion-"),
        ("axis_angle", "axis-angle"),
        ("6D", "6d"),
        ("euler-XYz", "euler-"),
    ],
)
def test_unknown_layout_suggests_the_nearest(name, nearest):
    with pytest.raises(ValueError, match=f"unknown rotation layout '{name}': did you mean '{nearest}"):
        rotations.width(name)
