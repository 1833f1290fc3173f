"""The unpaired interval and tests, against SciPy, against brute force, and against the truth in simulations."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import barnard_exact, fisher_exact, hypergeom
from simulated import coverage, draw

from keystone_robotics.compare import unpaired
from keystone_robotics.compare.intervals import wilson_rate
from keystone_robotics.compare.repeats import correlation, effective_number
from keystone_robotics.compare.unpaired import newcombe, unpaired_test


def single(solved, trials):
    return [np.array([value]) for value in [1] * solved + [0] * (trials - solved)]


tables = st.integers(1, 60).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))
clusters = st.lists(st.lists(st.integers(0, 1), min_size=2, max_size=2).map(np.array), min_size=1, max_size=5)


@given(tables, tables)
@settings(max_examples=50)
def test_large_tables_are_fishers(a, b):
    limit, unpaired.BARNARD_LIMIT = unpaired.BARNARD_LIMIT, 0
    try:
        p, name = unpaired_test([single(*a)], [single(*b)])
    finally:
        unpaired.BARNARD_LIMIT = limit
    expected = fisher_exact([[a[0], b[0]], [a[1] - a[0], b[1] - b[0]]]).pvalue
    assert p == pytest.approx(expected, abs=1e-9)
    assert name == "Fisher exact"


def test_hundreds_of_episodes_do_not_overflow():
    p, name = unpaired_test([single(500, 1000)], [single(560, 1000)])
    assert name == "Fisher exact"
    assert p == pytest.approx(fisher_exact([[500, 560], [500, 440]]).pvalue)


@pytest.mark.parametrize("table", [(7, 15, 12, 15), (0, 20, 5, 20), (10, 30, 18, 25)])
def test_small_tables_are_barnards(table):
    solved_a, a, solved_b, b = table
    p, name = unpaired_test([single(solved_a, a)], [single(solved_b, b)])
    assert p == pytest.approx(barnard_exact([[solved_a, solved_b], [a - solved_a, b - solved_b]]).pvalue)
    assert name == "Barnard exact"


@pytest.mark.parametrize("solved", [0, 20])
def test_nothing_to_tell_apart(solved):
    assert unpaired_test([single(solved, 20)], [single(solved, 20)])[0] == 1.0


def test_tasks_are_strata():
    """The successes of B given each task's margins, and all outcomes that are no more likely than what was seen."""
    p, name = unpaired_test([single(3, 10), single(8, 12)], [single(7, 10), single(11, 12)])
    assert name == "Fisher exact, stratified by task"
    chances = np.convolve(hypergeom.pmf(range(11), 20, 10, 10), hypergeom.pmf(range(20), 24, 19, 12))
    assert p == pytest.approx(chances[chances <= chances[18] * (1 + 1e-7)].sum())


@given(clusters, clusters)
@settings(max_examples=50)
def test_with_repeats_states_are_dealt_as_a_whole(a, b):
    p, name = unpaired_test([a], [b])
    sums = [int(state.sum()) for state in a + b]
    dealt = np.array([sum(chosen) for chosen in itertools.combinations(sums, len(b))])
    seen = sum(int(state.sum()) for state in b)
    assert p == pytest.approx(np.mean(np.abs(dealt - dealt.mean()) >= abs(seen - dealt.mean()) - 1e-9))
    assert name == "permutation of initial states, exact"


@given(clusters, clusters)
def test_swapping_the_arms_mirrors_everything(a, b):
    low, high = newcombe([a], [b])
    assert newcombe([b], [a]) == pytest.approx((-high, -low))
    assert unpaired_test([b], [a])[0] == pytest.approx(unpaired_test([a], [b])[0])


@pytest.mark.parametrize(
    ("counts", "expected"),
    # Newcombe (1998), method 10, table II
    [((56, 70, 48, 80), (0.0524, 0.3339)), ((9, 10, 3, 10), (0.1705, 0.8090)), ((10, 10, 0, 20), (0.6791, 1.0))],
)
def test_newcombes_own_examples(counts, expected):
    solved_b, b, solved_a, a = counts
    assert newcombe([single(solved_a, a)], [single(solved_b, b)]) == pytest.approx(expected, abs=5e-5)


@pytest.mark.parametrize(
    ("shape", "rates"), [((1, 20, 1), (0.85, 0.95)), ((1, 20, 5), (0.5, 0.65)), ((6, 20, 1), (0.5, 0.65))]
)
def test_simulated_coverage(shape, rates):
    random = np.random.default_rng(0)
    a, b = draw(random, *shape, *rates, coupled=0.0, noise=0.0, trials=1000)
    intervals = [newcombe([list(task) for task in one], [list(task) for task in other]) for one, other in zip(a, b)]
    assert 0.93 <= coverage(intervals, rates[1] - rates[0]) <= 0.985


@pytest.mark.parametrize("alike", [0.1, 0.9])
def test_rates_of_repeated_states_cover(alike):
    """Wilson's interval at the effective number; at the plain number it would cover far less."""
    a, _ = draw(np.random.default_rng(0), 1, 50, 5, 0.7, 0.7, alike=alike, trials=1000)
    found, plain = [], []
    for trial in a:
        states = list(trial[0])
        number = effective_number(states, correlation([states]))
        assert 50 <= number <= 250
        found.append(wilson_rate(float(trial.mean()), number))
        plain.append(wilson_rate(float(trial.mean()), 250))
    assert 0.93 <= coverage(found, 0.7) <= 0.97
    if alike > 0.3:
        assert coverage(plain, 0.7) < 0.85
