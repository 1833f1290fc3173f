"""`ActionSpace`: which numbers count, how they are compared, and what it refuses."""

from __future__ import annotations

import copy
import dataclasses
import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation
from test_select_rotations import LAYOUTS, written

import keystone_robotics as keystone
from keystone_robotics import ActionSpace
from keystone_robotics.select.rotations import width


def numbered(k: int = 2, steps: int = 5, dims: int = 4) -> np.ndarray:
    return np.arange(k * steps * dims, dtype=np.float64).reshape(k, steps, dims)


def distance(space: ActionSpace, one, other) -> float:
    """Distance of two chunks (T, D) in a space."""
    chunks = np.stack([one, other]).astype(np.float64)
    features = space.embed(chunks)
    return float(np.linalg.norm(features[0] - features[1]))


# --- dims and steps


@pytest.mark.parametrize(
    ("form", "picked"),
    [
        (None, [0, 1, 2, 3]),
        (3, [0, 1, 2]),
        (np.int64(3), [0, 1, 2]),
        (slice(1, 3), [1, 2]),
        (slice(None, None, 2), [0, 2]),
        (slice(-2, None), [2, 3]),
        (range(1, 4), [1, 2, 3]),
        (range(3, 0, -2), [3, 1]),
        ([2, 0], [2, 0]),
        ((1,), [1]),
        (np.array([1, 3]), [1, 3]),
        (torch.tensor([1, 3]), [1, 3]),
    ],
)
def test_forms_of_dims_and_steps(form, picked):
    chunks = numbered(steps=4)
    np.testing.assert_array_equal(ActionSpace(dims=form).embed(chunks), chunks[:, :, picked].reshape(len(chunks), -1))
    np.testing.assert_array_equal(ActionSpace(steps=form).embed(chunks), chunks[:, picked].reshape(len(chunks), -1))
    both = ActionSpace(dims=form, steps=form).embed(chunks)
    np.testing.assert_array_equal(both, chunks[:, picked][:, :, picked].reshape(len(chunks), -1))


def test_embedding_keeps_leading_axes():
    assert ActionSpace(dims=2, steps=3).embed(np.zeros((5, 6, 7, 8))).shape == (5, 6, 6)
    assert ActionSpace(dims=2, gripper={1: 0.5}).embed(np.zeros((7, 8))).shape == (14,)


@pytest.mark.parametrize("name", ["dims", "steps"])
@pytest.mark.parametrize(
    ("form", "error", "message"),
    [
        (0, ValueError, "=0 does not fit chunks of 4 .*: a count is 1 to 4"),
        (5, ValueError, "=5 does not fit chunks of 4"),
        (-1, ValueError, "=-1 does not fit chunks of 4"),
        ([], ValueError, "leaves no .* to compare: the window is empty"),
        (slice(4, None), ValueError, "the window is empty"),
        (range(0), ValueError, "the window is empty"),
        ([0, 4], ValueError, r"names \[4\], but chunks have 4 .*: 0 to 3"),
        ([-1], ValueError, r"names \[-1\]"),
        (range(2, 7), ValueError, r"names \[4, 5, 6\]"),
        ([1, 2, 1], ValueError, "names an index twice"),
        (1.5, TypeError, "=1.5: expected one whole number or several"),
        ([0, 1.0], TypeError, "expected one whole number or several"),
        ("012", TypeError, "expected one whole number or several"),
        (True, TypeError, "not a mask"),
        ([True, False, True, True], TypeError, "not a mask"),
        (np.array([True, False, True, True]), TypeError, "not a mask"),
    ],
)
def test_wrong_dims_and_steps(name, form, error, message):
    with pytest.raises(error, match=f"^{name}.*{message}"):
        keystone.select(np.zeros((3, 4, 4)), space=ActionSpace(**{name: form}))


def test_the_caller_may_change_his_list_afterwards():
    dims, scale, rotation, gripper = [0, 1, 2, 3], [1.0] * 5, {"axis-angle": [0]}, {3: 0.5}
    space = ActionSpace(dims=dims, scale=scale, rotation=rotation, gripper=gripper)
    dims.append(4), scale.clear(), rotation.clear(), gripper.clear()
    assert space == ActionSpace(dims=[0, 1, 2, 3], scale=[1.0] * 5, rotation={"axis-angle": [0]}, gripper={3: 0.5})


# --- scale


@pytest.mark.parametrize(
    ("scale", "units"),
    [
        (2, [2, 2, 2]),
        (0.5, [0.5, 0.5, 0.5]),
        (np.float32(4), [4, 4, 4]),
        ([1, 2, 4], [1, 2, 4]),
        ((1.0, 2.0, 4.0), [1, 2, 4]),
        (np.array([1, 2, 4]), [1, 2, 4]),
        (torch.tensor([1.0, 2.0, 4.0]), [1, 2, 4]),
        ({1: 4}, [1, 4, 1]),
        ({np.int64(2): np.float32(0.25)}, [1, 1, 0.25]),
        ({}, [1, 1, 1]),
    ],
)
def test_scale_divides_differences(scale, units):
    chunks = numbered(3, 2, 3)
    expected = (chunks / np.array(units, float)).reshape(len(chunks), -1)
    np.testing.assert_array_equal(ActionSpace(scale=scale).embed(chunks), expected)
    two = ActionSpace(scale=scale, dims=[0, 2]).embed(chunks)
    np.testing.assert_array_equal(two, expected.reshape(3, 2, 3)[:, :, [0, 2]].reshape(len(chunks), -1))


@pytest.mark.parametrize(
    ("scale", "error", "message"),
    [
        (0, ValueError, "scale=0: every scale must be a positive number"),
        (-1.0, ValueError, "must be a positive number"),
        ([1, math.inf, 1], ValueError, "must be a positive number"),
        ({0: math.nan}, ValueError, "must be a positive number"),
        ([1.0, 2.0], ValueError, "scale has 2 numbers, chunks have 3 dimensions"),
        ({3: 1.0}, ValueError, r"scale names dimensions \[3\], but chunks have 3: 0 to 2"),
        ({-1: 1.0}, ValueError, r"scale names dimensions \[-1\]"),
        ("wide", TypeError, "scale='wide': expected a number, one per dimension"),
        ({"x": 1.0}, TypeError, "scale"),
        (np.array(2.0), TypeError, "scale"),
    ],
)
def test_wrong_scales(scale, error, message):
    with pytest.raises(error, match=message):
        keystone.select(np.zeros((3, 4, 3)), space=ActionSpace(scale=scale))


def test_scale_decides():
    chunks = np.array([[0.0, 1.0], [1.0, 0.0], [2.0, 2.0]])[
        :, None
    ]  # in the middle: 1 by the first dimension, 0 by the second
    assert keystone.select(chunks, "medoid", ActionSpace(scale=[1, 1000])).index == 1
    assert keystone.select(chunks, "medoid", ActionSpace(scale={0: 1000})).index == 0


# --- rotations


@pytest.mark.parametrize("layout", LAYOUTS)
def test_distance_of_rotations_is_the_chord(layout):
    """2 sin(θ/2), whatever the layout; next to a position that counts as usual."""
    one, other = Rotation.random(40, random_state=1), Rotation.random(40, random_state=2)
    angles = (one.inv() * other).magnitude()
    space = ActionSpace(rotation={layout: 1})
    for first, second, angle in zip(written(layout, one), written(layout, other), angles):
        assert distance(space, [[0.0, *first]], [[0.0, *second]]) == pytest.approx(2 * math.sin(angle / 2), abs=1e-9)
        apart = distance(space, [[0.0, *first]], [[3.0, *second]])
        assert apart == pytest.approx(math.hypot(3, 2 * math.sin(angle / 2)), abs=1e-9)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rotation_scale_is_in_radians(layout):
    turns = Rotation.from_rotvec([[0, 0, 0.3], [0, 0, 0.3001]])
    first, second = written(layout, turns)
    assert distance(ActionSpace(rotation={layout: 0}, scale=0.01), [first], [second]) == pytest.approx(0.01, rel=1e-6)


def test_double_cover_and_wrap_around_are_no_distance():
    quaternion = np.array([[0.1, -0.7, 0.2, 0.5]])
    for layout in ("quaternion-xyzw", "quaternion-wxyz"):
        assert distance(ActionSpace(rotation={layout: 0}), quaternion, -quaternion) < 1e-12
        assert distance(ActionSpace(rotation={layout: 0}), quaternion, 2 * quaternion) < 1e-12
    turn = np.array([[0.0, 0.6, 0.8]])
    for angle in (0.1, 1.0, 3.0):
        for times in (-2, -1, 1):
            other = turn * (angle + 2 * np.pi * times)
            assert distance(ActionSpace(rotation={"axis-angle": 0}), turn * angle, other) < 1e-9
    assert distance(ActionSpace(rotation={"axis-angle": 0}), turn * np.pi, -turn * np.pi) < 1e-9
    assert distance(ActionSpace(rotation={"euler-xyz": 0}), [[3.1, 0, 0]], [[3.1 - 2 * np.pi, 0, 0]]) < 1e-9


def test_signs_of_quaternions_do_not_split_candidates():
    rng = np.random.default_rng(0)
    signs = rng.choice([-1.0, 1.0], size=(9, 3, 1))
    quaternions = (np.array([0.5, 0.5, 0.5, 0.5]) + 0.01 * rng.normal(size=(9, 3, 4))) * signs
    plain = keystone.select(quaternions, "medoid")
    known = keystone.select(quaternions, "medoid", ActionSpace(rotation={"quaternion-xyzw": 0}))
    assert (
        known.index
        == keystone.select(quaternions * signs, "medoid", ActionSpace(rotation={"quaternion-xyzw": 0})).index
    )
    assert known.median_distance < 0.1 < plain.median_distance


def test_two_arms():
    space = ActionSpace(rotation={"axis-angle": [3, 10]}, gripper={6: 0.5, 13: "logit"})
    layout = space.layout(8, 14)
    assert layout.plain == (0, 1, 2, 7, 8, 9)
    assert layout.rotations == (("axis-angle", (3, 4, 5)), ("axis-angle", (10, 11, 12)))
    assert space.embed(np.zeros((2, 8, 14))).shape == (2, 8 * (6 + 18 + 2))


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({"rotation": {"axis-angle": 5}}, "rotation 'axis-angle' at 5 needs dimension 7, which does not count"),
        ({"rotation": {"axis-angle": 2}, "dims": 4}, "needs dimension 4, which does not count: dims=4, D=7"),
        ({"rotation": {"quaternion-xyzw": 3}, "dims": [0, 3, 4, 6]}, "needs dimension 5"),
        ({"rotation": {"axis-angle": -1}}, "needs dimension -1"),
        (
            {"rotation": {"axis-angle": 0, "euler-xyz": 2}},
            "dimension 2 is used twice, the second time by rotation 'euler-xyz'",
        ),
        ({"rotation": {"axis-angle": [0, 1]}}, "dimension 1 is used twice"),
        ({"rotation": {"axis-angle": 3}, "gripper": {5: 0.5}}, "dimension 5 is used twice, the second time by gripper"),
        ({"gripper": {7: 0.5}}, "gripper needs dimension 7, which does not count"),
        ({"gripper": {6: 0.5}, "dims": 6}, "gripper needs dimension 6"),
        (
            {"rotation": {"axis-angle": 0}, "scale": [1, 1, 2, 1, 1, 1, 1]},
            r"dimensions \(0, 1, 2\).*must share one scale",
        ),
        ({"rotation": {"axis-angle": 0}, "scale": {1: 2.0}}, "must share one scale"),
    ],
)
def test_wrong_layouts(space, message):
    made = ActionSpace(**space)
    with pytest.raises(ValueError, match=message):
        keystone.select(np.zeros((3, 4, 7)), space=made)


@pytest.mark.parametrize(
    ("space", "error", "message"),
    [
        ({"rotation": {"axisangle": 3}}, ValueError, "unknown rotation layout 'axisangle': did you mean 'axis-angle'"),
        ({"rotation": "axis-angle"}, TypeError, "rotation='axis-angle': expected {layout: first dimension}"),
        ({"rotation": {"axis-angle": "3"}}, TypeError, "rotation='3': expected one whole number"),
        ({"rotation": {"axis-angle": 3.0}}, TypeError, "rotation=3.0: expected one whole number"),
        ({"gripper": 6}, TypeError, "gripper=6: expected {dim: 'logit'}"),
        ({"gripper": [6]}, TypeError, r"gripper=\[6\]: expected {dim: 'logit'}"),
        ({"gripper": {6: "open"}}, ValueError, "gripper dimension 6 is 'open': expected 'logit' or a threshold"),
        ({"gripper": {6: None}}, ValueError, "gripper dimension 6 is None"),
        ({"gripper": {6: math.nan}}, ValueError, "gripper dimension 6 is nan"),
        ({"gripper": {6: True}}, ValueError, "gripper dimension 6 is True"),
        ({"gripper": {"6": 0.5}}, TypeError, "gripper='6'"),
    ],
)
def test_wrong_arguments(space, error, message):
    with pytest.raises(error, match=message):
        ActionSpace(**space)


@pytest.mark.parametrize("space", [7, {"dims": 7}, "libero", ActionSpace])
def test_something_else_for_a_space(space):
    with pytest.raises(TypeError, match=r"expected a keystone.ActionSpace"):
        keystone.select(np.zeros((3, 4, 7)), space=space)


# --- grippers


def test_gripper_threshold_knows_open_and_closed():
    space = ActionSpace(gripper={1: 0.04})
    assert distance(space, [[0.0, 0.0]], [[0.0, 0.039]]) == 0
    assert distance(space, [[0.0, 0.0]], [[0.0, 0.041]]) == 1
    assert distance(space, [[0.0, 0.04]], [[0.0, 0.0]]) == 0  # on the threshold is not above it
    assert distance(space, [[0.0, -5.0], [0.0, 3.0]], [[0.0, 9.0], [0.0, -3.0]]) == pytest.approx(math.sqrt(2))
    assert distance(ActionSpace(gripper={1: 0.0}, scale={1: 0.5}), [[0, -1]], [[0, 1]]) == 2
    assert distance(ActionSpace(gripper={1: np.float32(0.5)}), [[0, 0]], [[0, 1]]) == 1


def test_gripper_logit_is_a_probability():
    space = ActionSpace(gripper={0: "logit"})
    expected = 1 / (1 + math.exp(-1.5)) - 1 / (1 + math.exp(2.0))
    assert distance(space, [[1.5]], [[-2.0]]) == pytest.approx(expected)
    assert distance(space, [[40.0]], [[80.0]]) < 1e-15


# --- the object


def full_space() -> ActionSpace:
    return ActionSpace(slice(0, 8), range(1, 4), [2.0] * 9, {"quaternion-xyzw": 3}, {7: 0.5})


@pytest.mark.parametrize("make", [pickle.loads, copy.deepcopy, copy.copy, dataclasses.replace])
def test_copies_work_and_are_equal(make):
    space = full_space()
    chunks = np.random.default_rng(0).normal(size=(5, 6, 9))
    before = keystone.select(chunks, space=space)  # also fills the cache of layouts
    other = make(pickle.dumps(space)) if make is pickle.loads else make(space)
    assert other == space
    assert keystone.select(chunks, space=other).index == before.index
    np.testing.assert_array_equal(other.embed(chunks), space.embed(chunks))


def test_replace_changes_one_thing():
    space = full_space()
    space.embed(np.zeros((2, 6, 9)))
    other = dataclasses.replace(space, steps=2)
    assert (other.steps, other.dims, other.rotation) == (2, space.dims, space.rotation)
    assert other.embed(np.zeros((2, 6, 9))).shape == (2, 2 * (3 + 9 + 1))
    assert space.embed(np.zeros((2, 6, 9))).shape == (2, 3 * (3 + 9 + 1))
    with pytest.raises(ValueError, match="positive"):
        dataclasses.replace(space, scale=-1)


def test_is_frozen_and_prints_its_arguments():
    space = ActionSpace(dims=7, steps=[0, 1], gripper={6: "logit"})
    with pytest.raises(dataclasses.FrozenInstanceError):
        space.dims = 3
    assert repr(space) == "ActionSpace(dims=7, steps=(0, 1), scale=None, rotation=None, gripper={6: 'logit'})"
    assert space != ActionSpace(dims=7)


def test_one_space_serves_chunks_of_several_shapes():
    space = ActionSpace(dims=2, steps=2)
    for shape in ((3, 4, 5), (3, 2, 2), (4, 9, 3), (3, 4, 5)):
        assert space.embed(np.zeros(shape)).shape == (shape[0], 4)
    with pytest.raises(ValueError, match="steps=2 does not fit chunks of 1 steps"):
        space.embed(np.zeros((3, 1, 5)))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.sampled_from(LAYOUTS), st.integers(0, 2**32 - 1), st.sampled_from(["l2", "l1", "cosine"]))
def test_selecting_in_a_space_is_selecting_among_its_features(layout, seed, metric):
    rng = np.random.default_rng(seed)
    dims = 4 + width(layout)
    chunks = rng.normal(size=(7, 3, dims)).astype(np.float32)
    space = ActionSpace(rotation={layout: 2}, gripper={1: 0.1, dims - 1: "logit"}, scale=0.7, steps=[2, 0])
    features = space.embed(chunks.astype(np.float64))
    for rule in ("keystone", "medoid", "density"):
        known = keystone.select(chunks, rule, space, metric=metric)
        plain = keystone.select(features[:, None], rule, metric=metric)
        assert known.index == plain.index
        np.testing.assert_array_equal(known.labels, plain.labels)
        assert known.spread == pytest.approx(plain.spread, rel=1e-9)


@pytest.mark.parametrize("given", [{"gripper": {(1, 2): 0.5}}, {"scale": {(0,): 2.0}}])
def test_an_entry_for_several_dimensions_is_refused(given):
    with pytest.raises(TypeError, match="expected"):
        ActionSpace(**given)
