"""What cannot be attached to is refused with its reason, and is left as it was."""

import functools
from typing import Any

import pytest
import torch
from torch import nn

import keystone_robotics as keystone
from keystone_robotics import KeystoneError
from keystone_robotics.sample.families import ADAPTERS
from tiny import POLICIES


@functools.cache
def build(name: str, **overrides: Any) -> Any:
    return POLICIES[name].build(**overrides)


def classes(policy: Any) -> list[tuple[type, list[str]]]:
    """The class of every module and the names of what it holds."""
    return [(type(module), sorted(vars(module))) for module in policy.modules()]


def refusal(policy: Any, error: type[Exception] = KeystoneError, **options: Any) -> str:
    """The message of a refusal; nothing about the policy has changed."""
    before, weights = classes(policy), list(policy.state_dict())
    with pytest.raises(error) as caught:
        keystone.attach(policy, **options)
    assert classes(policy) == before
    assert list(policy.state_dict()) == weights
    assert keystone.attached(policy) is None
    return str(caught.value)


class HomeGrown(nn.Module):
    """A policy of which KeyStone knows nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Linear(2, 2)

    def sample_actions(self, observation: torch.Tensor) -> torch.Tensor:
        return self.network(observation)[:, None] + torch.randn(len(observation), 8, 2)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("act", "deterministic"),
        ("pi0_fast", "temperature above 0"),
        ("pi0_fast", "token by token"),
        ("lingbot_va", "streaming cache"),
        ("lingbot_va", "two noises"),
    ],
)
def test_families_that_cannot_be_helped(name: str, reason: str) -> None:
    message = refusal(build(name))
    assert name in message
    assert reason in message


def test_refused_policy_still_runs() -> None:
    recipe, policy = POLICIES["act"], build("act")
    before = recipe.predict(policy, recipe.batch())
    refusal(policy)
    assert torch.equal(recipe.predict(policy, recipe.batch()), before)


def test_unknown_object() -> None:
    message = refusal(HomeGrown())
    assert "HomeGrown" in message
    supported = message.split("Supported: ")[1].split(". ")[0].split(", ")
    assert supported == sorted(name for name, adapter in ADAPTERS.items() if not adapter.refusal)
    assert 'site="sample_actions"' in message


@pytest.mark.parametrize(
    ("site", "suggestion"),
    [
        ("sampel_actions", "did you mean 'sample_actions'?"),
        ("netwrok.forward", "did you mean 'network'?"),
        ("network.foward", "did you mean 'forward'?"),
        ("quite_different", "known are "),
    ],
)
def test_wrong_site_suggests_the_nearest(site: str, suggestion: str) -> None:
    assert suggestion in refusal(HomeGrown(), site=site)


def test_site_that_returns_no_chunks() -> None:
    policy = HomeGrown()
    keystone.attach(policy, k=4, site="network.forward")
    with pytest.raises(KeystoneError, match=r"expected one tensor of chunks \(B, T, D\)"):
        policy.sample_actions(torch.zeros(1, 2))
    keystone.detach(policy)
    assert policy.sample_actions(torch.zeros(1, 2)).shape == (1, 8, 2)


@pytest.mark.parametrize("again", [{}, {"site": "predict_action_chunk"}])
def test_attaching_twice(again: dict[str, Any]) -> None:
    policy = POLICIES["diffusion"].build()
    handle = keystone.attach(policy, k=2)
    attached = classes(policy)
    with pytest.raises(KeystoneError, match=r"attached to this .* already: keystone.detach"):
        keystone.attach(policy, k=4, **again)
    assert classes(policy) == attached
    assert keystone.attached(policy) == handle
    assert handle.k == 2
    keystone.detach(policy)
    keystone.attach(policy, k=4)
    keystone.detach(policy)


def test_attaching_twice_through_a_wrapper() -> None:
    class Server:
        def __init__(self, policy: Any) -> None:
            self.policy = policy

    policy = POLICIES["diffusion"].build()
    keystone.attach(Server(policy), k=2)
    with pytest.raises(KeystoneError, match="already"):
        keystone.attach(policy, k=2)
    keystone.detach(Server(policy))
    assert keystone.attached(policy) is None


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"k": 0}, ValueError, "k=0: expected a whole number, 1 or more"),
        ({"k": 2.5}, ValueError, "k=2.5"),
        ({"k": True}, ValueError, "k=True"),
        ({"keep": -1}, ValueError, "keep=-1"),
        ({"steps": 0}, ValueError, "steps=0: expected a whole number, 1 or more"),
        ({"steps": 2.5}, ValueError, "steps=2.5"),
        ({"steps": 101}, KeystoneError, "steps=101: the noise schedule has 100 steps; expected 1 to 100"),
        ({"steps": 2, "site": "forward"}, KeystoneError, "steps=2: with site= KeyStone does not know"),
        ({"temperature": -0.1}, ValueError, "temperature=-0.1: expected a finite number, 0 or more"),
        ({"temperature": float("nan")}, ValueError, "temperature=nan"),
        ({"temperature": "hot"}, ValueError, "temperature='hot'"),
        ({"rule": "keystoen"}, ValueError, "did you mean 'keystone'?"),
        ({"rule": 3}, TypeError, "rule=3: expected a name or a function"),
        ({"metric": "l3"}, ValueError, "l3"),
        ({"tua": 0.5}, TypeError, "did you mean 'tau'?"),
        ({"rule": "medoid", "tau": 0.5}, TypeError, "has no parameter 'tau'"),
        ({"clusters": 0}, ValueError, "clusters=0"),
    ],
)
def test_wrong_options(options: dict[str, Any], error: type[Exception], message: str) -> None:
    assert message in refusal(build("diffusion"), error, **options)


@pytest.mark.parametrize("name", ["pi05", "smolvla"])
def test_compiled_samplers(name: str) -> None:
    policy = build(name, compile_model=True)  # torch.compile is lazy: nothing is compiled before the first call
    assert "compile_model=False" in refusal(policy)
    assert "keystone.attach(policy, compile=True)" in refusal(policy)


@pytest.mark.parametrize(
    ("name", "overrides", "reason"),
    [
        ("wall_x", {"prediction_mode": "fast"}, "tokens"),
        ("molmoact2", {"inference_action_mode": "discrete"}, "tokens"),
    ],
)
def test_modes_that_decode_tokens(name: str, overrides: dict[str, Any], reason: str) -> None:
    policy = build(name)
    before = {key: getattr(policy.config, key) for key in overrides}
    vars(policy.config).update(overrides)
    try:
        assert reason in refusal(policy)
    finally:
        vars(policy.config).update(before)


@pytest.mark.parametrize("temperature", [-0.1, float("inf"), float("nan"), "warm"])
def test_a_temperature_that_is_no_factor_is_an_error(temperature):
    with pytest.raises(ValueError, match="temperature"):
        keystone.attach(torch.nn.Linear(2, 2), site="forward", temperature=temperature)


def test_k_may_change_between_rounds_but_not_to_nonsense():
    handle = keystone.attach(torch.nn.Linear(2, 2), site="forward")
    handle.k = 4
    assert handle.k == 4
    with pytest.raises(ValueError, match="k=0"):
        handle.k = 0
    assert handle.k == 4
