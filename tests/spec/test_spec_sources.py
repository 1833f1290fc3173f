"""Options from the environment, several sources at once, and what `attach` makes of them."""

import logging
import re
from pathlib import Path

import pytest
import torch

import keystone_robotics as keystone
from keystone_robotics import ActionSpace, KeystoneError, Spec
from keystone_robotics.spec import merge, options, options_from_environment, spec_from


class Policy(torch.nn.Module):
    def act(self):
        return torch.randn(1, 8, 2)


@pytest.fixture
def warnings(monkeypatch, caplog):
    caplog.set_level(logging.WARNING, "keystone")
    return caplog


def test_every_option_can_be_set_in_the_environment(warnings):
    spec = Spec.from_environment(
        {
            "KEYSTONE_SPEC": "kde:k=8,temperature=0.5,bandwidth=0.1",
            "KEYSTONE_K": "auto",
            "KEYSTONE_SPACE": '{"dims": 7, "gripper": {"6": 0.5}}',
            "KEYSTONE_COMPILE": "yes",
            "KEYSTONE_WHOLE": "1",
            "KEYSTONE_PARAMS": "bandwidth=0.2",
            "KEYSTONE_SEED": " 7 ",
            "KEYSTONE_METRIC": " ",
            "KEYSTONE_LOG": "rounds.jsonl",
            "KEYSTONE_PROFILES": "profiles",
            "KEYSTONE_UPSTREAM": "checkouts",
        }
    )
    assert spec == Spec(
        "kde", "auto", temperature=0.5, seed=7, space=ActionSpace(dims=7, gripper={6: 0.5}), compile=True,
        params={"bandwidth": 0.2, "whole": True},
    )  # fmt: skip
    assert not warnings.text


#: For services called keystone, keystone-k and keystone-admin.
OF_KUBERNETES = [
    "SERVICE_HOST",
    "SERVICE_PORT",
    "SERVICE_PORT_HTTP",
    "PORT",
    "PORT_5000_TCP",
    "PORT_5000_TCP_ADDR",
    "PORT_5000_TCP_PORT",
    "PORT_80_TCP_PROTO",
    "K_SERVICE_HOST",
    "K_PORT",
    "ADMIN_SERVICE_HOST",
    "ADMIN_PORT_35357_TCP",
]
#: What OpenStack's tools set, and what may be a neighbour of an option's name.
FOREIGN = [
    "AUTH_URL",
    "URL",
    "HOST",
    "USER",
    "USERNAME",
    "PASSWORD",
    "PROJECT",
    "TOKEN",
    "ADMIN_TOKEN",
    "REGION",
    "DB_HOST",
    "DB_PASSWORD",
    "CONFIG",
    "VERSION",
    "TAG",
    "IMAGE",
    "DEBUG",
    "HOME",
    "DIR",
    "PATH",
    "NAME",
    "KEY",
    "API",
    "LOG_LEVEL",
    "LOG_DIR",
    "ENV",
    "MODE",
    "ID",
    "DOMAIN",
]


def test_variables_that_kubernetes_sets_are_ignored(warnings):
    assert options_from_environment({f"KEYSTONE_{name}": "x" for name in OF_KUBERNETES}) == {}
    assert not warnings.records


def test_variables_of_others_are_ignored_with_one_warning(warnings):
    for _ in range(2):  # as a command does that makes two policies
        assert options_from_environment({f"KEYSTONE_{name}": "x" for name in [*OF_KUBERNETES, *FOREIGN]}) == {}
    ((said),) = [record.getMessage() for record in warnings.records if record.levelname == "WARNING"]
    assert said.partition(": ")[2].split(", ") == sorted(f"KEYSTONE_{name}" for name in FOREIGN)


@pytest.mark.parametrize(
    ("typo", "meant"),
    [("KK", "K"), ("TEMPERTURE", "TEMPERATURE"), ("RULES", "RULE"), ("RUEL", "RULE"), ("STEP", "STEPS"), ("METRIK", "METRIC"),
     ("SED", "SEED"), ("PROFILE", "PROFILES"), ("LOGS", "LOG"), ("SPECS", "SPEC")],
)  # fmt: skip
def test_a_typo_is_an_error(typo, meant):
    with pytest.raises(KeystoneError, match=rf"^KEYSTONE_{typo} .* no option: did you mean KEYSTONE_{meant}\?$"):
        options_from_environment({f"KEYSTONE_{typo}": "8"})


@pytest.mark.parametrize(
    ("variable", "text", "says"),
    [
        ("KEYSTONE_K", "many", 'expected a whole number, "auto", or a range such as 4..16'),
        ("KEYSTONE_K", "0", "expected a whole number, 1 or more"),
        ("KEYSTONE_PARAMS", "tau", "'tau' is not name=value"),
        ("KEYSTONE_PARAMS", "{tau", ""),
        ("KEYSTONE_TAU", "hot", "expected a number"),
        ("KEYSTONE_TEMPERATURE", "hot", "expected a number"),
        ("KEYSTONE_FAST", "very", "expected True or False"),
        ("KEYSTONE_RULE", "mediod", "unknown rule 'mediod': did you mean 'medoid'"),
        ("KEYSTONE_SPEC", "medoid:tau=1", "rule 'medoid' has no parameter 'tau'"),
        ("KEYSTONE_SPACE", "7", "expected an ActionSpace"),
    ],
)
def test_malformed_variables_are_errors_that_name_them(variable, text, says):
    with pytest.raises(KeystoneError) as error:
        options_from_environment({variable: text})
    assert str(error.value).startswith(f"{variable}={text}: {says}")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("variable", "text", "says"),
    [
        ("KEYSTONE_STEPS", "[" * 20_000, "expected a whole number, 1 or more"),
        ("KEYSTONE_PARAMS", '{"a":' * 20_000, "nested too deeply"),
        ("KEYSTONE_PARAMS", "tau=" + "9" * 400, "expected a number"),
        ("KEYSTONE_SPEC", "keystone:iterations=" + str(2**63), "expected a whole number, 1 or more, below 2**63"),
        ("KEYSTONE_SPEC", "medoid:k=" + "[" * 20_000, "expected a whole number"),
    ],
)
def test_endless_values_are_short_errors(variable, text, says):
    with pytest.raises(KeystoneError, match=re.escape(says)) as error:
        Spec.from_environment({variable: text})
    assert len(str(error.value)) < 1000


def test_the_first_source_goes_over_the_others_and_parameters_stay_with_their_rule():
    low = {"rule": "kde", "bandwidth": 0.1, "seed": 3}
    assert merge({"k": 4, "seed": None}, low) == {"rule": "kde", "bandwidth": 0.1, "seed": 3, "k": 4}
    assert merge({"rule": "medoid"}, low) == {"rule": "medoid", "seed": 3}
    assert merge({"rule": "keystone"}, {"tau": 0.5}) == {"rule": "keystone", "tau": 0.5}
    assert merge({"spec": "core-mean:k=8", "k": 2}, low) == {"rule": "core-mean", "seed": 3, "k": 2}
    assert merge({"params": {"tau": 1}, "tau": 2}, {"k": None}) == {"tau": 2}
    with pytest.raises(KeystoneError, match="there is no option 'temprature'"):
        spec_from({"k": 4}, {"temprature": 0.5})


def test_attach_takes_a_spec_its_text_or_options_over_them():
    expected = Spec("kde", 4, temperature=0.5, params={"bandwidth": 0.2})
    for arguments, given in (
        ((expected,), {}),
        (("kde:k=4,temperature=0.5,bandwidth=0.2",), {}),
        ((), {"rule": "kde", "k": 4, "temperature": 0.5, "bandwidth": 0.2}),
        (("kde:k=16,bandwidth=0.2",), {"k": 4, "temperature": 0.5}),
        ((Spec("medoid", 4),), {"rule": "kde", "temperature": 0.5, "bandwidth": 0.2}),
    ):
        policy = Policy()
        handle = keystone.attach(policy, *arguments, site="act", **given)
        assert (handle.k, handle.rule, handle.engine.temperature) == (4, expected.bind(), 0.5)
        assert policy.act().shape == (1, 8, 2)
    with pytest.raises(TypeError, match=r"16: expected a keystone\.Spec or its text"):
        keystone.attach(Policy(), 16, site="act")
    with pytest.raises(TypeError, match="there is no option 'temprature': did you mean 'temperature'"):
        keystone.attach(Policy(), temprature=0.5, site="act")


def test_window_and_gripper_complete_the_space():
    space = ActionSpace(dims=7, rotation={"axis-angle": 3})
    spec = Spec(space=space, window="chunk", gripper=6)
    handle = keystone.attach(Policy(), spec, site="act")
    assert handle.space == ActionSpace(dims=7, rotation={"axis-angle": 3}, steps=slice(None), gripper={6: 0.0})
    assert Spec().action_space() is None
    assert Spec(space=space).action_space() == space


def test_the_page_lists_every_option():
    page = (Path(__file__).parents[2] / "docs" / "spec.md").read_text()
    rows = page.partition("| option | meaning | default |")[2].partition("\n\n")[0].splitlines()
    assert {name for row in rows[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])} == set(options())
