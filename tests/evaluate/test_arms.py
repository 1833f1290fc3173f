"""Arms as text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keystone_robotics.errors import KeystoneError
from keystone_robotics.evaluate.arms import Arm

counts = st.integers(1, 64)
shares = st.floats(0.01, 1.0)
clustering = {"clusters": counts, "iterations": counts, "init": st.sampled_from(["random", "best"])}
PARAMS = {
    "first": {},
    "medoid": {},
    "mean": {},
    "keystone": {"tau": st.floats(0, 5) | st.integers(0, 5), **clustering},
    "cluster-mean": {"tau": st.floats(0, 5), **clustering},
    "cluster-medoid": clustering,
    "density": {"neighbours": counts | st.none()},
    "kde": {"bandwidth": st.floats(0.01, 100) | st.none(), "whole": st.booleans()},
    "coherent": {"decay": shares, "share": shares},
    "trimmed-mean": {"share": shares},
    "core-mean": {"share": shares},
}
OWN = {
    "k": counts,
    "temperature": st.floats(0, 10) | st.integers(0, 10),
    "metric": st.sampled_from(["l2", "l1", "cosine"]),
    "window": st.sampled_from(["executed", "chunk"]),
    "gripper": st.integers(0, 9) | st.none(),
    "execute": counts,
}


@st.composite
def arms(draw):
    rule = draw(st.sampled_from(sorted(PARAMS)))
    return Arm.make(rule, draw(st.fixed_dictionaries({}, optional={**OWN, **PARAMS[rule]})))


@given(arms())
def test_text_and_back(arm):
    again = Arm.parse(str(arm))
    assert again == arm
    assert str(again) == str(arm)
    assert hash(again) == hash(arm)


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("first", "first:k=1"),
        ("first", "first:temperature=1"),
        ("first:temperature=2", "first:temperature=2.0"),
        ("keystone:k=16", "keystone"),
        ("keystone:tau=1,k=8", " keystone : k=8, tau=1.0, metric=l2"),
        ('medoid:{"k": 4, "metric": "l1"}', "medoid:k=4,metric=l1"),
    ],
)
def test_one_arm_has_one_name(text, same):
    assert str(Arm.parse(text)) == str(Arm.parse(same))
    assert Arm.parse(text) == Arm.parse(same)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("mediod:k=4", "did you mean 'medoid'"),
        ("", "unknown rule"),
        ("keystone:temprature=0.6", "did you mean 'temperature'"),
        ("keystone:tua=0.6", "did you mean 'tau'"),
        ("keystone:excute=2", "did you mean 'execute'"),
        ("keystone:k=0", "k=0: expected a whole number"),
        ("keystone:k=many", "k='many'"),
        ("keystone:k=true", "k=True"),
        ("keystone:k", "is not name=value"),
        ("keystone:temperature=-1", "temperature=-1"),
        ("keystone:temperature=NaN", "temperature=nan"),
        ("keystone:temperature=Infinity", "temperature=inf"),
        ("keystone:metric=l3", "l3"),
        ("keystone:init=worst", "worst"),
        ("medoid:execute=0", "execute=0"),
        ("medoid:gripper=-1", "gripper=-1"),
        ("medoid:window=chunks", "did you mean 'chunk'"),
        ('medoid:{"k": 4', "medoid"),
        ('coherent:{"previous": [[1.0]]}', "expected a number or a name"),
    ],
)
def test_what_is_wrong_is_said(text, says):
    with pytest.raises(KeystoneError) as error:
        Arm.parse(text)
    assert says in str(error.value)
    assert repr(text) in str(error.value)
