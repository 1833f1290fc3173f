"""Consensus, median distance and dispersion mean something under every rule."""

from __future__ import annotations

import numpy as np
import pytest

import keystone_robotics as keystone
from keystone_robotics import RULES, ActionSpace, RuleResult
from keystone_robotics.select.metrics import group_radius

#: Rules that select from the larger of two modes. ("first" takes any, "kde" looks at one step, "mean" lies between them.)
TAKE_THE_LARGER = sorted(set(RULES) - {"first", "kde", "mean"})


def modes(*sizes: int, apart: float = 10.0, steps: int = 5) -> np.ndarray:
    """(K, T, 3) candidates around as many centres, each moving one unit a step."""
    rng = np.random.default_rng(0)
    walk = np.arange(steps)[:, None] * np.ones(3) / np.sqrt(3)
    return np.concatenate([walk + apart * i + 0.1 * rng.normal(size=(n, steps, 3)) for i, n in enumerate(sizes)])


@pytest.mark.parametrize("rule", TAKE_THE_LARGER)
@pytest.mark.parametrize("sizes", [(11, 5), (8, 8), (3, 2), (4, 1)])
def test_separate_modes(rule, sizes):
    assert keystone.select(modes(*sizes), rule).consensus == max(sizes) / sum(sizes)


@pytest.mark.parametrize("rule", sorted(set(TAKE_THE_LARGER) - {"cluster-medoid", "cluster-mean", "keystone"}))
def test_one_compact_mode(rule):
    assert keystone.select(modes(16), rule).consensus == 1


def test_the_group_is_that_of_the_selected_candidate():
    """Five of sixteen agree with a candidate of the smaller mode."""
    chunks = modes(11, 5)
    assert keystone.select(chunks[::-1], "first").consensus == 5 / 16
    assert keystone.select(chunks, lambda shown: 15).consensus == 5 / 16
    assert keystone.select(chunks, lambda shown: 0).consensus == 11 / 16
    assert keystone.select(chunks, lambda shown: RuleResult(2, chunk=chunks[0] + 1)).consensus == 11 / 16
    space = ActionSpace(gripper={2: 3.0})  # averaged by vote, outside the kernel
    assert keystone.select(chunks, "core-mean", space).consensus == 11 / 16


@pytest.mark.parametrize("rule", sorted(RULES))
def test_few_candidates(rule):
    pair = modes(1, 1)
    assert keystone.select(pair[:1], rule).consensus == 1
    assert keystone.select(pair, rule).consensus == 0.5
    third = np.stack([pair[0], pair[0], pair[1]])
    assert keystone.select(third, rule).consensus == pytest.approx(2 / 3)


def test_rounding_is_no_disagreement():
    """A policy without noise gives K times the same chunk, up to what batching rounds differently."""
    chunks = np.repeat(modes(1), 16, 0).astype(np.float32)
    chunks[9:] += np.float32(1e-6)
    for rule in ("medoid", "core-mean", "first"):
        selection = keystone.select(chunks, rule)
        assert selection.consensus == 1
        assert selection.dispersion < 1e-5


def test_dispersion_by_hand():
    """The medoid is the second; it goes 3 and 4 away from its first step, and the distances are 1, 2 and 3."""
    walk = np.array([[0.0, 3, 4]])
    chunks = np.concatenate([walk - 1, walk, walk + 2])[..., None] / [[[1.0]]]
    root = np.sqrt(3)
    for metric, distance, motion in (("l2", 2 * root, 5.0), ("l1", 6.0, 7.0)):
        selection = keystone.select(chunks, "medoid", metric=metric)
        assert selection.median_distance == pytest.approx(distance)
        assert selection.dispersion == pytest.approx(distance / (distance + motion))
    assert keystone.select(chunks, "medoid", ActionSpace(scale=0.1)).dispersion == pytest.approx(
        2 * root / (2 * root + 5)
    )
    cosine = keystone.select(chunks, "medoid", metric="cosine")
    assert cosine.dispersion == pytest.approx(cosine.median_distance / (1 + cosine.median_distance))


def test_dispersion_without_motion():
    still = np.array([1.0, 2, 4]).reshape(3, 1, 1) * np.ones((3, 6, 2))
    assert keystone.select(still, "medoid").dispersion == 1
    assert keystone.select(still * 0, "medoid").dispersion == 0
    one_step = keystone.select(
        still[:, :1], "medoid"
    )  # the size of the action stands in: 2 sqrt(2), as far as the median
    assert one_step.dispersion == pytest.approx(0.5)


def test_distances_that_rounding_alone_tells_apart_are_ties():
    rng = np.random.default_rng(0)
    for _ in range(200):
        whole = rng.integers(0, 6, size=7).astype(float)
        exact, rounded = (np.abs(places[:, None] - places) for places in (whole, 0.1 * whole + 0.7))
        assert group_radius(rounded, 0.0, "l2") == pytest.approx(0.1 * group_radius(exact, 0.0, "l2"))
