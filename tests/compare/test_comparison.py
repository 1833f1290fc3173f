"""The audit of pairing and what is concluded from it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from simulated import outcomes

from keystone_robotics.compare.comparison import compare, compare_all
from keystone_robotics.compare.intervals import wilson_rate
from keystone_robotics.compare.table import lines
from keystone_robotics.errors import KeystoneError
from keystone_robotics.records import EpisodeRecord

shapes = st.tuples(st.integers(1, 3), st.integers(1, 6), st.integers(1, 3))
both = shapes.flatmap(lambda shape: st.tuples(*[arrays(int, shape, elements=st.integers(0, 1))] * 2))


def half_and_more(states=20, better=7):
    a = np.zeros((1, states, 1), int)
    a[:, : states // 2] = 1
    b = a.copy()
    b[:, states // 2 : states // 2 + better] = 1
    return outcomes(a, "A"), outcomes(b, "B")


def changed(arm, where, **values):
    """The arm with some fields of the episodes that are meant changed."""
    return replace(arm, episodes=tuple(replace(one, **values) if where(one) else one for one in arm.episodes))


def test_better_worse_and_unclear():
    a, b = half_and_more()
    better, worse = compare(a, b), compare(b, a)
    assert better.verdict == "B is better: +35.0 points [+8.1, +55.5], p = 0.016 (McNemar exact)"
    assert worse.verdict == "B is worse: -35.0 points [-55.5, -8.1], p = 0.016 (McNemar exact)"
    assert (better.improvement, better.regression) == (True, False)
    assert (worse.improvement, worse.regression) == (False, True)
    same = compare(a, a)
    assert same.verdict.startswith("no clear difference: +0.0 points")
    assert "only 18 points or more would show" in same.verdict
    assert not same.regression
    assert not same.improvement


def test_what_the_interval_says_and_the_test_does_not_is_no_clear_difference():
    only_b, only_a = np.zeros((2, 1, 50, 1), int)
    only_b[:, :14], only_a[:, 14:19] = 1, 1
    a, b = outcomes(only_a), outcomes(only_b)
    result = compare(a, b)
    assert result.overall.interval[0] > 0
    assert result.overall.p > 0.05
    assert result.verdict.startswith("no clear difference: ")
    assert result.verdict.endswith("; the interval excludes zero, the test does not")
    assert not result.improvement
    assert not compare(b, a).regression  # and `keystone compare --fail-on-regression` ends with 0


def test_the_verdict_on_one_of_several_arms_is_that_of_the_corrected_test():
    a, b = half_and_more()
    worse = compare_all([b, *(replace(a, name=f"arm {number}") for number in range(4))])[0]
    assert worse.overall.p < 0.05 < worse.overall.p_holm
    assert worse.overall.interval[1] < 0
    assert worse.verdict.endswith("; the interval excludes zero, the corrected test does not")
    assert not worse.regression


def test_one_repeat_gives_plain_wilson_intervals():
    result = compare(*half_and_more())
    assert result.overall.a.interval == pytest.approx(wilson_rate(10 / 20, 20))
    assert result.overall.a.effective == 20
    assert result.overall.a.repeats is None
    assert result.overall.discordant == (7, 0)
    assert result.bootstrap == pytest.approx((0.15, 0.55))


def test_mean_and_std_across_repeats():
    a = np.array([[[1, 0, 1], [1, 0, 0]]])
    rate = compare(outcomes(a), outcomes(a)).overall.a
    assert rate.repeats == pytest.approx((0.5, 0.5))
    assert (rate.episodes, rate.states) == (6, 2)


def test_hashes_that_differ_are_named_and_not_paired():
    a, b = half_and_more()
    for number in (3, 5):
        b = changed(b, lambda one, number=number: one.episode == number, initial_state=f"another {number}")
    result = compare(a, b)
    assert not result.pairing.paired
    expected = "the initial states differ in 2 of 20 episodes (task 0 episode 3, task 0 episode 5)"
    assert result.pairing.reason.startswith(f"unpaired: {expected}; to pair, run both with the same --env and --seed")
    assert result.pairing.differing[0] == ("task 0", 3, ("0-3",), ("another 3",))
    assert result.overall.test == "Barnard exact"
    assert result.overall.interval_by == "unpaired, Newcombe"
    assert result.overall.discordant is None
    with pytest.raises(
        KeystoneError, match="pairing is required, but the data are unpaired: the initial states differ"
    ):
        compare(a, b, "require")
    # a word does not help against hashes
    assert not compare(a, b, "trust").pairing.paired


def test_repeats_of_one_number_must_begin_in_one_state():
    a = outcomes(np.ones((1, 4, 2), int))
    b = changed(a, lambda one: one.episode == 1 and one.repeat == 1, initial_state="another")
    assert not compare(a, b).pairing.paired
    assert not compare(b, b).pairing.paired


def test_an_error_before_the_first_observation_stays_paired_and_is_a_failure():
    a, b = half_and_more()
    b = changed(b, lambda one: one.episode == 2, initial_state="", success=False, error="it broke")
    result = compare(a, b)
    assert result.pairing.by == "hash"
    assert "1 without, because of errors" in result.pairing.reason
    assert result.overall.b.errors == 1
    assert result.overall.discordant == (7, 1)
    # a hash that is missing for no reason proves nothing
    assert not compare(a, changed(b, lambda one: one.episode == 2, error=None)).pairing.paired
    assert any(line == "errors, counted as failures: A 0, B 1" for line in lines(result))


def test_numbers_with_the_same_hash_are_one_initial_state():
    a = changed(outcomes(np.ones((1, 10, 1), int)), lambda one: True, initial_state="the only one")
    assert compare(a, a).overall.a.states == 1


def test_equal_seeds_pair_but_are_not_an_audit():
    a, b = (changed(arm, lambda one: True, initial_state="", initial_seed=7) for arm in half_and_more())
    result = compare(a, b)
    assert result.pairing.paired
    assert result.pairing.reason.startswith("paired by seed, not audited")
    assert not compare(a, changed(b, lambda one: True, initial_seed=8)).pairing.paired
    # seeds of different programs mean different things
    assert not compare(a, replace(b, tool="lerobot")).pairing.paired


def test_what_only_one_of_them_has_is_left_out_and_said():
    a, b = half_and_more()
    a = replace(a, episodes=(*a.episodes, EpisodeRecord("another task", 0, True, initial_state="x")))
    b = replace(b, episodes=b.episodes[:15], settings={"max_steps": 300}, notes=("half of it",))
    result = compare(replace(a, settings={"max_steps": 200}), b)
    assert result.notes == (
        "half of it",
        "only A has another task: not compared",
        "6 episodes of A and 0 of B have no partner: not compared",
        "max_steps is not the same: 200 in A, 300 in B",
    )
    assert [one.task for one in result.tasks] == ["task 0"]
    assert result.overall.a.episodes == result.overall.b.episodes == 15


def test_nothing_in_common_is_refused():
    a, b = half_and_more()
    with pytest.raises(KeystoneError, match="no task in common"):
        compare(a, changed(b, lambda one: True, task="other"))


def test_asked_for_unpaired():
    result = compare(*half_and_more(), "no")
    assert result.pairing.reason == "unpaired, as requested"
    assert result.bootstrap is None


def test_several_arms_are_adjusted_for():
    a, b = half_and_more()
    found = compare_all([a, b, b, a])
    assert [one.overall.p_holm for one in found] == pytest.approx([3 * 0.015625, 3 * 0.015625, 1.0])
    assert "for one of 3 arms (Holm)" in found[0].verdict


def test_tasks_can_be_chosen():
    a = outcomes(np.ones((3, 4, 1), int))
    (result,) = compare_all([a, a], tasks=["task 1"])
    assert [one.task for one in result.tasks] == ["task 1"]
    with pytest.raises(KeystoneError, match="no task 'task1': did you mean 'task 1'"):
        compare_all([a, a], tasks=["task1"])


def test_time():
    a, b = half_and_more()
    a, b = replace(a, time=("one round", 4.0)), replace(b, time=("one round", 6.0))
    assert "one round: 4.0 ms → 6.0 ms (×1.50)" in lines(compare(a, b))
    assert compare(a, replace(b, time=("one episode", 6.0))).time is None


@given(both, st.sampled_from(["auto", "no"]))
@settings(max_examples=40)
def test_swapping_the_arms_mirrors_everything(successes, mode):
    a, b = (outcomes(one) for one in successes)
    one, two = compare(a, b, mode), compare(b, a, mode)
    low, high = one.overall.interval
    assert two.overall.interval == pytest.approx((-high, -low))
    assert two.overall.difference == pytest.approx(-one.overall.difference)
    assert two.overall.p == pytest.approx(one.overall.p)
    assert two.overall.detectable == pytest.approx(one.overall.detectable)
    assert two.sequential.a_better == pytest.approx(one.sequential.b_better)
    assert (two.regression, two.improvement) == (one.improvement, one.regression)
    assert low <= one.overall.difference + 1e-9
    assert one.overall.difference - 1e-9 <= high


@given(both, st.sampled_from(["auto", "no"]))
@settings(max_examples=40)
def test_the_names_of_tasks_and_the_order_of_episodes_do_not_matter(successes, mode):
    a, b = (outcomes(one) for one in successes)
    names = {task: f"{9 - number} renamed" for number, task in enumerate(a.tasks)}
    renamed = [
        replace(arm, episodes=tuple(replace(one, task=names[one.task]) for one in arm.episodes[::-1])) for arm in (a, b)
    ]
    one, two = compare(a, b, mode), compare(*renamed, mode)
    assert two.overall.interval == pytest.approx(one.overall.interval)
    assert two.overall.p == pytest.approx(one.overall.p)
    assert two.sequential.b_better == pytest.approx(one.sequential.b_better)
    assert sorted(task.p_holm for task in two.tasks) == pytest.approx(sorted(task.p_holm for task in one.tasks))


@given(both)
@settings(max_examples=20)
def test_it_can_always_be_shown(successes):
    result = compare(*(outcomes(one) for one in successes))
    assert all(isinstance(line, str) for line in lines(result))
    assert result.verdict
