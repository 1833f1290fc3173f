"""Latency is measured before the race, and limits it."""

import pytest

from keystone_robotics.errors import KeystoneError
from keystone_robotics.evaluate.worker import checked_worker
from keystone_robotics.spec import Spec
from keystone_robotics.tune.entrants import find_entrants
from keystone_robotics.tune.latency import Latencies, LatencyLimit, measure_latencies
from keystone_robotics.tune.space import POLICY_AS_IT_IS

ARMS = [
    POLICY_AS_IT_IS,
    *map(Spec.parse, ("first:steps=1", "first:temperature=0.5", "core-mean:k=4", "core-mean:k=16")),
]
MEASURED = Latencies({"first": [10.0, 10.0, 90.0], "first:steps=1": [2.0], "first:temperature=0.5": [10.4],
                      "core-mean:k=4": [14.0], "core-mean:k=16": [30.0]})  # fmt: skip


def entrants(config, measured=MEASURED, arms=ARMS):
    lines = []
    found = [str(arm) for arm in find_entrants(config, arms, measured, lines.append)]
    return sorted(found, key=[str(arm) for arm in arms].index), lines


@pytest.mark.parametrize("text", ["", "fast", "-1", "0", "0ms", "20 s", "1.0.0", "nan"])
def test_a_limit_that_cannot_be_read(text):
    with pytest.raises(KeystoneError, match=f"--latency {text}: expected a multiple"):
        LatencyLimit.parse(text)


@pytest.mark.parametrize(
    ("limit", "allowed"),
    [
        ("1.0", ["first", "first:steps=1", "first:temperature=0.5"]),  # 4 % more is a measurement of the same
        ("1.4", ["first", "first:steps=1", "first:temperature=0.5", "core-mean:k=4"]),
        ("10.2ms", ["first", "first:steps=1"]),  # a deadline has no tolerance
        ("0.5", ["first:steps=1"]),  # the policy itself is too slow
        ("none", [str(arm) for arm in ARMS]),
    ],
)
def test_who_enters(toy_tune, limit, allowed):
    found, lines = entrants(toy_tune(latency=LatencyLimit.parse(limit)))
    assert found == allowed
    assert "the policy as it is takes 10.0 ms a round" in lines[-1]
    if limit == "1.0":
        assert lines[0].startswith(
            "2 of 5 arms exceed --latency 1 and are not tried; the fastest of them is core-mean:k=4 with 14.0"
        )


def test_the_fastest_comes_first_and_a_busy_machine_is_said(toy_tune):
    lines = []
    found = find_entrants(toy_tune(), ARMS, MEASURED, lines.append)
    assert [str(arm) for arm in found][:2] == ["first:steps=1", "first"]
    assert lines[0].startswith(
        "the machine is busy: the middle half of the policy's rounds differs by 400% of the median"
    )
    find_entrants(toy_tune(), ARMS, Latencies({**MEASURED.milliseconds, "first": [10.0, 11.0]}), lines.append)
    assert "busy" not in lines[-2] + lines[-1]


def test_a_limit_that_nothing_keeps(toy_tune):
    with pytest.raises(
        KeystoneError, match=r"--latency 1ms: no arm keeps it. The fastest is first:steps=1 with 2\.0 ms"
    ):
        entrants(toy_tune(latency=LatencyLimit.parse("1ms")))


def test_arms_of_equal_cost_are_measured_as_one():
    cooler, shorter = Spec.parse("core-mean:k=4,temperature=0.8"), Spec.parse("core-mean:k=4,execute=2,temperature=0.3")
    assert MEASURED.of(cooler) == MEASURED.of(shorter) == 14.0
    assert MEASURED.of(Spec.parse("first:temperature=0.9")) == 10.4
    assert MEASURED.covers([cooler, shorter])
    assert not MEASURED.covers([Spec.parse("medoid:k=4")])


def test_measured_in_turn_and_refusals_are_noted(toy_tune):
    worker = checked_worker(toy_tune().evaluation)
    arms = [*ARMS, *map(Spec.parse, ("first:execute=99", "core-mean:k=4,execute=2"))]
    found = measure_latencies(worker, arms)
    assert set(found.milliseconds) == {str(arm) for arm in ARMS}
    assert {len(rounds) for rounds in found.milliseconds.values()} == {50}
    assert found.refused == {"first:execute=99": "execute=99: this policy plans 6 steps"}
    assert found.covers(arms)


def test_a_policy_that_cannot_change_its_steps_races_without_them(toy_tune, tmp_path, monkeypatch):
    from keystone_robotics.sample.families.encode_sample import EncodeSampleAdapter

    monkeypatch.setattr(EncodeSampleAdapter, "refuse_steps", lambda self, policy, steps: "it has no loop")
    found = measure_latencies(checked_worker(toy_tune().evaluation), ARMS)
    names, lines = entrants(toy_tune(), found)
    assert lines[0] == "1 of 5 arms are left out: steps=1: it has no loop"
    assert names == ["first", "first:temperature=0.5", "core-mean:k=4", "core-mean:k=16"]
    with pytest.raises(KeystoneError, match="nothing to try beside the policy as it is"):
        entrants(toy_tune(), found, ARMS[:2])
