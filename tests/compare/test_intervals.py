"""Intervals against SciPy's, and against the truth where it is known."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from keystone_robotics.compare.intervals import paired_bootstrap, wilson_rate


@given(st.integers(1, 5000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_is_scipys(counts):
    successes, trials = counts
    expected = binomtest(successes, trials).proportion_ci(method="wilson")
    low, high = wilson_rate(successes / trials, trials)
    assert (low, high) == pytest.approx((expected.low, expected.high), abs=1e-12)
    assert 0 <= low <= successes / trials <= high <= 1


def test_the_bootstrap_covers_the_true_difference():
    """Two arms on the same initial states, some of them hard for both, three repeats of each, two tasks."""
    random = np.random.default_rng(0)
    difference, covered, trials, states, repeats = 0.1, 0, 300, 50, 3
    for trial in range(trials):
        tasks = []
        for centre in (0.3, 0.6):
            ease = np.clip(random.normal(centre, 0.15, states), 0, 1 - difference)
            outcomes = [(random.random((repeats, states)) < rate).mean(0) for rate in (ease, ease + difference)]
            tasks.append(outcomes[1] - outcomes[0])
        mean, low, high = paired_bootstrap(tasks, resamples=400, seed=trial)
        assert low <= mean <= high
        covered += low <= difference <= high
    assert 0.90 <= covered / trials <= 0.985


def test_tasks_count_alike_however_many_states_they_have():
    mean, low, high = paired_bootstrap([np.ones(5), np.zeros(500)])
    assert mean == low == high == 0.5


def test_the_same_data_give_the_same_interval():
    values = [np.random.default_rng(1).normal(size=30)]
    assert paired_bootstrap(values) == paired_bootstrap(values)
    assert paired_bootstrap(values) != paired_bootstrap(values, seed=1)
