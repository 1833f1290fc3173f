"""What openpi's policies cost: where the time goes, and which profile holds for which policy."""

from types import SimpleNamespace

import jax
import pytest
import torch
from openpi_toys import MODELS, REAL_DIMS, JaxModel, Policy, TorchModel, observation, rows

import keystone_robotics as keystone
from keystone_robotics.profiling.auto import AutoK
from keystone_robotics.profiling.fingerprint import describe_device, fingerprint_architecture
from keystone_robotics.profiling.subject import device_of, rows_of
from keystone_robotics.sample.timer import Mark


@pytest.mark.parametrize("k", [4, 1])
@pytest.mark.parametrize("model", MODELS)
def test_encoder_and_steps_are_told_apart(model, k, monkeypatch):
    """By a clock that only the encoder and the steps move."""
    seconds = [0]
    monkeypatch.setattr(Mark, "now", classmethod(lambda cls: cls(seconds[0], None)))
    for name, taken in (("embed_prefix", 100), ("denoise_step", 1)):
        own = getattr(TorchModel, name)

        def slow(self, *args, own=own, taken=taken):
            seconds[0] += taken
            return own(self, *args)

        monkeypatch.setattr(TorchModel, name, slow)
    policy, events = Policy(MODELS[model]()), []
    handle = keystone.attach(policy, k=k, check=False)
    handle.subscribe(events.append)
    policy.infer(observation())
    (event,) = events
    assert (event.k, event.path, event.times.mixed) == (k, "plain" if k > 1 else "own", False)
    if model == "jax":  # whose encoder is inside what is compiled
        assert event.times.encode == event.times.encode_inside
    else:
        assert event.times.encode == 100
        assert event.times.sample == (0 if k > 1 else 10)  # packed, the steps are the override's own code
    keystone.detach(policy)
    assert not {"_keystone", "embed_prefix", "denoise_step"} & set(vars(policy._model))


def test_a_compiled_sampler_is_not_compiled_again_to_be_watched():
    policy = Policy(TorchModel(compiled=lambda method: lambda *args, **kwargs: method(*args, **kwargs)))
    compiled = vars(policy._model)["sample_actions"]
    keystone.attach(policy, k=4, check=False)
    assert vars(policy._model)["sample_actions"] is compiled
    assert "denoise_step" not in vars(policy._model)


@pytest.mark.parametrize("model", MODELS)
def test_a_stored_profile_is_found_by_an_automatic_k(model, tmp_path, monkeypatch):
    policy = Policy(MODELS[model]())
    found = keystone.profile(policy, observation(), k=[2], rounds=5, tolerance=1e6, profiles=tmp_path)
    assert ([cost.k for cost in found.costs], found.batch) == ([1, 2], 1)
    monkeypatch.setattr(AutoK, "_measure", lambda *args: pytest.fail("measured again"))
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
