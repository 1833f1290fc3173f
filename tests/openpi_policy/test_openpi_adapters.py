"""K-wide sampling in openpi's policies, on models of our own with the same seams (the real ones: upstream/test_openpi.py)."""

import functools
import logging
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from openpi_client.action_chunk_broker import ActionChunkBroker
from openpi_toys import (
    ACTION_DIM,
    HORIZON,
    MODELS,
    REAL_DIMS,
    JaxModel,
    Policy,
    TokenModel,
    TorchModel,
    Unnormalise,
    cut,
    observation,
    rows,
)

import keystone_robotics as keystone
from keystone_robotics.sample.families import ADAPTERS
from keystone_robotics.sample.families.pi.openpi_policy import real_dims
from keystone_robotics.sample.noise import initial_noise
from upstream_like import drift


@pytest.fixture(params=MODELS)
def policy(request):
    return Policy(MODELS[request.param]())


def single_calls(policy, seeds, k, obs):
    """What K separate calls of the policy give for the noise of a round."""
    noise = initial_noise(seeds, k, (HORIZON, ACTION_DIM)).numpy()
    return np.stack([policy.infer(obs, noise=one)["actions"] for one in noise])


def test_candidates_are_single_calls_and_the_reply_is_one_of_them(policy):
    handle = keystone.attach(policy, k=16, seed=3, check="all")
    rounds = []
    handle.subscribe(rounds.append)
    reply = policy.infer(observation())["actions"]
    assert handle.engine.finding.compared == 16
    assert handle.engine.finding.difference < 1e-5
    expected = single_calls(policy, rounds[0].seeds, 16, observation())
    assert np.abs(rounds[0].candidates[0, :, :, :REAL_DIMS].numpy() - expected).max() < 1e-5
    np.testing.assert_array_equal(reply, rounds[0].candidates[0, rounds[0].selection.index.item(), :, :REAL_DIMS])
    assert len(np.unique(expected.round(4), axis=0)) == 16


def test_one_candidate_is_the_policy_itself_and_detaching_leaves_no_trace(policy):
    def act():
        torch.manual_seed(0)
        if not policy._is_pytorch_model:
            policy._rng = jax.random.key(5)
        return policy.infer(observation())["actions"]

    before, attributes = act(), {name: id(value) for name, value in vars(policy).items()}
    kinds = type(policy), type(policy._model)
    handle = keystone.attach(policy, k=1)
    np.testing.assert_array_equal(act(), before)
    assert handle.stats["rounds"] == 0
    handle.k = 4
    assert not np.array_equal(act(), before)
    keystone.detach(policy)
    np.testing.assert_array_equal(act(), before)
    assert (type(policy), type(policy._model)) == kinds
    assert set(vars(policy)) == set(attributes)
    assert id(policy._sample_actions) == attributes["_sample_actions"]


def test_the_callers_own_noise_goes_through_untouched(policy):
    noise = np.random.default_rng(0).normal(size=(HORIZON, ACTION_DIM)).astype(np.float32)
    before = policy.infer(observation(), noise=noise)["actions"]
    handle = keystone.attach(policy, k=8)
    np.testing.assert_array_equal(policy.infer(observation(), noise=noise)["actions"], before)
    assert handle.stats["rounds"] == 0


def test_seeds_repeat_rounds_and_kept_rounds_can_be_drawn_again(policy):
    handle = keystone.attach(policy, k=4, keep=3)
    rounds = []
    handle.subscribe(rounds.append)
    for _ in range(2):
        with handle.seeded(11):
            policy.infer(observation())
    policy.infer(observation())
    first, second, third = (one.candidates for one in rounds)
    assert torch.equal(first, second)
    assert not torch.equal(first, third)
    assert torch.equal(handle.replay(2), third)


def test_candidate_zero_does_not_depend_on_k(policy):
    handle = keystone.attach(policy, k=1)
    rounds = []
    handle.subscribe(rounds.append)
    for handle.k in (1, 4):
        with handle.seeded(2):
            policy.infer(observation())
    np.testing.assert_allclose(rounds[0].candidates[0, 0], rounds[1].candidates[0, 0], atol=1e-5)


@pytest.mark.parametrize("build", MODELS.values(), ids=list(MODELS))
def test_temperature_zero_and_options_of_the_policy_reach_the_sampler(build):
    rounds = []
    for steps in (2, 5):
        policy = Policy(build(), num_steps=steps)
        keystone.attach(policy, k=4, temperature=0.0, seed=0).subscribe(rounds.append)
        policy.infer(observation())
    few, many = (one.candidates for one in rounds)
    assert torch.allclose(few[:, 0], few[:, 3], atol=1e-6)
    assert not torch.allclose(few, many)


@pytest.mark.parametrize(
    ("build", "given"), zip(MODELS.values(), [{}, {"num_steps": 7}, {}], strict=True), ids=list(MODELS)
)
def test_steps_go_over_what_the_policy_passes(build, given):
    policy, twin = Policy(build(), **given), Policy(build(), num_steps=2)
    assert ADAPTERS[keystone.attach(policy, k=1, steps=2).adapter].default_steps(policy) == given.get("num_steps", 10)
    noise = np.ones((HORIZON, ACTION_DIM), np.float32)
    replies = [one.infer(observation(), noise=noise)["actions"] for one in (policy, twin)]
    np.testing.assert_array_equal(*replies)
    torch.manual_seed(0)
    one = policy.infer(observation())["actions"]
    torch.manual_seed(0)
    np.testing.assert_array_equal(one, twin.infer(observation())["actions"])
    keystone.detach(policy)
    assert policy._sample_kwargs == given
    rounds = []
    handle = keystone.attach(policy, k=4, seed=3, steps=2, check="all")
    handle.subscribe(rounds.append)
    policy.infer(observation())
    expected = single_calls(twin, rounds[0].seeds, 4, observation())
    assert np.abs(rounds[0].candidates[0, :, :, :REAL_DIMS].numpy() - expected).max() < 1e-5
    handle.steps = None
    with handle.seeded(rounds[0].seeds):
        policy.infer(observation())
    assert not torch.allclose(rounds[0].candidates, rounds[1].candidates)


@pytest.mark.parametrize("name", MODELS)
def test_rows_of_a_batch_are_chosen_for_separately(name):
    policy = Policy(MODELS[name]())
    handle = keystone.attach(policy, k=4, seed=0, check="all")
    batch = rows(3, torch.from_numpy if policy._is_pytorch_model else jax.numpy.asarray)
    chunk = policy._sample_actions("cpu" if policy._is_pytorch_model else jax.random.key(0), batch)
    assert chunk.shape == (3, HORIZON, ACTION_DIM)
    assert handle.last.index.shape == (3,)


def test_a_rule_that_looks_back_forgets_at_reset(policy):
    handle = keystone.attach(policy, k=4, rule="coherent", seed=0, execute=2)
    policy.infer(observation())
    assert handle.engine.selector.history is not None
    policy.reset()
    assert handle.engine.selector.history is None


# ---- what holds the policy, and what it holds


def test_a_method_that_takes_one_argument_more_is_said_in_words(policy):
    def predict():
        return torch.as_tensor(np.array(policy.infer(observation())["actions"]))

    used = drift.assert_called_methods(policy, "openpi_toys", predict)
    if policy._is_pytorch_model:
        assert "denoise_step" in used or "embed_suffix" in used


@pytest.mark.parametrize("model", [TorchModel, JaxModel])
def test_a_sampler_that_takes_one_argument_more_draws_the_same_or_says_so(model):
    class Drifted(model):
        @functools.wraps(model.sample_actions)
        def sample_actions(self, *args, drifted, **kwargs):
            return super().sample_actions(*args, **kwargs)

    rounds = []
    for policy in (Policy(Drifted(), drifted=1), Policy(model())):
        keystone.attach(policy, k=4, seed=0).subscribe(rounds.append)
        drift.assert_in_words(lambda policy=policy: policy.infer(observation()), "")
    drawn, expected = rounds
    assert torch.equal(drawn.candidates, expected.candidates)


def test_found_from_server_broker_and_recorder(policy):
    held = SimpleNamespace(_policy=SimpleNamespace(_policy=policy))
    handle = keystone.attach(held, k=4)
    assert handle.adapter == ("openpi" if policy._is_pytorch_model else "openpi-jax")
    keystone.detach(held)
    broker = ActionChunkBroker(policy, action_horizon=2)
    handle = keystone.attach(broker, k=4)
    assert broker.infer(observation())["actions"].shape == (REAL_DIMS,)
    assert handle.stats["rounds"] == 1
    assert keystone.attached(policy) == handle


def test_a_torch_model_alone_needs_to_be_told_the_real_dimensions():
    model = TorchModel()
    with pytest.raises(keystone.KeystoneError, match=r"Missing: dims.*ActionSpace"):
        keystone.attach(model, k=4)
    assert type(model) is TorchModel
    handle = keystone.attach(model, k=4, space=keystone.ActionSpace(dims=REAL_DIMS))
    assert model.sample_actions("cpu", rows(1, torch.from_numpy)).shape == (1, HORIZON, ACTION_DIM)
    assert handle.stats["rounds"] == 1


def test_a_jax_model_alone_and_one_without_noise_are_refused():
    with pytest.raises(keystone.KeystoneError, match="attach to the openpi Policy"):
        keystone.attach(JaxModel(), k=4)
    with pytest.raises(keystone.KeystoneError, match="TokenModel takes no noise"):
        keystone.attach(Policy(TokenModel()), k=4)


# ---- which dimensions count


@pytest.mark.parametrize(
    ("outputs", "expected"),
    [
        ((cut,), REAL_DIMS),
        ((Unnormalise(np.ones(5)),), 5),
        ((Unnormalise([1.0] * 5 + [0.0] * 7),), 5),  # statistics that were made after padding
        ((Unnormalise(np.ones(ACTION_DIM)), cut), REAL_DIMS),
        ((Unnormalise(np.ones(5)), cut), 5),
        ((Unnormalise(np.ones(ACTION_DIM)),), ACTION_DIM),
        ((), None),
        ((lambda data: data["images"],), None),  # wants more than can be made up
    ],
)
def test_real_dimensions_come_from_transforms_and_statistics(outputs, expected):
    assert real_dims(Policy(JaxModel(), outputs), HORIZON, ACTION_DIM) == expected


@given(st.permutations(range(8)), st.integers(1, 8), st.floats(-3, 3), st.floats(0.1, 3))
def test_real_dimensions_survive_any_order_shift_and_scale(order, count, shift, scale):
    taken = order[:count]
    policy = SimpleNamespace(_output_transform=lambda data: {"actions": scale * data["actions"][:, taken] + shift})
    found = real_dims(policy, 4, 12)
    assert found == max(taken) + 1


def test_unknown_dimensions_are_an_error_that_says_what_to_give():
    policy = Policy(JaxModel(), outputs=())
    with pytest.raises(keystone.KeystoneError, match=r"openpi-jax.*space=keystone\.ActionSpace\(dims"):
        keystone.attach(policy, k=4)
    keystone.attach(policy, k=4, space=keystone.ActionSpace(dims=3)).subscribe(lambda one: None)
    policy.infer(observation())


def test_padding_does_not_vote():
    """Candidates whose padding differs by much more than their real dimensions: the real ones decide."""
    loud = np.ones(ACTION_DIM, np.float32)
    loud[REAL_DIMS:] = 100.0
    policy = Policy(JaxModel())
    policy._model.weights["leave"] = policy._model.weights["leave"] * loud
    policy = Policy(policy._model)
    handle = keystone.attach(policy, k=16, rule="medoid", seed=0)
    rounds = []
    handle.subscribe(rounds.append)
    policy.infer(observation())
    candidates = rounds[0].candidates[0]
    assert rounds[0].selection.index.item() == keystone.select(candidates[..., :REAL_DIMS], "medoid").index
    assert rounds[0].selection.index.item() != keystone.select(candidates, "medoid").index


def test_executed_steps_may_be_given_alone():
    policy = Policy(JaxModel())
    handle = keystone.attach(policy, k=16, rule="medoid", seed=0, space=keystone.ActionSpace(steps=2))
    rounds = []
    handle.subscribe(rounds.append)
    policy.infer(observation())
    expected = keystone.select(rounds[0].candidates[0, :, :2, :REAL_DIMS], "medoid")
    assert rounds[0].selection.index.item() == expected.index


# ---- compiled samplers


def test_a_compiled_torch_sampler_stays_compiled_and_compiles_once_per_k():
    graphs = []

    def backend(graph, inputs):
        graphs.append(inputs)
        return graph.forward

    torch._dynamo.reset()
    model = TorchModel(compiled=lambda method: torch.compile(method, backend=backend, dynamic=False))
    policy = Policy(model, num_steps=2)
    compiled = policy._sample_actions
    handle = keystone.attach(policy, k=4, seed=0, check="all")
    policy.infer(observation())
    assert handle.engine.finding.difference < 1e-5
    assert handle.path == "plain"
    after_first = len(graphs)
    assert after_first > 0
    policy.infer(observation(1))
    assert len(graphs) == after_first
    handle.k = 8
    policy.infer(observation())
    after_second = len(graphs)
    assert after_second > after_first
    handle.k = 4
    policy.infer(observation())
    assert len(graphs) == after_second
    keystone.detach(policy)
    assert policy._sample_actions is compiled
    assert policy.infer(observation())["actions"].shape == (HORIZON, REAL_DIMS)


def test_the_jax_sampler_is_traced_once_and_compiled_once_per_k(caplog):
    policy = Policy(JaxModel())
    handle = keystone.attach(policy, k=4, seed=0, check=False)
    JaxModel.traced = 0
    compilations = []
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        for handle.k in (4, 4, 8, 4, 8):
            caplog.clear()
            policy.infer(observation())
            compilations.append(sum("XLA compilation of jit(run)" in line for line in caplog.messages))
    assert compilations == [1, 0, 1, 0, 0]
    assert JaxModel.traced == 1


def test_bfloat16_in_jax_is_allowed_the_rounding_it_has():
    policy = Policy(JaxModel(dtype="bfloat16"))
    handle = keystone.attach(policy, k=8, seed=0, check="all")
    policy.infer(observation())
    assert handle.engine.finding.problem == ""


def test_a_jax_sampler_that_does_not_heed_its_noise_is_found_out():
    policy = Policy(JaxModel())
    policy._sample_actions = lambda rng, observation, *, noise: noise * 0
    keystone.attach(policy, k=4, seed=0)
    with pytest.raises(keystone.KeystoneError, match="all candidates are equal"):
        policy.infer(observation())


def test_jax_out_of_memory_halves_k(caplog):
    policy = Policy(JaxModel())
    own = policy._sample_actions

    def small_device(rng, observation, *, noise):
        width = getattr(noise, "batch_dim", None)
        if width is not None and noise.val.shape[0] > 4:
            raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1 bytes")
        return own(rng, observation, noise=noise)

    policy._sample_actions = small_device
    handle = keystone.attach(policy, k=16, seed=0)
    with caplog.at_level(logging.WARNING, "keystone"):
        policy.infer(observation())
    assert handle.last.labels.shape == (1, 4)
    assert "out of memory at K=16" in caplog.text


def test_other_errors_of_jax_are_not_taken_for_lack_of_memory():
    policy = Policy(JaxModel())

    def broken(rng, observation, *, noise=None):
        raise RuntimeError("INTERNAL: something else")

    policy._sample_actions = broken
    keystone.attach(policy, k=4, seed=0)
    with pytest.raises(RuntimeError, match="INTERNAL"):
        policy.infer(observation())
