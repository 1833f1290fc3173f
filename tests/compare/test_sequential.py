"""Looking after every episode must not raise the chance of a false alarm."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from simulated import draw

from keystone_robotics.compare.sequential import bet

ALPHA, TRIALS = 0.05, 600
# three standard errors of a simulated share of α
MARGIN = 3 * np.sqrt(ALPHA * (1 - ALPHA) / TRIALS)


def alarms(differences):
    """Shares of (trials, tasks, states) data sets in which B, and A, was ever called better."""
    found = [bet(list(one)).decision for one in differences]
    return found.count("B is better") / len(found), found.count("A is better") / len(found)


@pytest.mark.parametrize(("repeats", "rate"), [(1, 0.5), (5, 0.9)])
def test_false_alarms_with_a_look_after_every_state(repeats, rate):
    a, b = draw(np.random.default_rng(0), 1, 300, repeats, rate, rate, trials=TRIALS)
    assert sum(alarms((b - a).mean(-1))) <= ALPHA + MARGIN


def test_false_alarms_where_tasks_differ_but_not_on_average():
    """Better in one task by as much as it is worse in another: no difference over all."""
    random = np.random.default_rng(0)
    gain, loss = draw(random, 1, 150, 1, 0.4, 0.8, trials=TRIALS), draw(random, 1, 150, 1, 0.8, 0.4, trials=TRIALS)
    differences = np.concatenate([(b - a).mean(-1) for a, b in (gain, loss)], axis=1)
    assert sum(alarms(differences)) <= ALPHA + MARGIN


def test_false_alarms_of_unpaired_arms():
    a, b = draw(np.random.default_rng(0), 2, 150, 1, 0.6, 0.6, coupled=0.0, noise=0.0, trials=TRIALS)
    assert sum(alarms((b - a).mean(-1))) <= ALPHA + MARGIN


@pytest.mark.parametrize(("repeats", "least"), [(1, 0.8), (5, 0.95)])
def test_it_finds_what_is_there(repeats, least):
    a, b = draw(np.random.default_rng(0), 1, 200, repeats, 0.5, 0.65, trials=200)
    better, worse = alarms((b - a).mean(-1))
    assert better >= least
    assert worse <= 0.01


@given(st.integers(0, 30), st.integers(0, 30))
def test_with_one_repeat_it_is_a_mixture_of_likelihood_ratios(only_b, only_a):
    bets = bet([[1.0] * only_b + [-1.0] * only_a + [0.0]])
    ratio, _ = quad(lambda p: 2 * (2 * p) ** only_b * (2 * (1 - p)) ** only_a, 0.5, 1)
    assert bets.b_better == pytest.approx(ratio, rel=0.1)


@given(st.lists(st.lists(st.floats(-1, 1), min_size=1, max_size=20), min_size=1, max_size=4))
def test_swapping_the_arms_swaps_the_bets_and_the_order_of_tasks_does_not_matter(tasks):
    bets, mirrored = bet(tasks), bet([[-value for value in values] for values in tasks[::-1]])
    assert (mirrored.a_better, mirrored.b_better) == pytest.approx((bets.b_better, bets.a_better))
    assert bets.states == len(tasks) * min(len(values) for values in tasks)


def test_once_allowed_to_stop_it_stays_so():
    bets = bet([[1.0] * 10 + [-1.0] * 10])
    assert bets.decision == "B is better"
    assert bets.advice == "stop allowed"
    assert bets.decided_at < 10
    assert bets.b_better < bets.threshold <= bets.peak_b
    assert bet([[1.0] * 3]).advice == "go on"


def test_a_very_long_streak_does_not_overflow():
    assert np.isfinite(bet([[1.0] * 100_000]).b_better)
