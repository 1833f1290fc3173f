"""Predictors of the gain: what they measure, and that only what holds on the policies for testing is a forecast."""

import numpy as np
import pytest

from keystone_robotics.policies import load_agent
from keystone_study.reproduce.forecast import (
    ENOUGH,
    PREDICTORS,
    Correlation,
    PolicyCandidates,
    caveat,
    correlate,
    draw,
    frames,
    is_for_fitting,
    verdict,
)
from keystone_study.reproduce.workloads import MAIN_WORKLOADS


def cloud(modes: float = 0.0, noise: float = 1.0, few: float = 0.5) -> dict[str, float]:
    """Predictors of 40 rounds whose candidates are ``modes`` apart; with few steps ``few`` of the scatter is left."""
    random = np.random.default_rng(0)
    scatter = noise * random.normal(size=(40, 16, 8, 3))
    side = modes * np.sign(np.arange(16) - 7.5)[None, :, None, None]
    return {
        name: predictor(PolicyCandidates(scatter + side, few * scatter + side))
        for name, predictor in PREDICTORS.items()
    }


def test_predictors_measure_what_they_say():
    one, two = cloud(), cloud(modes=3.0)
    assert one["dispersion"] == pytest.approx(1.0, abs=0.1)
    assert two["dispersion"] > 2 * one["dispersion"]
    assert one["share of rounds with two modes"] < 0.1
    assert two["share of rounds with two modes"] == 1.0
    assert two["mean to medoid"] > 0.7
    assert one["change from own to two steps"] == pytest.approx(0.5, abs=0.05)
    assert one["dispersion left at two steps"] == pytest.approx(0.5, abs=0.01)


def test_a_regime_that_was_trained_twice_is_in_both_halves():
    for name in MAIN_WORKLOADS:
        if f"{name}-again" in MAIN_WORKLOADS:
            assert is_for_fitting(name)
            assert not is_for_fitting(f"{name}-again")


def test_ranks_are_correlated_in_both_halves(monkeypatch):
    monkeypatch.setattr("keystone_study.reproduce.forecast.RESAMPLES", 400)
    gains = {name: float(index) for index, name in enumerate(MAIN_WORKLOADS)}
    rows = {name: dict.fromkeys(PREDICTORS, 0.0) | {"dispersion": -(gains[name] ** 3)} for name in gains}
    best, *others = correlate(rows, gains)
    assert (best.predictor, best.fitting, best.testing) == ("dispersion", pytest.approx(-1.0), pytest.approx(-1.0))
    assert best.interval[1] < -0.9
    assert all(one.fitting == one.testing == 0.0 for one in others)


def test_the_page_says_how_wide_intervals_are_and_that_halves_share_regimes():
    correlations = [
        Correlation("dispersion", 0.2, 0.1, (-0.9, 0.7)),
        Correlation("mean to medoid", 0.1, 0.1, (-0.5, 0.7)),
    ]
    said = caveat(MAIN_WORKLOADS[:5], correlations)
    assert "not independent" in said
    assert "2 policies for testing: the intervals are 1.2 to 1.6 wide" in said


@pytest.mark.parametrize(
    ("testing", "interval", "policies", "expected"),
    [
        (0.7, (0.2, 0.9), ENOUGH, "forecasts the gain"),
        (0.7, (0.2, 0.9), ENOUGH - 1, "too few"),
        (0.7, (-0.1, 0.9), ENOUGH, "No predictor"),
        (0.5, (0.2, 0.7), ENOUGH, "No predictor"),
        (-0.7, (-0.9, -0.2), ENOUGH, "No predictor"),
    ],
)
def test_only_what_holds_for_testing_is_a_forecast(testing, interval, policies, expected):
    assert expected in verdict([Correlation("dispersion", 0.8, testing, interval)], policies)


def test_frames_of_a_real_policy_give_candidates_that_can_be_drawn_again():
    shown = frames("cube-single-mixed", 3)
    assert len(shown) == 3
    agent = load_agent("cube-single-mixed")
    first, second = draw(agent, shown), draw(agent, shown)
    assert first.own.shape == (3, 16, 8, 5)
    np.testing.assert_array_equal(first.own, second.own)
    assert not np.array_equal(first.own, first.few)
