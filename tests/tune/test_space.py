"""Arms with alternatives."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keystone_robotics.errors import KeystoneError
from keystone_robotics.spec import Spec
from keystone_robotics.tune.space import DEFAULT_SPACE, POLICY_AS_IT_IS, WIDE_SPACE, arms_of, expand, groups_of


def test_the_default_space_has_the_policy_as_it_is_free_changes_and_candidates():
    arms = arms_of(DEFAULT_SPACE, execute=8, steps=10)
    assert (len(arms), arms[0]) == (23, POLICY_AS_IT_IS)
    assert groups_of(arms).count(0) == 11
    names = set(map(str, arms))
    assert {"first:temperature=0.4", "first:steps=2,temperature=0.6,execute=4", "core-mean:k=16,steps=2"} <= names
    assert {"keystone:k=16,steps=2", "core-mean:k=16", "core-mean:k=16,steps=2,temperature=0.8,execute=4"} <= names


def test_the_wide_space_has_every_free_change_and_candidates():
    arms = arms_of(WIDE_SPACE, execute=8, steps=10)
    assert (len(arms), arms[0]) == (72, POLICY_AS_IT_IS)
    assert groups_of(arms).count(0) == 40
    names = set(map(str, arms))
    assert {"first:temperature=0.4", "first:steps=2,temperature=0.6,execute=4", "core-mean:k=16,steps=2"} <= names
    assert {"keystone:k=4,steps=3,temperature=0.8", "core-mean:k=16"} <= names


def test_what_the_policy_does_anyway_is_no_arm_of_its_own():
    names = [str(arm) for arm in arms_of(["first:steps=2|4,execute=3|2"], execute=3, steps=4)]
    assert names == ["first", "first:steps=2", "first:steps=2,execute=2", "first:execute=2"]
    assert [str(arm) for arm in arms_of(["first:steps=2,execute=half|default"], execute=1, steps=None)] == [
        "first",
        "first:steps=2",
    ]


def test_options_as_json_have_no_alternatives():
    assert [str(arm) for arm in expand('medoid|mean:k=4,space={"dims":[0,1]}', 8)] == [
        'medoid:k=4,space={"dims":[0,1]}',
        'mean:k=4,space={"dims":[0,1]}',
    ]
    assert [str(arm) for arm in expand('medoid:{"k": 4}', 8)] == ["medoid:k=4"]


@given(
    st.lists(st.sampled_from(["keystone", "core-mean", "medoid"]), min_size=1, max_size=3, unique=True),
    st.lists(st.integers(2, 64), min_size=1, max_size=4, unique=True),
    st.lists(st.integers(1, 20), min_size=1, max_size=4, unique=True),
)
def test_all_combinations_each_once(rules, ks, steps):
    pattern = f"{'|'.join(rules)}:k={'|'.join(map(str, ks))},steps={'|'.join(map(str, steps))}"
    found = expand(pattern, 8)
    assert len(found) == len(set(found)) == len(rules) * len(ks) * len(steps)
    assert set(found) == {Spec(rule, k, steps=number) for rule in rules for k in ks for number in steps}


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("fist:steps=1|2", "did you mean 'first'"),
        ("first:step=1|2", "did you mean 'steps'"),
        ("first:steps=1||2", "not name=value|expected"),
        ("first:steps", "'steps' is not name=value"),
        ("core-mean:k=4|0", "k=0"),
    ],
)
def test_what_is_no_arm_is_said(pattern, says):
    with pytest.raises(KeystoneError, match=says):
        expand(pattern, 8)
