"""What openpi's policies cost: where the time goes, and which profile holds for which policy."""

from types import SimpleNamespace

import jax
import pytest
import torch
from openpi_toys import MODELS, JaxModel, Policy, TorchModel, observation

import keystone
from keystone.profiling.fingerprint import fingerprint_policy
from keystone.profiling.phases import DENOISE, ENCODE, OTHER, SELECT, Watch


class Phases:
    """A clock that only notes the phases, in order."""

    def start(self, phase):
        self.order = [phase]

    def switch(self, phase):
        if phase != self.order[-1]:
            self.order.append(phase)

    def stop(self):
        return {}


@pytest.mark.parametrize(("k", "expected"), [(4, [ENCODE, DENOISE, SELECT, OTHER]), (1, [ENCODE, DENOISE, OTHER])])
@pytest.mark.parametrize("model", MODELS)
def test_a_round_goes_through_the_phases_in_order(model, k, expected, monkeypatch):
    clock, seen = Phases(), []
    for name in ("embed_prefix", "denoise_step"):
        own = getattr(TorchModel, name)

        def noting(self, *args, own=own, name=name):
            seen.append((name, clock.order[-1]))
            return own(self, *args)

        monkeypatch.setattr(TorchModel, name, noting)
    policy = Policy(MODELS[model]())
    handle = keystone.attach(policy, k=k, check=False)
    before = type(policy), type(policy._model), set(vars(policy)), set(vars(policy._model))
    watch = Watch(handle, clock)
    with watch.watching():
        watch.begin()
        policy.infer(observation())
        watch.end()
    assert clock.order == expected
    assert (watch.reached, watch.drawn, watch.mixed) == (True, k if k > 1 else None, False)
    if model != "jax":  # whose encoder is inside what is compiled
        assert ("embed_prefix", ENCODE) in seen
        assert k > 1 or ("denoise_step", DENOISE) in seen
        assert {("embed_prefix", DENOISE), ("denoise_step", ENCODE)}.isdisjoint(seen)
    assert (type(policy), type(policy._model), set(vars(policy)), set(vars(policy._model))) == before


def test_a_compiled_sampler_is_not_compiled_again_to_be_watched():
    compiled = []

    def compiler(method):
        compiled.append(method)
        return lambda *args, **kwargs: method(*args, **kwargs)

    policy = Policy(TorchModel(compiled=compiler))
    handle = keystone.attach(policy, k=4, check=False)
    with Watch(handle, Phases()).watching():
        assert "denoise_step" not in vars(policy._model)


@pytest.mark.parametrize("model", MODELS)
def test_profile(model, tmp_path):
    policy = Policy(MODELS[model]())
    found = keystone.profile(policy, observation(), k=[2], rounds=2, call=policy.infer, profiles=tmp_path)
    assert [cost.k for cost in found.costs] == [1, 2]


def fingerprint(policy):
    handle = keystone.attach(policy, k=4)
    return fingerprint_policy(handle, torch.device("cpu"), 1)


def test_a_profile_holds_for_the_same_steps_weights_and_device(monkeypatch):
    def all_of_them():
        return [
            fingerprint(policy)
            for policy in (
                Policy(TorchModel(), num_steps=10), Policy(TorchModel(), num_steps=50),
                Policy(JaxModel(), num_steps=10), Policy(JaxModel(), num_steps=50), Policy(JaxModel("bfloat16"), num_steps=10),
            )
        ]  # fmt: skip

    here = all_of_them()
    assert len(set(here)) == 5
    assert all_of_them() == here
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(device_kind="another")])
    assert fingerprint(Policy(JaxModel(), num_steps=10)) not in here
