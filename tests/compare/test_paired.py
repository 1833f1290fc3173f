"""The paired interval and the paired test, against SciPy, against brute force, and against the truth in simulations."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, binomtest, norm, permutation_test, ttest_1samp
from simulated import coverage, draw

from keystone_robotics.compare.paired import discordant, paired_interval, paired_test

flips = st.lists(st.integers(-1, 1), min_size=1, max_size=3).map(np.array)
data = st.lists(st.lists(flips, min_size=1, max_size=6), min_size=1, max_size=3)


def pairs(only_b, only_a, states):
    return [[np.array([value]) for value in [1] * only_b + [-1] * only_a + [0] * (states - only_b - only_a)]]


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 40))
def test_with_one_repeat_it_is_mcnemars_test(only_b, only_a, neither):
    p, name = paired_test(pairs(only_b, only_a, only_b + only_a + neither + 1))
    expected = binomtest(only_b, only_b + only_a).pvalue if only_b + only_a else 1.0
    assert p == pytest.approx(expected, abs=1e-12)
    assert name == "McNemar exact"


@given(data)
@settings(max_examples=50)
def test_with_repeats_it_is_what_all_sign_flips_say(tasks):
    sums = [int(state.sum()) for states in tasks for state in states][:10]
    p, _ = paired_test([[np.full(max(1, abs(value)), np.sign(value)) for value in sums]])
    totals = [abs(np.dot(signs, sums)) for signs in itertools.product((-1, 1), repeat=len(sums))]
    assert p == pytest.approx(np.mean(np.array(totals) >= abs(sum(sums))))


def test_with_repeats_it_is_scipys_permutation_test():
    a, b = (one[0, 0] for one in draw(np.random.default_rng(0), 1, 12, 5, 0.5, 0.8))
    result = permutation_test(
        (b.mean(1), a.mean(1)), lambda x, y: np.mean(x - y), permutation_type="samples", n_resamples=np.inf
    )
    p, name = paired_test([list(b - a)])
    assert p == pytest.approx(result.pvalue, abs=1e-9)
    assert name == "sign flips of initial states, exact"


def test_many_states_do_not_overflow():
    p, _ = paired_test([[np.array([1, 1, 0, 1, 0])] * 500 + [np.array([-1, 0, 0, 0, -1])] * 500])
    assert 0 <= p < 1e-9


@pytest.mark.parametrize("table", [(6, 0, 20), (0, 0, 20), (12, 7, 60), (20, 0, 20)])
def test_with_one_repeat_it_is_bonett_and_prices_interval(table):
    only_b, only_a, states = table
    up, down = (only_b + 1) / (states + 2), (only_a + 1) / (states + 2)
    half = norm.ppf(0.975) * np.sqrt((up + down - (up - down) ** 2) / (states + 1))
    expected = max(-1, up - down - half), min(1, up - down + half)
    assert paired_interval(pairs(*table)) == pytest.approx(expected)


def test_with_many_states_it_is_the_t_interval():
    a, b = (one[0, 0] for one in draw(np.random.default_rng(0), 1, 4000, 5, 0.5, 0.6))
    expected = ttest_1samp((b - a).mean(1), 0).confidence_interval(0.95)
    assert paired_interval([list(b - a)]) == pytest.approx(tuple(expected), abs=5e-4)


@pytest.mark.parametrize("states", [10, 50])
def test_it_covers_for_every_discordance(states):
    """One repeat: exactly, over all tables of discordant pairs, for rare and common ones, in one direction or both."""
    tables = [(up, down) for up in range(states + 1) for down in range(states + 1 - up)]
    lows, highs = np.array([paired_interval(pairs(*table, states)) for table in tables]).T
    up, down = np.array(tables).T
    covered = []
    for discordance, share in itertools.product((0.02, 0.05, 0.1, 0.2, 0.3, 0.5), (1.0, 0.9, 0.75, 0.5)):
        chances = binom.pmf(up + down, states, discordance) * binom.pmf(up, up + down, share)
        truth = discordance * (2 * share - 1)
        covered.append(chances[(lows <= truth) & (truth <= highs)].sum())
    assert min(covered) >= 0.93


# where discordant pairs are few no interval can be exact, and this one is too wide rather than too narrow
CASES = [
    # tasks, states, repeats, rate of A, rate of B, most that it may cover
    (1, 20, 1, 0.5, 0.6, 0.98),
    (1, 50, 5, 0.5, 0.6, 0.97),
    (10, 5, 2, 0.5, 0.65, 0.98),
    (6, 20, 1, 0.85, 0.92, 0.98),
    (1, 20, 5, 0.9, 0.95, 1.0),
]


@pytest.mark.parametrize("case", CASES)
def test_simulated_coverage(case):
    *shape, rate_a, rate_b, most = case
    a, b = draw(np.random.default_rng(0), *shape, rate_a, rate_b, trials=1000)
    covered = coverage([paired_interval([list(task) for task in one]) for one in b - a], rate_b - rate_a)
    assert 0.93 <= covered <= most


@pytest.mark.parametrize("repeats", [2, 5])
def test_repeats_that_always_agree_count_as_one(repeats):
    """Repeating the same outcomes adds nothing to what is known."""
    once = pairs(6, 2, 20)
    many = [[np.repeat(state, repeats) for state in states] for states in once]
    assert paired_interval(many) == pytest.approx(paired_interval(once))
    assert paired_test(many)[0] == pytest.approx(paired_test(once)[0])


@given(data)
def test_swapping_the_arms_mirrors_everything(tasks):
    mirrored = [[-state for state in states] for states in tasks]
    low, high = paired_interval(tasks)
    assert paired_interval(mirrored) == pytest.approx((-high, -low))
    assert paired_test(mirrored) == paired_test(tasks)
    assert discordant(mirrored) == discordant(tasks)[::-1]


@given(data)
def test_the_order_of_tasks_and_states_does_not_matter(tasks):
    turned = [states[::-1] for states in tasks[::-1]]
    assert paired_interval(turned) == pytest.approx(paired_interval(tasks))
    assert paired_test(turned)[0] == pytest.approx(paired_test(tasks)[0])


@given(data)
def test_more_of_the_same_states_narrow_it(tasks):
    low, high = paired_interval(tasks)
    wide_low, wide_high = paired_interval([states * 4 for states in tasks])
    assert -1 <= low <= high <= 1
    assert wide_high - wide_low < high - low
