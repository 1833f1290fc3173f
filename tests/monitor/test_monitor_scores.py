"""Scores of disagreement: what they rise with, what they do not depend on, and where they say nothing."""

from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest
from clouds import cloud, observed
from hypothesis import example, given, settings
from hypothesis import strategies as st

from keystone_robotics.errors import KeystoneError
from keystone_robotics.monitor import SCORES
from keystone_robotics.monitor.overlap import overlap
from keystone_robotics.monitor.run import score_rounds
from keystone_robotics.monitor.scores import find_score
from keystone_robotics.records import RoundRecord
from keystone_robotics.select import ActionSpace, select

WITHIN = ["dispersion", "core-dispersion", "variance", "ace"]
BETWEEN = ["stac", "stac-single", "overlap-distance", "overlap-energy"]


@pytest.mark.parametrize("name", WITHIN)
def test_scores_of_one_round_rise_with_the_spread_of_candidates(name):
    values = [
        np.mean([SCORES[name](observed(cloud(np.random.default_rng(seed), spread=spread))) for seed in range(8)])
        for spread in (0.01, 0.1, 0.5)
    ]
    assert values[0] < values[1] < values[2]


@pytest.mark.parametrize("name", ["bimodality", "one-minus-consensus", "dispersion", "variance"])
def test_two_modes_score_higher_than_one(name):
    for seed in range(5):
        random = np.random.default_rng(seed)
        one, two = (observed(cloud(random, modes=modes), "medoid") for modes in (1, 2))
        assert SCORES[name](two) > SCORES[name](one)


def test_a_second_mode_does_not_count_in_the_core():
    random = np.random.default_rng(0)
    one, two = (observed(cloud(random, modes=modes)) for modes in (1, 2))
    assert SCORES["core-dispersion"](two) < 2 * SCORES["core-dispersion"](one) < SCORES["dispersion"](two)


def test_bimodality_of_one_gaussian_mode_is_two_over_pi():
    line = np.reshape([NormalDist().inv_cdf((number + 0.5) / 400) for number in range(400)], (400, 1, 1))
    assert SCORES["bimodality"](observed(line, "medoid", executed=1)) == pytest.approx(2 / np.pi, abs=0.02)
    assert SCORES["bimodality"](observed(np.sign(line), "medoid", executed=1)) == pytest.approx(1.0)


@pytest.mark.parametrize("name", BETWEEN)
def test_scores_of_two_rounds_rise_when_the_plan_changes(name):
    values = []
    for shift in (0.0, 0.3, 1.0):
        pairs = []
        for seed in range(8):
            random = np.random.default_rng(seed)
            before = cloud(random, k=24)
            now = np.concatenate([before[:, 4:], np.repeat(before[:, -1:], 4, axis=1)], axis=1)
            now = now[random.permutation(24)] + 0.02 * random.normal(size=now.shape) + shift
            pairs.append(SCORES[name](observed(now, relative=()), observed(before, relative=())))
        values.append(np.mean(pairs))
    assert values[0] < values[1] < values[2]


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    k=st.integers(3, 12),
    dims=st.integers(1, 4),
    offset=st.floats(-5, 5),
    modes=st.integers(1, 2),
)
@example(
    seed=30855, k=10, dims=1, offset=0.0, modes=1
)  # two balls of one size: the core is the one with the smaller diameter
def test_scores_do_not_depend_on_the_order_or_the_origin(seed, k, dims, offset, modes):
    random = np.random.default_rng(seed)
    now, before = (cloud(random, k, dims=dims, modes=modes, spread=0.3) for _ in range(2))
    order = random.permutation(k)
    for name, score in SCORES.items():
        value = score(observed(now, "medoid", relative=()), observed(before, "medoid", relative=()))
        moved = score(observed(now + offset, "medoid", relative=()), observed(before + offset, "medoid", relative=()))
        one = 1.01 / k if name == "one-minus-consensus" else 0.0  # a candidate on the edge may change sides
        assert moved == pytest.approx(value, rel=2e-3, abs=max(one, 2e-4)), name
        if name != "stac-single":  # by candidate 0
            shuffled = score(observed(now[order], "medoid", relative=()), observed(before, "medoid", relative=()))
            assert shuffled == pytest.approx(value, rel=1e-5, abs=max(one, 1e-7)), name


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), anchor=st.floats(-5, 5), relative=st.sampled_from([None, (0, 1, 2), (1,)]))
def test_relative_dimensions_are_compared_by_their_increments(seed, anchor, relative):
    random = np.random.default_rng(seed)
    now, before = (cloud(random, 6) for _ in range(2))
    moved = now.copy()
    moved[..., list(range(3) if relative is None else relative)] += anchor  # the robot has moved on between the rounds
    for name in BETWEEN:
        values = [SCORES[name](observed(one, relative=relative), observed(before)) for one in (now, moved)]
        assert values[1] == pytest.approx(values[0], rel=1e-3, abs=1e-4), name
    if abs(anchor) > 1:
        absolute = [SCORES["overlap-distance"](observed(one, relative=()), observed(before)) for one in (now, moved)]
        assert absolute[0] != pytest.approx(absolute[1], rel=1e-2)


def test_equal_plans_are_consistent_and_stac_is_at_most_two():
    random = np.random.default_rng(0)
    same = np.repeat(cloud(random, 1), 8, axis=0)
    later = np.concatenate([same[:, 4:], same[:, :4]], axis=1)
    for name in BETWEEN:
        assert SCORES[name](observed(later, relative=()), observed(same, relative=())) == pytest.approx(0, abs=1e-6)
    far = observed(later + 100 + 1e-3 * random.normal(size=later.shape), relative=())
    assert 0.5 < SCORES["stac"](far, observed(same, relative=())) <= 2


def test_only_what_counts_counts():
    random = np.random.default_rng(0)
    chunks = cloud(random)
    padded = np.concatenate([chunks, 100 * random.normal(size=(16, 8, 5))], axis=2)
    for name, score in SCORES.items():
        alone, within = (
            [replace(observed(one, "medoid", relative=()), space=space) for one in (now, now[::-1])]
            for now, space in ((chunks, ActionSpace(steps=4)), (padded, ActionSpace(dims=3, steps=4)))
        )
        if name in ("dispersion", "one-minus-consensus"):
            continue  # the selection's own
        assert score(*within) == pytest.approx(score(*alone)), name


def test_non_finite_candidates_are_left_out():
    random = np.random.default_rng(0)
    now, before = cloud(random), cloud(random)
    broken = np.concatenate([now, np.full((2, 8, 3), np.nan)])
    with pytest.warns(RuntimeWarning, match="dropped"):
        partly = observed(broken, "medoid")
    for name, score in SCORES.items():
        assert score(partly, observed(before)) == pytest.approx(score(observed(now, "medoid"), observed(before))), name


def test_where_a_score_says_nothing_it_is_nan():
    random = np.random.default_rng(0)
    one, many = observed(cloud(random, 1), "first"), observed(cloud(random))
    for name, score in SCORES.items():
        assert np.isnan(score(many)) == score.uses_previous, name
        assert np.isnan(score(one, many)) == (name != "stac-single"), name
        whole = replace(many, executed=8)  # nothing of the chunk is left
        assert np.isnan(score(many, whole)) == score.uses_previous, name
        assert np.isnan(score(many, replace(many, executed=None))) == score.uses_previous, name


def test_rotations_are_compared_as_rotations_and_left_out_where_they_are_relative():
    random = np.random.default_rng(0)
    chunks = np.concatenate([cloud(random), 0.3 * random.normal(size=(16, 8, 3)), np.ones((16, 8, 1))], axis=2)
    space = ActionSpace(rotation={"axis-angle": 3}, gripper={6: 0.5})
    one = observed(chunks, space=space, relative=())
    assert one.candidates.shape == (16, 8, 3 + 9 + 1)
    assert overlap(one, one)[0].shape == (16, 4 * 13)
    moved = replace(one, relative=tuple(range(6)))
    assert overlap(moved, one)[0].shape == (16, 4 * 1 + 3 * 3)


def test_an_unknown_score_names_the_nearest():
    with pytest.raises(KeystoneError, match="did you mean 'stac'"):
        find_score("stak")


def test_a_score_that_is_asked_for_twice_is_computed_once():
    """Two alarms of one run may have the same score."""
    chunks = cloud(np.random.default_rng(0)).astype(np.float32)
    selection = select(chunks)
    record = RoundRecord(
        0,
        0,
        chunks,
        selection.labels,
        selection.index,
        False,
        selection.consensus,
        0.0,
        chunks[0],
        selection.dispersion,
    )
    score = SCORES["dispersion"]
    assert len(score_rounds([record, record], [score, score])["dispersion"]) == 2
