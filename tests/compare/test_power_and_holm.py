"""What would have been seen, and several tests at once."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated import draw

from keystone_robotics.compare.multiple import holm
from keystone_robotics.compare.paired import paired_interval
from keystone_robotics.compare.power import paired_effect, unpaired_effect


def test_a_paired_effect_of_that_size_is_seen_four_times_in_five():
    random, repeats = np.random.default_rng(0), 4
    a, b = draw(random, 2, 60, repeats, 0.5, 0.6, trials=1000)
    effects = [paired_effect([list(task) for task in one]) for one in (b - a)[:200]]
    effect = float(np.mean(effects))
    a, b = draw(random, 2, 60, repeats, 0.5, 0.5 + effect, trials=1000)
    seen = np.mean([paired_interval([list(task) for task in one])[0] > 0 for one in b - a])
    assert 0.72 <= seen <= 0.88


@pytest.mark.parametrize(("a", "b", "episodes"), [(0.5, 0.6, 387), (0.9, 0.93, 1355), (0.968, 0.978, 4123)])
def test_unpaired_effects_are_the_textbooks(a, b, episodes):
    """Episodes an arm for 80 % power, two-sided 5 %."""
    states = [
        [np.array([value]) for value in [1] * round(rate * episodes) + [0] * (episodes - round(rate * episodes))]
        for rate in (a, b)
    ]
    assert unpaired_effect([states[0]], [states[1]]) == pytest.approx(b - a, rel=0.03)


def test_effects_are_finite_without_any_discordance():
    nothing = [np.array([0])] * 20
    assert 0 < paired_effect([nothing]) < 1
    assert 0 < unpaired_effect([nothing], [nothing]) < 1
    assert paired_effect([[np.array([0])]]) <= 1


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_holm_is_bonferroni_on_every_subset(p_values):
    """A hypothesis is rejected if every subset that holds it is rejected by Bonferroni's test."""
    count = len(p_values)
    subsets = [s for size in range(1, count + 1) for s in itertools.combinations(range(count), size)]
    for index, adjusted in enumerate(holm(p_values)):
        closed = max(min(1, len(s) * min(p_values[i] for i in s)) for s in subsets if index in s)
        assert adjusted == pytest.approx(closed)
