"""`keystone.profile`: what is measured, which K follows, memory that ends, interruptions, wrong arguments."""

import dataclasses
import json
import logging

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from profiling_timed import Timed

import keystone_robotics as keystone
from keystone_robotics import KeystoneError
from keystone_robotics.cli import main
from keystone_robotics.profiling.measure import WARM_UP, Schedule

OBSERVATION = torch.zeros(1, 2)


def test_the_largest_k_that_costs_nothing_is_found(timed):
    found = keystone.profile(timed, OBSERVATION, rounds=4)
    assert {cost.k: cost.median for cost in found.costs} == pytest.approx({1: 15, 4: 15, 8: 15, 16: 31, 32: 63})
    assert [cost.ratio for cost in found.costs] == pytest.approx([1, 1, 1, 31 / 15, 63 / 15])
    assert [cost.encode for cost in found.costs] == pytest.approx([5.0] * 5)
    assert {(cost.select, cost.rounds) for cost in found.costs} == {(0.0, 4)}
    assert (found.best(), found.within_tolerance(), found.within_budget()) == (8, 8, None)
    assert found.batch == 1
    assert (found.adapter, found.path) == ("encode/sample", "plain")
    assert keystone.attached(timed) is None
    text = str(found)
    assert "Largest K within 5% of K = 1: 8" in text
    assert "| 16 | 31 | 31 | 31 | 2.07× | 5 | 26 | 0 |" in text


def test_both_cases_of_adaptive_k_are_measured(timed, tmp_path):
    found = keystone.profile(timed, OBSERVATION, k="4..16", rounds=2, out=tmp_path)
    assert [cost.k for cost in found.costs] == [1, 4, 16]
    (one,) = found.adaptive
    assert (one.agree, one.disagree, one.every) == pytest.approx((15, 33, 31))
    assert one.share == pytest.approx(1 / 9)
    text = str(found)
    assert "k=4..16: 15 ms where the first agree, 33 ms where they do not, 31 ms for all at once" in text
    assert "it saves time if more than 11 % of the rounds agree." in text
    assert keystone.profiling.Profile.from_dict(json.loads((tmp_path / "profile.json").read_text())) == found
    assert keystone.attached(timed) is None
    with pytest.raises(ValueError, match="k='auto': expected numbers of candidates"):
        keystone.profile(timed, OBSERVATION, k="auto")


def test_what_is_implausible_is_not_stored(clock, stored, caplog):
    class Hurried(Timed):
        def sample(self, context, noise):
            chunk = super().sample(context, noise)
            self.clock.turn(100 if len(noise) == 1 else 0)
            return chunk

    policy = Hurried(clock)
    assert keystone.profile(policy, OBSERVATION, k=4, rounds=5).doubt
    assert not list(stored.glob("*.json"))
    handle = keystone.attach(policy, k="auto")
    policy(OBSERVATION)
    policy(OBSERVATION)
    assert handle.k > 1
    assert "the profile is not stored" in caplog.text
    assert not list(stored.glob("*.json"))


def test_a_budget_decides_where_it_is_given(timed):
    found = keystone.profile(timed, OBSERVATION, rounds=2, budget_ms=40)
    assert (found.best(), found.within_tolerance(), found.within_budget()) == (16, 8, 16)
    small = dataclasses.replace(found, budget_ms=14)
    assert small.best() == 1
    assert "none, not even K = 1" in str(small)


def test_one_candidate_is_not_selected(timed, clock):
    def slow_rule(round):
        clock.turn(3)
        return 0

    found = keystone.profile(timed, OBSERVATION, k=4, rounds=1, rule=slow_rule)
    assert [(cost.median, cost.select) for cost in found.costs] == [pytest.approx((15, 0)), pytest.approx((18, 3))]


def test_too_few_rounds_are_certain_of_nothing(timed):
    found = keystone.profile(timed, OBSERVATION, k=(4, 32), rounds=4)
    assert found.uncertain() == (4, 32)
    assert "K = 32 (ratio of unknown range)" in str(found)
    assert keystone.profile(timed, OBSERVATION, k=(4, 32), rounds=5).uncertain() == ()


def test_the_method_that_is_called_may_be_the_one_that_samples(clock):
    class Policy:
        def act(self, observation):
            clock.turn(1)
            return observation[:, None] + torch.randn(len(observation), 8, 2)

    policy = Policy()
    found = keystone.profile(policy, OBSERVATION, k=4, rounds=2, call=policy.act, site="act")
    assert [cost.median for cost in found.costs] == pytest.approx([1.0, 1.0])


def test_a_tolerance_of_its_own(timed):
    assert keystone.profile(timed, OBSERVATION, k=(1, 16, 32), rounds=2, tolerance=1.5).best() == 16


def test_all_k_take_turns_and_none_is_always_first(timed):
    keystone.profile(timed, OBSERVATION, k=(4, 16), rounds=3)
    warmed = 3 * (WARM_UP + 1)  # and one for memory
    check = 3  # single calls of the self-check, in the first round with more than one candidate
    assert timed.sampled[warmed + check :] == [1, 4, 16, 4, 16, 1, 16, 1, 4]


@given(st.lists(st.integers(1, 64), min_size=1, max_size=6, unique=True), st.integers(1, 12), st.integers(1, 3))
def test_every_round_of_a_schedule_has_every_cell_once(ks, rounds, clients):
    schedule = Schedule(tuple(sorted(ks)), rounds, tuple(range(1, clients + 1)))
    cells = {(c, k, None) for c in schedule.clients for k in ks}
    orders = [schedule.cells(number) for number in range(rounds)]
    assert all(len(order) == len(cells) and set(order) == cells for order in orders)
    firsts = [order[0][1] for order in orders[: len(ks)]]
    assert len(set(firsts)) == len(firsts)


class Stepping(Timed):
    """Each step takes 2 ms; each after the first 1 ms more with sixteen rows."""

    num_inference_steps = 5

    def sample(self, context, noise):
        self.sampled.append((len(noise), self.num_inference_steps))
        self.clock.turn(2 * self.num_inference_steps + (self.num_inference_steps - 1) * (len(noise) == 16))
        return context[:, None] + noise / self.num_inference_steps


def test_numbers_of_steps_are_a_second_axis(clock, tmp_path, stored):
    policy = Stepping(clock)
    found = keystone.profile(policy, OBSERVATION, k=(8, 16), steps=(5, 1, 2), rounds=5, out=tmp_path)
    taken = {(cost.k, cost.steps): cost.median for cost in found.costs}
    expected = {(k, None): 15 + 4 * (k == 16) for k in (1, 8, 16)} | {(k, 1): 7 for k in (1, 8, 16)}
    expected |= {(k, 2): 9 + (k == 16) for k in (1, 8, 16)}
    assert taken == pytest.approx(expected)
    assert (found.steps, found.numbers_of_steps, found.best()) == (5, (None, 1, 2), 8)
    assert (found.costs[-1].k, found.costs[-1].steps, found.costs[-1].ratio) == (16, 2, pytest.approx(10 / 15))
    assert [(cost.k, cost.steps) for cost in found.no_slower() if cost.k == 16] == [(16, 1), (16, 2)]
    assert (keystone.attached(policy), policy.num_inference_steps) == (None, 5)
    rounds = policy.sampled[-5 * 9 :]
    assert {cell: rounds.count(cell) for cell in rounds} == {(k, steps): 5 for k in (1, 8, 16) for steps in (5, 1, 2)}
    # For k="auto", each number has a profile of its own, relative to K = 1 with as many steps.
    best = {}
    for steps in (None, 1, 2):
        handle = keystone.attach(policy, k="auto", steps=steps, profiles=stored)
        policy(OBSERVATION)
        best[steps] = handle.k
        keystone.detach(policy)
    assert len(list(stored.glob("*.json"))) == 3
    assert best == {None: 8, 1: 16, 2: 8}


def test_an_attached_policy_keeps_its_steps(clock):
    policy = Stepping(clock)
    handle = keystone.attach(policy, k=4, steps=3)
    found = keystone.profile(policy, OBSERVATION, k=8, steps=1, rounds=1)
    taken = {(cost.k, cost.steps): cost.median for cost in found.costs}
    assert taken == pytest.approx({(1, None): 11, (8, None): 11, (1, 1): 7, (8, 1): 7})
    assert (found.steps, handle.steps, handle.k) == (3, 3, 4)


@pytest.mark.parametrize("where", ["sampler", "encoder"])
def test_where_memory_ends_the_profile_ends_and_says_so(where, clock, caplog):
    policy = Timed(clock, free=100, fits=10 if where == "sampler" else 10**6)
    if where == "encoder":
        policy.encode = lambda observation: fail_at(policy, 16, observation)
    with caplog.at_level(logging.WARNING, "keystone"):
        found = keystone.profile(policy, OBSERVATION, rounds=2)
    assert [cost.k for cost in found.costs] == [1, 4, 8]
    assert (found.stopped, found.best()) == (16, 8)
    assert "K = 16 does not fit into memory; the largest K tried that does is 8." in str(found)
    assert caplog.text.count("does not fit into memory") == 1


def fail_at(policy, k, observation):
    if keystone.attached(policy).k >= k:
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:120] DefaultCPUAllocator: can't allocate memory")
    return observation


def test_memory_that_ends_later_leaves_the_larger_k_out(clock):
    policy = Timed(clock, free=100)
    rounds = []

    def progress(done, total):
        rounds.append(done)
        if done == 5:
            policy.fits = 7  # a neighbour took it

    found = keystone.profile(policy, OBSERVATION, k=(4, 8), rounds=4, progress=progress)
    assert [cost.k for cost in found.costs] == [1, 4]
    assert {cost.rounds for cost in found.costs} == {4}
    assert found.stopped == 8
    assert rounds[-1] == 12


def test_one_candidate_that_does_not_fit_is_an_error(clock):
    with pytest.raises(KeystoneError, match="not even one candidate fits"):
        keystone.profile(Timed(clock, fits=0), OBSERVATION, rounds=2)


def test_an_interruption_leaves_the_policy_as_it_was(clock, tmp_path, stored):
    def interrupt(done, total):
        if done == 5:
            raise KeyboardInterrupt

    policy = Timed(clock)
    handle = keystone.attach(policy, k=5, seed=0)
    with pytest.raises(KeyboardInterrupt):
        keystone.profile(policy, OBSERVATION, k=(4, 16), rounds=5, out=tmp_path, progress=interrupt)
    assert handle.k == 5
    assert not (tmp_path / "profile.json").exists()
    assert not stored.exists()
    policy.sampled.clear()
    keystone.profile(policy, OBSERVATION, k=(4, 16), rounds=5, out=tmp_path)
    assert len(policy.sampled) == 3 * (WARM_UP + 1 + 5)


def test_a_check_of_one_candidate_does_not_pass_for_one_of_several(timed):
    handle = keystone.attach(timed, k=5, seed=0)
    timed.fits = 1
    assert keystone.profile(timed, OBSERVATION, k=4, rounds=1).stopped == 4  # seeded, K = 1 is checked too
    timed.fits = 100
    timed.sampled.clear()
    timed(OBSERVATION)
    assert timed.sampled == [5, 1, 1, 1]
    assert handle.k == 5


def test_a_finished_profile_is_in_its_folder(timed, tmp_path):
    found = keystone.profile(timed, OBSERVATION, k=(4, 16), rounds=2, out=tmp_path)
    written = json.loads((tmp_path / "profile.json").read_text())
    assert keystone.Profile.from_dict(written) == found
    assert written["found"]["1"]["best"] == found.best() == 4


def test_an_encoder_inside_the_sampler_is_mentioned(clock):
    class Inside(Timed):
        def forward(self, observation):
            return self.sample(observation, torch.randn(len(observation), 8, 2))

        def sample(self, context, noise):
            return super().sample(self.encode(context), noise)

    found = keystone.profile(Inside(clock), OBSERVATION, k=4, rounds=1)
    assert "encoder runs inside" in found.note
    assert [cost.encode for cost in found.costs] == pytest.approx([5, 5])


def test_the_callers_random_numbers_are_not_used_up(timed):
    torch.manual_seed(3)
    expected = torch.randn(2)
    torch.manual_seed(3)
    keystone.profile(timed, OBSERVATION, k=(4,), rounds=2)
    assert torch.equal(torch.randn(2), expected)


def test_an_attached_policy_is_used_as_it_is_and_does_not_notice(timed):
    handle, events = keystone.attach(timed, k=5, rule="coherent", seed=0), []
    handle.subscribe(events.append)
    timed(OBSERVATION)
    last = handle.last
    assert keystone.profile(timed, OBSERVATION, k=(4,), rounds=2).policy == "Timed"
    assert (handle.k, handle.last, handle.stats["rounds"], len(events)) == (5, last, 1, 1)
    with pytest.raises(KeystoneError, match="attached already, and rule cannot be changed"):
        keystone.profile(timed, OBSERVATION, rule="mean")


def test_a_policy_that_is_called_in_its_own_way(timed):
    class Robot:
        def __init__(self):
            self.policy = timed

        def act(self, state):
            return self.policy(state)

    robot = Robot()
    with pytest.raises(KeystoneError, match=r"call=policy\.act"):
        keystone.profile(robot, OBSERVATION)
    assert keystone.profile(robot, OBSERVATION, call=robot.act, k=(4,), rounds=2).policy == "Robot"
    with pytest.raises(KeystoneError, match="does not reach the sampler"):
        keystone.profile(timed, OBSERVATION, call=lambda observation: None)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"k": (1,)}, "numbers of candidates to compare with K = 1"),
        ({"k": ()}, "numbers of candidates to compare with K = 1"),
        ({"k": (0, 4)}, "k=0"),
        ({"k": (2.5,)}, "k=2.5"),
        ({"tolerance": -0.1}, "tolerance=-0.1"),
        ({"tolerance": float("nan")}, "tolerance=nan"),
        ({"budget_ms": 0}, "budget_ms=0"),
        ({"rounds": 0}, "rounds=0"),
        ({"steps": (2, 0)}, "steps=0"),
        ({"concurrent": 0}, "concurrent=0"),
    ],
)
def test_arguments_that_make_no_sense(given, message, timed):
    with pytest.raises((ValueError, TypeError), match=message):
        keystone.profile(timed, OBSERVATION, **given)
    assert timed.sampled == []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"observation": None}, "give what the policy is called with"),
        ({"observation": OBSERVATION, "concurrent": 2}, "give its name or folder"),
        (
            {"policy": "metaworld-mixed", "concurrent": 2, "seed": 3, "rule": "mean"},
            "and rule, seed would hold for one",
        ),
        ({"policy": "metaworld-mixed", "concurrent": 2, "steps": 2}, "and steps would hold for one"),
        ({"observation": OBSERVATION, "steps": 2}, "steps=2: a Timed has no attribute num_inference_steps"),
        ({"observation": OBSERVATION, "batch": 2}, "for a policy given by name"),
        ({"policy": "metaworld-mixed", "observation": OBSERVATION}, "comes with its observation"),
        ({"policy": "metaworld-mixt"}, "did you mean 'metaworld-mixed'"),
        ({"policy": "fractions:Fraction"}, "fractions:Fraction was not called"),
        ({"policy": "sys:version_info"}, "returns 5 things: expected the policy and an observation for it"),
    ],
)
def test_combinations_that_cannot_be(given, message, timed):
    with pytest.raises(KeystoneError, match=message):
        keystone.profile(**{"policy": timed, **given})


def test_a_folder_that_cannot_be_written(timed, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(KeystoneError, match="cannot write"):
        keystone.profile(timed, OBSERVATION, k=(4,), rounds=2, out=tmp_path / "file" / "inside")


class Wavering(Timed):
    """With several candidates a round takes 20 % more every other time."""

    turn = 0

    def sample(self, context, noise):
        chunk = super().sample(context, noise)
        if len(noise) > 1:
            self.turn += 1
            self.clock.turn(5 * (self.turn % 2))
        return chunk


def test_a_measurement_that_leaves_k_uncertain_is_not_stored(clock, stored):
    found = keystone.profile(Wavering(clock), OBSERVATION, k=4, rounds=6)
    assert found.uncertain() == (4,)
    assert keystone.profile(Wavering(clock), OBSERVATION, k=4, rounds=30).uncertain() == (4,)
    assert not list(stored.glob("*"))


def test_numbers_of_steps_that_leave_k_uncertain_are_named(clock, stored, tmp_path, capsys, monkeypatch):
    class WaveringAtTwoSteps(Wavering):
        num_inference_steps = 5

        def sample(self, context, noise):
            return (super() if self.num_inference_steps == 2 else super(Wavering, self)).sample(context, noise)

    subject = (WaveringAtTwoSteps(clock), OBSERVATION, None)
    monkeypatch.setattr("keystone_robotics.profiling.api.load_subject", lambda *_: subject)
    out = str(tmp_path / "out")
    assert main(["profile", "mine:make", "--k", "4", "--steps", "1", "2", "--rounds", "6", "--out", out]) == 0
    assert 'not stored for k="auto" with steps=2: K is not certain there' in capsys.readouterr().out
    assert len(list(stored.glob("*.json"))) == 2


def test_an_automatic_measurement_that_leaves_k_uncertain_is_not_stored(clock, stored, caplog):
    policy = Wavering(clock)
    handle = keystone.attach(policy, k="auto")
    with caplog.at_level(logging.INFO, "keystone"):
        for _ in range(2):
            policy(OBSERVATION)
    assert handle.k == 4  # this run goes on with what it found
    assert "not stored: it leaves K = " in caplog.text
    assert not list(stored.glob("*"))


def test_a_module_that_cannot_be_called_is_told_how_to_be():
    class Acts(torch.nn.Module):
        def encode(self, observation):
            return observation

        def sample(self, context, noise):
            return context[:, None] + noise

    with pytest.raises(
        KeystoneError, match=r"a Acts has neither select_action nor infer and cannot be called: say how to"
    ):
        keystone.profile(Acts(), OBSERVATION, k=4, rounds=1)
