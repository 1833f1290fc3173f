"""What the confirmation says, for every way in which it can come out."""

import pytest

from keystone_robotics.compare.outcomes import Outcomes
from keystone_robotics.records import EpisodeRecord
from keystone_robotics.spec import Spec
from keystone_robotics.tune.space import POLICY_AS_IT_IS
from keystone_robotics.tune.verdict import ConfirmedArms, decide

CONTROL, CANDIDATE = Spec.parse("first:steps=2"), Spec.parse("core-mean:k=16,steps=2")
N = 200


def verdict(own, control=None, candidate=None, own_allowed=True, n=N):
    """Of arms with these rates; the successes of each are nested, so that all differences are as sure as they can be."""
    rates = {POLICY_AS_IT_IS: own, CONTROL: control, CANDIDATE: candidate}
    outcomes = [
        Outcomes(
            str(arm), "run", "keystone",
            tuple(EpisodeRecord("push", one, one < rate * n, arm=str(arm), initial_state=str(one)) for one in range(n)),
        )
        for arm, rate in rates.items()
        if rate is not None
    ]  # fmt: skip
    confirmed = ConfirmedArms(
        POLICY_AS_IT_IS if control is None else CONTROL,
        None if candidate is None else CANDIDATE,
        {"first": 1.0, str(CONTROL): 0.3, str(CANDIDATE): 0.9},
        own_allowed,
    )
    return decide(confirmed, outcomes)


@pytest.mark.parametrize(
    ("rates", "recommended", "says"),
    [
        (
            (0.5, 0.6, 0.8),
            CANDIDATE,
            "use core-mean:k=16,steps=2: +30.0 [+23.2, +36.2] points to the policy as it is; +20.0",
        ),
        ((0.5, 0.7, 0.71), CONTROL, "a free change is all there is: use first:steps=2, +20.0"),
        ((0.5, 0.8, 0.6), CONTROL, "K candidates add nothing to it (core-mean:k=16,steps=2: -20.0"),
        ((0.5, 0.7, 0.725), CONTROL, "a free change helps: use first:steps=2, +20.0"),
        ((0.5, 0.7, 0.725), CONTROL, "whether K candidates add to it is open (core-mean:k=16,steps=2: +2.5"),
        ((0.5, 0.5, 0.5), POLICY_AS_IT_IS, "nothing helps here: keep the policy as it is"),
        ((0.5, 0.4, 0.3), POLICY_AS_IT_IS, "nothing helps here: keep the policy as it is"),
        ((0.5, 0.5, 0.6), CANDIDATE, "+10.0"),
        ((0.5, 0.6, None), CONTROL, "a free change is all there is: use first:steps=2"),
        ((0.5, None, 0.6), CANDIDATE, "use core-mean:k=16,steps=2"),
        ((0.5, None, 0.5), POLICY_AS_IT_IS, "nothing helps here"),
    ],
)
def test_what_is_recommended(rates, recommended, says):
    found = verdict(*rates)
    assert found.recommended == recommended
    assert says in found.headline


def test_candidates_without_a_free_change_to_compare_with():
    assert verdict(0.5, None, 0.8).notes == (
        "no free change was in the race: what K candidates add to one is not known",
    )


def test_few_episodes_do_not_say_that_nothing_helps():
    found = verdict(0.5, 0.6, 0.6, n=20)
    assert found.recommended == POLICY_AS_IT_IS
    assert found.headline.startswith(
        "no gain is shown: keep the policy as it is, or give a larger budget (this one shows "
    )


def test_a_change_that_is_only_faster_is_said():
    found = verdict(0.5, 0.5, 0.5)
    assert found.recommended == POLICY_AS_IT_IS
    assert found.faster == CONTROL
    assert found.headline.endswith(
        "Much faster at no loss of 5 points: first:steps=2 takes 0.30 of the time per step; use it if you need the time"
    )
    assert verdict(0.5, 0.3, 0.5).faster is None
    unsure = verdict(0.5, 0.5, 0.5, n=20)
    assert unsure.faster is None
    assert unsure.notes == (
        "first:steps=2 takes 0.30 of the time per step at +0.0 [-12.9, +12.9] points: a loss of 5 points is not excluded",
    )


def test_an_interval_without_its_test_is_not_enough():
    found = verdict(0.5, 0.62, 0.62, n=50)
    assert found.comparisons[0].outcome == "no clear difference"
    assert found.recommended == POLICY_AS_IT_IS
    assert found.headline.startswith(
        "no gain is shown, the interval of first:steps=2 and core-mean:k=16,steps=2 excludes zero, the corrected test does "
        "not: keep the policy as it is, or give a larger budget"
    )


@pytest.mark.parametrize(
    ("rates", "recommended"),
    [
        ((0.5, 0.4, 0.4), CONTROL),
        ((0.5, 0.3, 0.45), CANDIDATE),
        ((0.5, None, 0.4), CANDIDATE),
        ((0.5, 0.4, None), CONTROL),
    ],
)
def test_a_policy_that_is_too_slow_itself_is_not_recommended(rates, recommended):
    found = verdict(*rates, own_allowed=False)
    assert found.recommended == recommended
    assert found.headline.startswith("the policy as it is exceeds the latency limit; within it use")
