"""What follows from a profile's measurements: statistics, how sure they are, and which K."""

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from keystone_robotics.cli.profile import advice
from keystone_robotics.profiling import Cost, Profile
from keystone_robotics.profiling.measure import PHASES, Cell
from keystone_robotics.profiling.memory import Peak
from keystone_robotics.profiling.ranges import quantile_range
from keystone_robotics.profiling.result import summarize


def test_a_larger_k_that_is_cheaper_is_not_believed(stored):
    def cost(k, ms):
        return Cost(k, 1, 9, ms, ms, ms, 0.0, ms, 0.0, 0.0, ratio=ms / 877)

    found = Profile("p", "a", 1, "2 of 2 threads (cpu)", {}, "f", (cost(1, 877), cost(4, 566), cost(16, 1190)), "m")
    assert "OMP_NUM_THREADS=1" in str(found)
    assert advice(found) == "no K can be recommended from this measurement"
    assert dataclasses.replace(found, costs=(cost(1, 877), cost(4, 860))).doubt == ""
    fast = dataclasses.replace(found, path="fast")
    assert fast.doubt == ""  # several on the fast path may take less time than one in the policy's own code
    assert fast.best() == 4
    odd = dataclasses.replace(fast, costs=(cost(1, 877), cost(4, 566), cost(16, 400)))
    assert "K = 16 took 0.71 times as long as K = 4" in odd.doubt


def measured(rounds, **options):
    """A profile of K = 1, which takes 10 ms, and of K = 4 and K = 16, by their milliseconds in every round."""
    times = {Cell(1, k): [{**dict.fromkeys(PHASES, 0.0), "denoise": row[k]} for row in rounds] for k in (1, 4, 16)}
    return Profile("p", "a", 1, "d", {}, "f", summarize(times, {}), "m", **options)


WAVERING = [{1: 10.0, 4: 10.0 + 2 * (number % 2), 16: 30.0 + number / 10} for number in range(30)]


def test_what_is_not_certain_is_said():
    found = measured(WAVERING, tolerance=0.1)
    assert found.uncertain() == (4,)
    assert "Not certain after 30 rounds: K = 4 (ratio 1 to 1.2×); more rounds would tell." in str(found)
    assert "| 4 | 11 | 12 | 12 | 1.10× (1.00 to 1.20) |" in str(found)
    assert found.as_dict()["found"]["1"]["uncertain"] == [4]
    assert measured(WAVERING, tolerance=0.3).uncertain() == ()


def test_a_budget_near_the_90th_percentile_is_not_certain():
    found = measured(WAVERING, budget_ms=32.5)
    assert found.costs[2].p90 > 32.5 > found.costs[2].p90_low
    assert (found.best(), found.uncertain()) == (4, (16,))
    assert "Not certain after 30 rounds: K = 16 (90th percentile 32.3 to 32.9 ms); more rounds would tell." in str(
        found
    )
    few = measured(WAVERING[:10], budget_ms=30.85)
    assert few.uncertain() == (1, 4, 16)  # no ten rounds can show that nine in ten are within
    assert "K = 16 (90th percentile 30.6 ms or more); more rounds would tell." in str(few)


@given(st.integers(1, 400), st.sampled_from([0.5, 0.9]))
def test_the_range_of_a_quantile_is_the_tightest_that_is_right_often_enough(count, quantile):
    low, high = quantile_range(range(count), quantile)
    below = stats.binom(count, quantile)  # how many measurements are below the true quantile
    tightest_low = [number for number in range(count) if below.cdf(number) <= 0.05]
    tightest_high = [number for number in range(count) if below.sf(number) <= 0.05]
    assert low == (max(tightest_low) if tightest_low else None)
    assert high == (min(tightest_high) if tightest_high else None)


@given(st.lists(st.tuples(*[st.floats(0.01, 1e4)] * 3), min_size=1, max_size=20), st.floats(0, 3), st.floats(0.02, 1e5))
def test_statistics_and_the_choice(rounds, tolerance, budget):
    """Against numpy, for three K with any times whatever."""
    ks = (1, 4, 16)
    phases = [dict(zip(PHASES, (0.25 * t, 0.75 * t, 0.0, 0.0))) for row in rounds for t in row]
    times = {Cell(1, k): phases[number::3] for number, k in enumerate(ks)}
    found = Profile(
        "p", "a", 1, "d", {}, "f", summarize(times, {(1, None): Peak(9, 4), (4, None): None}), "m", tolerance, budget
    )
    table = np.array(rounds)
    for number, (k, cost) in enumerate(zip(ks, found.costs)):
        assert cost.median == pytest.approx(np.median(table[:, number]))
        assert cost.ratio == pytest.approx(np.median(table[:, number] / table[:, 0]))
        assert cost.median <= cost.p90 * (1 + 1e-9) <= cost.p99 * (1 + 2e-9)
        assert cost.encode + cost.denoise == pytest.approx(cost.median)
        assert (cost.peak, cost.extra) == ((9, 5) if k == 1 else (None, None))
    assert found.costs[0].ratio == 1
    one, four, sixteen = found.costs
    free, kept = four.ratio <= 1 + tolerance, four.p90 <= budget
    assert found.within_tolerance() == (1 if not free else 16 if sixteen.ratio <= 1 + tolerance else 4)
    alone = 1 if one.p90 <= budget else None
    assert found.within_budget() == (alone if not kept else 16 if sixteen.p90 <= budget else 4)
    assert Profile.from_dict(json.loads(json.dumps(found.as_dict()))) == found


@given(st.lists(st.tuples(*[st.floats(0.01, 1e4)] * len(PHASES)), min_size=1, max_size=20))
def test_phases_add_up_to_the_median(rounds):
    (cost,) = summarize({Cell(1, 1): [dict(zip(PHASES, row)) for row in rounds]}, {})
    assert sum(getattr(cost, phase) for phase in PHASES) == pytest.approx(cost.median)


def test_costs_of_clients_are_compared_among_themselves():
    def times(ms):
        return [dict.fromkeys(PHASES, 0.0) | {"denoise": ms}] * 3

    cells = {Cell(1, 1): times(10), Cell(1, 4): times(10), Cell(3, 1): times(20), Cell(3, 4): times(30)}
    found = summarize(cells, {})
    assert [(cost.clients, cost.k, cost.ratio) for cost in found] == [(1, 1, 1), (1, 4, 1), (3, 1, 1), (3, 4, 1.5)]
    profile = Profile("p", "a", 1, "d", {}, "f", found, "m")
    text = str(profile)
    assert (profile.best(), profile.best(1)) == (1, 4)  # for use under the load that was asked for
    assert "With 3 clients on the device K shrinks from 4 to 1; K = 1 itself takes 2.00 times as long." in text
    assert isinstance(found[0], Cost)


def test_cells_that_cost_no_more_than_the_policy_as_it_is():
    def times(ms):
        return [dict.fromkeys(PHASES, 0.0) | {"denoise": ms}] * 5

    ms = {
        (1, None): 20,
        (4, None): 24,
        (16, None): 30,
        (1, 2): 7,
        (4, 2): 9,
        (16, 2): 12,
        (1, 5): 12,
        (4, 5): 20.5,
        (16, 5): 25,
    }
    costs = summarize({Cell(1, *cell): times(taken) for cell, taken in ms.items()}, {})
    found = Profile("p", "a", 1, "d", {}, "f", costs, "m", steps=10)
    assert [(cost.k, cost.steps) for cost in found.no_slower()] == [(1, None), (1, 2), (4, 2), (16, 2), (1, 5), (4, 5)]
    assert found.best() == 1, "K for the policy's own number of steps"
    assert found.of(1, 2)[2].ratio == 12 / 20
    text = str(found)
    assert (
        "Within 5% of the policy as it is (K = 1, 10 steps): 10 steps: K = 1; 2 steps: K = 1, 4, 16; 5 steps: K = 1, 4"
        in text
    )
    assert "| K | steps | median ms |" in text
    assert "| 16 | 2 | 12 |" in text
    written = json.loads(json.dumps(found.as_dict()))
    assert {"k": 16, "steps": 2} in written["found"]["1"]["no_slower"]
    assert {"k": 1, "steps": 10} in written["found"]["1"]["no_slower"]
    assert Profile.from_dict(written) == found
    assert advice(found) == (
        "K = 16 with 2 steps takes no longer than the policy as it is: "
        'keystone.attach(policy, "core-mean:k=16,steps=2")'
    )
    wide = [
        dataclasses.replace(cost, ratio_low=0.9, ratio_high=1.1) if (cost.k, cost.steps) == (4, 5) else cost
        for cost in costs
    ]
    unsure = dataclasses.replace(found, costs=tuple(wide))
    assert [(cost.k, cost.steps) for cost in unsure.maybe_slower()] == [(4, 5)]
    assert "5 steps: K = 1, 4? (?: not certain, more rounds would tell)" in str(unsure)
    odd = dataclasses.replace(found, costs=(*costs[:-1], dataclasses.replace(costs[-1], ratio=0.1)))
    assert "K = 16 took" in odd.doubt
