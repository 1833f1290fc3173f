"""What openpi's policies cost: where the time goes, and which profile holds for which policy."""

from types import SimpleNamespace

import jax
import pytest
import torch
from keystone_robotics.profiling.phases import DENOISE, ENCODE, OTHER, SELECT, Watch
from openpi_toys import MODELS, REAL_DIMS, JaxModel, Policy, TorchModel, observation, rows

import keystone_robotics as keystone
from keystone_robotics.profiling.auto import FirstRound
from keystone_robotics.profiling.fingerprint import describe_device, fingerprint_architecture
from keystone_robotics.profiling.subject import device_of, rows_of


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
def test_a_stored_profile_is_found_by_an_automatic_k(model, tmp_path, monkeypatch):
    policy = Policy(MODELS[model]())
    found = keystone.profile(policy, observation(), k=[2], rounds=5, tolerance=1e6, profiles=tmp_path)
    assert ([cost.k for cost in found.costs], found.batch) == ([1, 2], 1)
    monkeypatch.setattr(FirstRound, "_measure", lambda *args: pytest.fail("measured again"))
    handle = keystone.attach(policy, k="auto", profiles=tmp_path)
    policy.infer(observation())
    assert handle.k == 2


def test_rows_of_a_model_by_itself():
    model = TorchModel()
    handle = keystone.attach(model, k=4, space=keystone.ActionSpace(dims=REAL_DIMS))
    assert rows_of(handle, rows(3, torch.from_numpy)) == 3


def test_the_device_is_that_of_the_model_which_a_policy_holds():
    policy = Policy(TorchModel())
    handle = keystone.attach(policy, k=4)
    policy._model.to("meta")
    assert device_of(handle, observation()) == torch.device("meta")


def fingerprint(policy):
    handle = keystone.attach(policy, k=4)
    return fingerprint_architecture(handle, torch.device("cpu"), 1)


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
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(device_kind="another", platform="gpu")])
    assert fingerprint(Policy(JaxModel(), num_steps=10)) not in here


def test_a_profile_names_the_device_that_jax_computes_on(monkeypatch, tmp_path):
    handle, host = keystone.attach(Policy(JaxModel()), k=4), torch.device("cpu")
    torch_handle = keystone.attach(Policy(TorchModel()), k=4)
    assert describe_device(host, handle) == describe_device(host, torch_handle)
    assert describe_device(host, handle).endswith("threads (cpu)")
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(device_kind="NVIDIA L4", platform="gpu")])
    assert describe_device(host, handle) == "NVIDIA L4 (gpu, JAX)"
    assert describe_device(host, torch_handle).endswith("threads (cpu)")
    found = keystone.profile(Policy(JaxModel()), observation(), k=[2], rounds=1, profiles=tmp_path)
    assert found.device == "NVIDIA L4 (gpu, JAX)"
