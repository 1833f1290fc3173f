"""A specification as text, as a mapping and as Python's own values."""

import dataclasses
import json
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keystone_robotics as keystone
from keystone_robotics import ActionSpace, KeystoneError, Spec
from keystone_robotics.select.rules.coherent import Coherent
from keystone_robotics.select.rules.keystone import Keystone

counts = st.integers(1, 64)
shares = st.floats(0.01, 1.0)
indices = (
    st.none() | counts | st.lists(st.integers(0, 31), min_size=1, unique=True) | st.builds(range, st.just(1), counts)
)
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
SPACES = st.builds(
    ActionSpace,
    dims=indices | st.builds(slice, st.none() | counts, counts, st.none() | counts),
    steps=indices,
    scale=st.none() | shares | st.lists(shares, min_size=1) | st.dictionaries(counts, shares),
    rotation=st.none() | st.dictionaries(st.sampled_from(["axis-angle", "6d"]), counts | st.lists(counts, min_size=1)),
    gripper=st.none() | st.dictionaries(counts, st.just("logit") | st.floats(-1, 1)),
)
limits = st.just("") | st.floats(0, 1).map(":{}".format)
ranges = st.builds("{}..{}{}".format, st.integers(2, 8), st.integers(9, 64), limits)
FIELDS = {
    "k": counts | st.just("auto") | ranges,
    "temperature": st.floats(0, 10) | st.integers(0, 10),
    "seed": st.none() | st.integers(0, 2**63),
    "metric": st.sampled_from(["l2", "l1", "cosine"]),
    "execute": counts | ranges | limits.map("auto{}".format),
    "steps": st.none() | counts,
    "fast": st.booleans(),
    "compile": st.booleans(),
}
WINDOW = st.fixed_dictionaries(
    {}, optional={"window": st.sampled_from(["executed", "chunk"]), "gripper": st.integers(0, 9) | st.none()}
)


@st.composite
def specs(draw):
    rule = draw(st.sampled_from(sorted(PARAMS)))
    options = draw(st.fixed_dictionaries({}, optional={**FIELDS, **PARAMS[rule]}))
    if isinstance(options.get("execute"), str) and (rule == "coherent" or options.get("k", 1) in (1, "auto")):
        del options["execute"]  # refused
    return Spec.from_mapping({"rule": rule, **options, **draw(WINDOW | st.builds(dict, space=st.none() | SPACES))})


@given(specs())
def test_every_spec_round_trips_as_text_and_as_json(spec):
    for again in (Spec.parse(str(spec)), Spec.from_mapping(json.loads(json.dumps(spec.as_dict()))), spec.replace()):
        assert again == spec
        assert str(again) == str(spec)
        assert hash(again) == hash(spec)


@pytest.mark.parametrize(
    "text",
    [
        "first",
        "first:temperature=0.6",
        "first:execute=4",
        "first:steps=2",
        "keystone:k=16",
        "keystone:k=16,window=chunk",
        "keystone:k=16,tau=0.5",
        "core-mean:k=16,temperature=0.8",
        "core-mean:k=16,gripper=3",
        "medoid:k=8,temperature=0.8,metric=l1,window=chunk,gripper=3,execute=4",
        "core-mean:k=16,execute=auto",
        "core-mean:k=4..16:0.3,execute=2..8:0.25",
        "density:k=16,neighbours=3",
        'first:k=auto,seed=3,space={"dims":[0,2],"steps":"1:9","gripper":{"6":0.5}},fast=false,compile=true',
    ],
)
def test_texts_that_are_keys_in_stored_results_stay_as_they_are(text):
    assert str(Spec.parse(text)) == text


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("first", "first:k=1"),
        ("first:temperature=2", "first:temperature=2.0"),
        ("keystone:k=16", "keystone"),
        ("keystone:k=16,tau=0.3,clusters=2", "keystone"),
        ("density:neighbours=null", "density"),
        ("keystone:tau=1,k=8", " keystone : k=8, tau=1.0, metric=l2"),
        ('medoid:{"k": 4, "metric": "l1", "fast": false}', "medoid:k=4,metric=l1,fast=no"),
        ('mean:space={"dims": 7, "gripper": {"6": 1}}', 'mean:space={"gripper":{"6":1.0},"dims":7}'),
        ("medoid:temperature=.5", "medoid:temperature=5e-1"),
        ("medoid:k=4..16,execute=auto", "medoid:k=04..16:0.50,execute=auto:.5"),
    ],
)
def test_one_spec_has_one_text(text, same):
    assert Spec.parse(text) == Spec.parse(same)
    assert str(Spec.parse(text)) == str(Spec.parse(same))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("mediod:k=4", "did you mean 'medoid'"),
        ("", "unknown rule"),
        ("keystone:temprature=0.6", "did you mean 'temperature'"),
        ("keystone:tua=0.6", "did you mean 'tau'"),
        ("medoid:tau=0.6", "rule 'medoid' has no parameter 'tau'"),
        ("keystone:k=0", "k=0: expected a whole number, 1 or more"),
        ("keystone:k=many", "k='many': expected a whole number, \"auto\", or a range such as 4..16"),
        ("keystone:k=true", "k=True: expected a whole number"),
        ("keystone:k", "is not name=value"),
        ("keystone:temperature=-1", "temperature=-1: expected a finite number, 0 or more"),
        ("keystone:temperature=NaN", "temperature=nan: expected a number"),
        ("keystone:metric=l3", "l3"),
        ("keystone:init=worst", "worst"),
        ("medoid:execute=0", "execute=0: expected a whole number, 1 or more"),
        ("medoid:execute=often", "execute='often': expected a whole number, \"auto\", or a range such as 2..8"),
        ("medoid:execute=8..2", "execute='8..2': expected LEAST..MOST with 1 ≤ LEAST < MOST, not 8..2"),
        ("medoid:execute=auto:2", "expected a limit of the dispersion from 0 to 1 after the colon, not 2"),
        ("medoid:k=1,execute=auto", "execute=auto with k=1: one candidate cannot disagree; expected k=2 or more"),
        ("first:execute=auto", "execute=auto with k=1: one candidate cannot disagree"),
        ("medoid:k=auto,execute=auto", "K may turn out as 1"),
        ("coherent:execute=auto", "expected the same number of steps in every round"),
        ("medoid:k=1..4", "k='1..4': one candidate cannot disagree; expected a range that begins with 2 or more"),
        ("medoid:k=auto:0.3", "k='auto:0.3': expected a whole number"),
        ("medoid:k=4..16:NaN", "expected a limit of the dispersion from 0 to 1"),
        ("medoid:gripper=-1", "gripper=-1: expected a whole number, 0 or more"),
        ("medoid:window=chunks", "did you mean 'chunk'"),
        ("medoid:fast=perhaps", "fast='perhaps': expected True or False"),
        ("medoid:space=7", "space=7: expected an ActionSpace"),
        ('medoid:space={"dim":7}', "space has no 'dim': did you mean 'dims'"),
        ('medoid:window=chunk,space={"steps":3}', "window='chunk': space names steps as well"),
        ('medoid:gripper=3,space={"gripper":{"6":0}}', "gripper=3: space names gripper as well"),
        ('medoid:{"k": 4', "medoid"),
        ('coherent:{"previous": [[1.0]]}', "expected a number or a name"),
    ],
)
def test_errors_say_what_was_wrong_and_what_was_expected(text, says):
    with pytest.raises(KeystoneError) as error:
        Spec.parse(text)
    assert says in str(error.value)
    assert repr(text) in str(error.value)


def last(round):
    return len(round.chunks) - 1


def test_rules_that_are_objects():
    assert Spec(Keystone(tau=0.5)) == Spec(Keystone, params={"tau": 0.5}) == Spec.parse("keystone:tau=0.5")
    assert Spec(last, k=4).bind().function is last
    assert str(Spec(last, k=4)) == "last:k=4"
    assert Spec(last).replace(rule="medoid").rule == "medoid"
    chunks = np.zeros((1, 2, 3))
    assert Spec(Coherent(weak=chunks)).bind().weak is chunks  # an array has no text: the object stays
    with pytest.raises(TypeError, match="cannot be called as last"):
        Spec.of(rule=last, temprature=0.5)


def test_a_changed_rule_starts_from_its_own_parameters_and_default_k():
    assert Spec.parse("keystone:k=4,tau=0.5").replace(rule="medoid") == Spec("medoid", 4)
    assert Spec("first").replace(rule="medoid").k == 16
    assert Spec.parse("keystone:tau=0.5").replace(k=4) == Spec.parse("keystone:k=4,tau=0.5")


def test_a_string_that_looks_like_something_else_is_quoted(monkeypatch):
    class Named(Keystone):
        name = "named"

        def __post_init__(self):
            pass

    monkeypatch.setitem(keystone.RULES, "named", Named)
    for value in ("3", "a,b", 'a"b', "nan", "[", " a", "null", "true", "", "plain"):
        spec = Spec("named", params={"init": value, "tau": 0.5})
        assert Spec.parse(str(spec)) == spec, value
    assert str(spec) == "named:k=16,init=plain,tau=0.5"


def test_an_option_given_twice_is_refused():
    with pytest.raises(KeystoneError, match="k is given twice: 16 and 4"):
        Spec.parse("keystone:k=16,k=4")


@dataclasses.dataclass(frozen=True)
class Warm(Keystone):
    name: ClassVar[str] = "warm"
    temperature: float = 1.0


def test_a_parameter_named_like_an_option_is_refused(monkeypatch):
    def warm(round, temperature=1.0):
        return 0

    says = "rule 'warm' has a parameter 'temperature', which is an option of every rule"
    with pytest.raises(ValueError, match=says):
        Spec(warm)
    monkeypatch.setitem(keystone.RULES, "warm", Warm)
    with pytest.raises(KeystoneError, match=says):
        Spec.parse("warm")
