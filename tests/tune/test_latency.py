"""Latency is measured where episodes are rolled out, before the race, and limits it."""

import functools
import os
import signal
import time

import pytest
import torch

from keystone_robotics.errors import KeystoneError
from keystone_robotics.evaluate import latency as latency_module
from keystone_robotics.evaluate.executors import WorkerFailed
from keystone_robotics.evaluate.executors.in_process import InProcess
from keystone_robotics.evaluate.executors.processes import LocalProcesses
from keystone_robotics.evaluate.latency import Latencies, measure_latencies, time_rounds, timed_arm
from keystone_robotics.spec import Spec
from keystone_robotics.tune.eligible_arms import find_eligible_arms
from keystone_robotics.tune.limit import LatencyLimit
from keystone_robotics.tune.space import POLICY_AS_IT_IS

ARMS = [
    POLICY_AS_IT_IS,
    *map(Spec.parse, ("first:steps=1", "first:temperature=0.5", "core-mean:k=4", "core-mean:k=16")),
]
MEASURED = Latencies(4, {"first": [10.0, 10.0, 90.0], "first:steps=1": [2.0, 2.0, 18.0], "core-mean:k=4": [14.0, 14.0, 126.0],
                         "core-mean:k=16": [30.0, 30.0, 270.0]})  # fmt: skip


def eligible(config, measured=MEASURED, arms=ARMS):
    lines = []
    found = [str(arm) for arm in find_eligible_arms(config, arms, measured, lines.append)]
    return sorted(found, key=[str(arm) for arm in arms].index), lines


@pytest.mark.parametrize("text", ["", "fast", "-1", "0", "0ms", "20 s", "1.0.0", "nan"])
def test_a_limit_that_cannot_be_read(text):
    with pytest.raises(KeystoneError, match=f"--latency {text}: expected a multiple"):
        LatencyLimit.parse(text)


@pytest.mark.parametrize(
    ("limit", "allowed"),
    [
        ("1.0", ["first", "first:steps=1", "first:temperature=0.5"]),
        ("1.34", ["first", "first:steps=1", "first:temperature=0.5", "core-mean:k=4"]),  # 5 % more may be the same
        ("1.4", ["first", "first:steps=1", "first:temperature=0.5", "core-mean:k=4"]),
        ("13.9ms", ["first", "first:steps=1", "first:temperature=0.5"]),  # a deadline has no tolerance
        ("0.5", ["first:steps=1"]),  # the policy itself is too slow
        ("none", [str(arm) for arm in ARMS]),
    ],
)
def test_who_enters(toy_tune, limit, allowed):
    found, lines = eligible(toy_tune(latency=LatencyLimit.parse(limit)))
    assert found == allowed
    assert "the policy as it is takes 10.0 ms a round" in lines[-1]
    if limit == "1.0":
        assert lines[:3] == [
            "2 of 5 arms exceed --latency 1 per executed step and are not tried:",
            "  core-mean:k=4: 14.0 ms a round (1.40 of the policy's time per step)",
            "  core-mean:k=16: 30.0 ms a round (3.00 of the policy's time per step)",
        ]


def test_the_limit_counts_executed_steps(toy_tune):
    """Half of the steps, twice the rounds."""
    arms = [*ARMS[:2], *map(Spec.parse, ("first:execute=2", "first:steps=1,execute=2", "first:steps=1,execute=1"))]
    found, lines = eligible(toy_tune(latency=LatencyLimit.parse("1.0")), arms=arms)
    assert found == ["first", "first:steps=1", "first:steps=1,execute=2", "first:steps=1,execute=1"]
    assert lines[1] == "  first:execute=2: 10.0 ms a round, 2 times the rounds (2.00 of the policy's time per step)"
    assert eligible(toy_tune(latency=LatencyLimit.parse("5ms")), arms=arms)[0] == [
        "first:steps=1",
        "first:steps=1,execute=2",
    ]


def test_the_fastest_comes_first_and_a_busy_machine_is_said(toy_tune):
    lines = []
    found = find_eligible_arms(toy_tune(), ARMS, MEASURED, lines.append)
    assert [str(arm) for arm in found][:2] == ["first:steps=1", "first"]
    assert lines[0].startswith(
        "the machine is busy: the middle half of the policy's rounds differs by 400% of the median"
    )
    find_eligible_arms(
        toy_tune(), ARMS, Latencies(4, {**MEASURED.milliseconds, "first": [10.0, 10.0, 11.0]}), lines.append
    )
    assert "busy" not in lines[-2] + lines[-1]


def test_a_limit_that_nothing_keeps(toy_tune):
    with pytest.raises(
        KeystoneError, match=r"--latency 1ms: no arm keeps it. The fastest is first:steps=1 with 2\.0 ms a round"
    ):
        eligible(toy_tune(latency=LatencyLimit.parse("1ms")))


def test_arms_of_equal_cost_are_measured_as_one():
    cooler, shorter = Spec.parse("core-mean:k=4,temperature=0.8"), Spec.parse("core-mean:k=4,execute=2,temperature=0.3")
    assert MEASURED.round_ms(cooler) == MEASURED.round_ms(shorter) == 14.0
    assert (MEASURED.step_ms(shorter), MEASURED.step_ratio(shorter)) == (28.0, 2.8)
    assert MEASURED.covers([cooler, shorter])
    assert not MEASURED.covers([Spec.parse("medoid:k=4")])


def test_a_disturbance_of_all_arms_does_not_change_their_ratio():
    assert (
        Latencies(1, {"first": [10.0, 90.0, 80.0], "core-mean:k=4": [14.0, 126.0, 112.0]}).round_ratio(ARMS[3]) == 1.4
    )


def test_measured_in_turn_and_refusals_are_noted(toy_tune):
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        arms = [*ARMS, *map(Spec.parse, ("first:execute=99", "core-mean:k=4,execute=2"))]
        found = measure_latencies(InProcess(), toy_tune().evaluation, arms)
        assert torch.get_num_threads() == threads + 1, "the user's number of threads is theirs"
    finally:
        torch.set_num_threads(threads)
    assert list(found.milliseconds) == ["first", "first:steps=1", "core-mean:k=4", "core-mean:k=16"]
    assert {len(rounds) for rounds in found.milliseconds.values()} == {latency_module.ROUNDS}
    assert found.refused == {"first:execute=99": "execute=99: this policy plans 6 steps"}
    assert found.covers(arms)
    assert found.execute == 3


def test_a_policy_that_cannot_change_its_steps_races_without_them(toy_tune, monkeypatch):
    from keystone_robotics.sample.families.encode_sample import EncodeSampleAdapter

    monkeypatch.setattr(EncodeSampleAdapter, "refuse_steps", lambda self, policy, steps: "it has no loop")
    monkeypatch.setattr(latency_module, "ROUNDS", 2)
    found = measure_latencies(InProcess(), toy_tune().evaluation, ARMS)
    names, lines = eligible(toy_tune(), found)
    assert lines[0] == "1 of 5 arms are left out: steps=1: it has no loop"
    assert names == ["first", "first:temperature=0.5", "core-mean:k=4", "core-mean:k=16"]
    with pytest.raises(KeystoneError, match="nothing to try beside the policy as it is"):
        eligible(toy_tune(), found, ARMS[:2])


def test_an_adaptive_arm_is_charged_its_worst_case(toy_tune, monkeypatch):
    """Both draws, whether or not the first few would agree, and the fewest steps."""
    monkeypatch.setattr(latency_module, "ROUNDS", 2)
    drawn = []
    arm = Spec.parse("core-mean:k=2..6:1,execute=1..3")

    def watched(worker):
        with worker.attached(timed_arm(arm)) as handle:
            handle.subscribe(lambda event: drawn.append(event.k))
        return time_rounds(worker, arms=[POLICY_AS_IT_IS, arm], clock=time.perf_counter)

    found = InProcess().run_in_worker(toy_tune().evaluation, watched)
    assert set(drawn) == {6}
    assert list(found.milliseconds) == ["first", "core-mean:k=2..6:0"]
    assert found.covers([arm])
    assert (found.execute, found.rounds(arm), found.rounds(Spec.parse("core-mean:k=4,execute=auto"))) == (3, 3.0, 3.0)
    assert found.rounds(Spec.parse("core-mean:k=4,execute=2..3")) == 1.5


def test_an_arm_with_which_the_policy_raises_is_left_out(toy_tune, monkeypatch):
    monkeypatch.setattr(latency_module, "ROUNDS", 2)

    def failing(worker, deadly):
        plan = worker.agent.plan

        def planned(histories, tasks):
            if vars(worker.agent.policy)["_keystone"].k == deadly:
                raise RuntimeError("no kernel for this batch\nsecond line")
            return plan(histories, tasks)

        worker.agent.plan = planned
        return time_rounds(worker, arms=ARMS, clock=time.perf_counter)

    settings = toy_tune().evaluation
    found = InProcess().run_in_worker(settings, functools.partial(failing, deadly=4))
    assert found.refused == {"core-mean:k=4": "the policy fails with it: RuntimeError: no kernel for this batch"}
    assert list(found.milliseconds) == ["first", "first:steps=1", "core-mean:k=16"]
    with pytest.raises(KeystoneError, match=r"latencies cannot be measured: first: .*RuntimeError: no kernel for this"):
        InProcess().run_in_worker(settings, functools.partial(failing, deadly=1))


class Failing(InProcess):
    """Arms with several candidates end their worker."""

    def run_in_worker(self, settings, function):
        arms = function.keywords["arms"]
        for number, arm in enumerate(arms):
            if arm.k > 1:
                raise WorkerFailed("its worker process died of SIGSEGV", number)
        return super().run_in_worker(settings, function)


def test_an_arm_that_ends_its_worker_is_refused_and_the_others_are_measured(toy_tune, monkeypatch):
    monkeypatch.setattr(latency_module, "ROUNDS", 2)
    found = measure_latencies(Failing(), toy_tune().evaluation, ARMS)
    assert found.refused == dict.fromkeys(["core-mean:k=4", "core-mean:k=16"], "its worker process died of SIGSEGV")
    assert list(found.milliseconds) == ["first", "first:steps=1"]
    with pytest.raises(KeystoneError, match="latencies cannot be measured: its worker process died of SIGSEGV"):
        measure_latencies(Failing(), toy_tune().evaluation, [Spec.parse("medoid:k=4"), *ARMS])


def die_or_hang(worker, deadly, hang):
    """In a worker process: the fourth round of this arm ends or blocks it."""
    plan, seen = worker.agent.plan, []

    def planned(histories, tasks):
        engine = vars(worker.agent.policy).get("_keystone")
        seen.append(engine.k == deadly)
        if sum(seen) == 4:
            time.sleep(600) if hang else os.kill(os.getpid(), signal.SIGKILL)
        return plan(histories, tasks)

    worker.agent.plan = planned
    return time_rounds(worker, arms=ARMS, clock=time.perf_counter)


@pytest.mark.parametrize("hang", [False, True])
def test_in_a_process_that_dies_or_hangs_the_arm_at_fault_is_known(toy_tune, hang):
    with LocalProcesses(1, episode_timeout=1.0 if hang else None) as processes:
        settings = toy_tune().evaluation
        assert processes.run_in_worker(settings, _pid) != os.getpid()
        with pytest.raises(WorkerFailed, match="the policy took more than 1 s" if hang else "died of SIGKILL") as found:
            processes.run_in_worker(settings, functools.partial(die_or_hang, deadly=4, hang=hang))
        assert found.value.episode == 3
        assert processes.run_in_worker(settings, _pid) != os.getpid(), "another worker takes its place"


def _pid(worker):
    return os.getpid()
