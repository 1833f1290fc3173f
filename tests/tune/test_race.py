"""The right arm wins, the best is hardly ever eliminated, and losers stop early."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic import draw, run

from keystone_robotics.tune.race import Race, least_budget
from keystone_robotics.tune.space import SPACES, arms_of, groups_of

RACES, ALPHA = 200, 0.05
#: Three standard errors of a simulated share of α.
MARGIN = 3 * np.sqrt(ALPHA * (1 - ALPHA) / RACES)
#: docs/tune.md: 48 arms, the best 10 points ahead of the next.
RATES = np.r_[0.8, 0.7, 0.65, 0.65, 0.65, np.linspace(0.6, 0.3, 43)]


@pytest.fixture(scope="module")
def sure():
    """200 races of 48 arms with as many episodes as they need."""
    return [run(draw(np.random.default_rng(seed), RATES, 250)) for seed in range(RACES)]


def test_with_enough_episodes_the_best_arm_wins_and_everything_else_is_eliminated(sure):
    won = [race.leader(0) == 0 and not race.running() for race in sure]
    assert np.mean(won) >= 0.95


def test_an_arm_is_eliminated_at_the_first_look_at_which_its_capital_is_one_by_alpha():
    outcomes = draw(np.random.default_rng(0), RATES, 60)
    for alpha in (0.2, 0.05):
        race = Race([0] * len(RATES), 8, 10**6, alpha)
        while (batch := race.next_batch()) and batch.first + batch.count <= 60:
            race.add(outcomes[list(batch.arms), batch.first : batch.first + batch.count])
            for arm in batch.arms:
                if arm != race.leader(0):
                    assert (race.arms[arm].status == "eliminated") == (race.arms[arm].e_value >= 1 / alpha)
        assert sum(one.status == "eliminated" for one in race.arms) > 10


def test_losers_stop_early_at_least_three_times_fewer_episodes_than_all_arms_equally(sure):
    """Testing all arms equally until the same bets are won takes as many blocks, but all arms run all of them."""
    equally = np.mean([race.blocks * race.tasks * len(RATES) for race in sure])
    assert equally / np.mean([race.used for race in sure]) >= 3


def test_under_a_budget_the_best_arm_wins_too():
    """1,400 episodes, the race of a budget of 2,000: 29 for each arm, if all were tested equally."""
    races = [run(draw(np.random.default_rng(seed), RATES, 80), budget=1400) for seed in range(RACES)]
    assert np.mean([race.leader(0) == 0 for race in races]) >= 0.95
    assert all(race.used <= 1400 for race in races)


def test_the_default_space_is_small_enough_for_1500_episodes_and_the_wide_one_is_not():
    """1,050 episodes of 1,500 are the race's. The best arm of each group is 10 points ahead of the next."""

    def won(free, several, races):
        groups = [0] * free + [1] * several
        rates = np.r_[0.75, np.linspace(0.65, 0.45, free - 1), 0.83, np.linspace(0.73, 0.57, several - 1)]
        found = [run(draw(np.random.default_rng(seed), rates, 80), groups, budget=1050) for seed in range(races)]
        return [np.mean([race.leader(group) == best for race in found]) for group, best in ((0, 0), (1, free))]

    sizes = {name: groups_of(arms_of(space, 8, 10)) for name, space in SPACES.items()}
    default, wide = (won(groups.count(0), groups.count(1), races=100) for groups in sizes.values())
    assert min(default) >= 0.9
    assert max(wide) < min(default)


@pytest.mark.parametrize("shared", [0.0, 0.8])
def test_the_best_of_two_is_eliminated_with_a_chance_of_alpha_at_most_however_close_the_other_is(shared):
    """The hardest case: two equal arms, both of which are the best, and a look after every batch."""
    races = [run(draw(np.random.default_rng(seed), [0.6, 0.6], 150, shared=shared)) for seed in range(RACES)]
    for arm in (0, 1):
        assert np.mean([race.arms[arm].status == "eliminated" for race in races]) <= ALPHA + MARGIN


def test_the_best_of_many_is_not_eliminated_by_a_leader_of_the_moment():
    """Forty arms close behind: one of them leads by luck at most looks. There is no correction for their number to rely on."""
    rates = np.r_[0.6, np.full(39, 0.59)]
    races = [run(draw(np.random.default_rng(seed), rates, 40, tasks=4)) for seed in range(RACES)]
    assert np.mean([race.arms[0].status == "eliminated" for race in races]) <= ALPHA + MARGIN


def test_a_best_arm_that_is_worse_in_some_tasks_is_safe_too():
    """The null is about the mean over tasks: −40 points in one and +40 in the other is no difference."""

    def outcomes(random):
        steady, uneven = random.random((2, 150, 2)) < [[[0.6, 0.6]], [[0.2, 1.0]]]
        return np.stack([steady, uneven])

    races = [run(outcomes(np.random.default_rng(seed))) for seed in range(RACES)]
    assert np.mean([race.arms[0].status == "eliminated" for race in races]) <= ALPHA + MARGIN


def test_equal_arms_are_not_told_apart():
    races = [run(draw(np.random.default_rng(seed), np.full(24, 0.6), 400), budget=4000) for seed in range(20)]
    for race in races:
        assert len(race.running()) == 2, "finalists, and no winner"
    eliminated = [sum(one.status == "eliminated" for one in race.arms) for race in races]
    assert np.mean(eliminated) <= 24 * ALPHA


def test_each_group_has_its_own_winner():
    """K candidates that are all better than every single sample do not end the race for the best single sample."""
    rates = np.r_[0.5, 0.35, np.full(6, 0.3), 0.9, 0.7, np.full(6, 0.65)]
    races = [run(draw(np.random.default_rng(seed), rates, 400), [0] * 8 + [1] * 8) for seed in range(50)]
    assert np.mean([(race.leader(0), race.leader(1)) == (0, 8) for race in races]) >= 0.9


def test_of_equal_arms_those_are_kept_whose_neighbours_did_better():
    """Arms 0 to 3 have one option, 4 to 7 another; all but 1 and 6 are equal after the first block."""
    outcomes = np.zeros((8, 1, 4), bool)
    outcomes[:, 0, :2] = True
    outcomes[1], outcomes[6] = False, True
    near = [[other for other in range(8) if other // 4 == arm // 4 and other != arm] for arm in range(8)]
    race = Race([0] * 8, tasks=4, budget=(8 + 4 + 2) * 4, neighbours=near)
    batch = race.next_batch()
    assert batch.count == 1
    race.add(outcomes)
    assert race.next_batch().arms == (4, 5, 6, 7)


@pytest.mark.parametrize(("budget", "kept"), [(24 + 12 + 6 + 3 + 2, 12), (24 + 8 + 3 + 2, 8), (24 + 6 + 2, 6), (31, 6)])
def test_a_small_budget_keeps_fewer_arms(budget, kept):
    race = Race([0] * 24, 1, budget)
    race.add(draw(np.random.default_rng(0), np.full(24, 0.5), race.next_batch().count, 1))
    assert len(race.next_batch().arms) == kept


def test_the_same_outcomes_give_the_same_race_also_in_parts():
    outcomes = draw(np.random.default_rng(3), RATES, 300)
    one, two = run(outcomes, budget=1400), run(outcomes, budget=1400)
    assert [(arm.status, arm.eliminated_by, arm.blocks, arm.successes) for arm in one.arms] == [
        (arm.status, arm.eliminated_by, arm.blocks, arm.successes) for arm in two.arms
    ]


@given(
    st.lists(st.integers(0, 1), min_size=1, max_size=12),
    st.integers(1, 5),
    st.integers(0, 400),
    st.integers(0, 2**32 - 1),
)
def test_any_race_ends_within_its_budget(groups, tasks, more, seed):
    budget = least_budget(groups, tasks) + more
    race, random, batches = Race(groups, tasks, budget), np.random.default_rng(seed), 0
    while batch := race.next_batch():
        assert batch.first == race.blocks
        race.add(random.random((len(batch.arms), batch.count, tasks)) < 0.5)
        batches += 1
    assert race.used <= budget
    for group in set(groups):
        left = [arm for arm in race.arms if arm.group == group and arm.status == "running"]
        assert 1 <= len(left) <= 2
        assert race.arms[race.leader(group)] in left
    assert race.used == sum(arm.blocks for arm in race.arms) * tasks
    assert batches or not least_budget(groups, tasks)


@given(st.integers(1, 6), st.integers(0, 2**32 - 1))
def test_with_equal_outcomes_nobody_gains_on_anybody(arms, seed):
    outcomes = np.repeat(draw(np.random.default_rng(seed), [0.5], 30, 2), arms, axis=0)
    race = run(outcomes)
    assert all(one.e_value == pytest.approx(1.0) for one in race.arms)
