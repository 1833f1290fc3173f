"""openpi at its own commit: PyTorch and JAX, its own `Policy` and client. Needs openpi's environment."""

import logging
from unittest import mock

import numpy as np
import openpi_tiny as tiny
import pytest
import torch

import keystone_robotics as keystone
from keystone_robotics.sample.noise import initial_noise
from keystone_robotics.serve.model import Model
from keystone_robotics.serve.policy import ServedMessages
from keystone_robotics.serve.replica import Replica
from keystone_robotics.serve.scheduler import Limits
from keystone_robotics.serve.server import running
from keystone_robotics.serve.service import Service

K = 4


@pytest.fixture(scope="module", autouse=True)
def openpi(checkout):
    return checkout("openpi", "src")


@pytest.fixture(scope="module", params=["torch pi0", "torch pi05", "jax pi0", "jax pi05"])
def policy(request, openpi):
    framework, kind = request.param.split()
    build = tiny.torch_model if framework == "torch" else tiny.jax_model
    policy = tiny.libero_policy(build(pi05=kind == "pi05"), is_pytorch=framework == "torch")
    policy.label = request.param
    return policy


def act(policy):
    import jax

    torch.manual_seed(0)
    policy._rng = jax.random.key(5)
    return policy.infer(tiny.observation())["actions"]


def test_candidates_are_single_calls(policy, record):
    alone = act(policy)
    handle = keystone.attach(policy, k=1)
    np.testing.assert_array_equal(act(policy), alone)
    keystone.detach(policy)
    handle = keystone.attach(policy, k=K, seed=0, check="all")
    rounds = []
    handle.subscribe(rounds.append)
    reply = act(policy)
    assert handle.engine.finding.compared == K
    assert handle.path == ("fast" if policy._is_pytorch_model else "plain")
    record("openpi", policy.label, handle.engine.finding.difference)
    # Once more from outside, after normalisation and the cut to seven dimensions.
    noise = initial_noise(rounds[0].seeds, K, (tiny.HORIZON, tiny.ACTION_DIM)).numpy()
    singles = np.stack([policy.infer(tiny.observation(), noise=one)["actions"] for one in noise])
    assert singles.shape == (K, tiny.HORIZON, tiny.REAL_DIMS)
    assert np.abs(singles[rounds[0].selection.index.item()] - reply).max() < 1e-4
    assert handle.engine.selector.config.dims == tiny.REAL_DIMS
    keystone.detach(policy)
    np.testing.assert_array_equal(act(policy), alone)


def test_fewer_steps(policy, record, monkeypatch):
    handle = keystone.attach(policy, k=1, steps=2)
    one = act(policy)
    handle.k = K
    with handle.seeded(3):
        act(policy)
    record("openpi", f"{policy.label} steps=2", handle.engine.finding.difference)
    keystone.detach(policy)
    monkeypatch.setattr(policy, "_sample_kwargs", {**policy._sample_kwargs, "num_steps": 2})
    np.testing.assert_array_equal(act(policy), one)


def warmed_up(policy, **options):
    """The policy as `keystone serve` runs it, ready for requests."""
    replica = Replica(ServedMessages("openpi", policy), keystone.Spec(**options))
    replica.warm_up(Limits(least_k=options["k"]))
    return replica


def test_keystone_serve_and_openpis_client(openpi):
    from openpi_client.action_chunk_broker import ActionChunkBroker
    from openpi_client.websocket_client_policy import WebsocketClientPolicy

    replica = warmed_up(tiny.libero_policy(tiny.jax_model(pi05=True)), k=K, execute=5)
    with running(Service(Model(replica, Limits(least_k=K))), {"openpi": 0}) as ports:
        client = WebsocketClientPolicy("127.0.0.1", ports["openpi"])
        broker = ActionChunkBroker(client, action_horizon=5)
        steps = [broker.infer({**tiny.observation(), "keystone_seed": 1}) for _ in range(5)]
        again = client.infer({**tiny.observation(), "keystone_seed": 1})
    assert steps[0]["keystone"]["k"] == K
    assert sum(steps[0]["keystone"]["sizes"]) == K
    assert steps[4]["keystone"] == steps[0]["keystone"]
    np.testing.assert_array_equal(np.stack([step["actions"] for step in steps]), again["actions"][:5])
    assert "infer_ms" in again["server_timing"]


@pytest.mark.parametrize("k", [1, K])
def test_a_warm_up_compiles_all_that_a_request_needs_in_jax(k, caplog):
    import jax

    def compiled():
        return sum("XLA compilation" in line for line in caplog.messages)

    policy = tiny.libero_policy(tiny.jax_model(pi05=True))
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        replica = warmed_up(policy, k=k)
        assert compiled() > 0
        caplog.clear()
        with replica.handle.seeded([7]):  # as every request of a robot is
            policy.infer(tiny.observation())
        assert compiled() == 0


def test_bfloat16_is_allowed_the_rounding_it_has(record):
    for framework, build in (("torch", tiny.torch_model), ("jax", tiny.jax_model)):
        policy = tiny.libero_policy(build(pi05=True, dtype="bfloat16"), is_pytorch=framework == "torch")
        handle = keystone.attach(policy, k=K, seed=0)
        policy.infer(tiny.observation())
        assert handle.path == ("fast" if framework == "torch" else "plain")
        record("openpi", f"{framework} pi05 bfloat16", handle.engine.finding.difference)


@pytest.mark.parametrize("kind", ["pi0", "pi05"])
def test_the_plain_torch_path_is_exact_too(kind, record):
    policy = tiny.libero_policy(tiny.torch_model(pi05=kind == "pi05"), is_pytorch=True)
    handle = keystone.attach(policy, k=K, seed=0, check="all", fast=False)
    policy.infer(tiny.observation())
    keystone.detach(policy)
    record("openpi", f"torch {kind} plain path", handle.engine.finding.difference)


@pytest.mark.parametrize("kind", ["pi0", "pi05"])
def test_rows_with_prompts_of_different_lengths(kind, record):
    """On the model by itself: openpi's `Policy` takes one observation at a time."""
    model = tiny.torch_model(pi05=kind == "pi05")
    handle = keystone.attach(model, k=K, seed=0, check="all", space=keystone.ActionSpace(dims=tiny.REAL_DIMS))
    assert model.sample_actions("cpu", tiny.torch_batch(words=(8, 3, 1))).shape == (3, tiny.HORIZON, tiny.ACTION_DIM)
    keystone.detach(model)
    assert handle.path == "fast"
    record("openpi", f"torch {kind} (3 rows)", handle.engine.finding.difference)


def test_a_compiled_torch_sampler_is_compiled_once_per_k(record):
    """openpi compiles with inductor, which takes minutes here; dynamo, which reads the code, is the same."""
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    own = torch.compile
    with mock.patch.object(torch, "compile", lambda method, mode: own(method, backend=backend)):
        policy = tiny.libero_policy(tiny.torch_model(pytorch_compile_mode="max-autotune"), is_pytorch=True)
    handle = keystone.attach(policy, k=K, seed=0)
    policy.infer(tiny.observation())
    assert handle.path == "plain"
    record("openpi", "torch pi0 compiled", handle.engine.finding.difference)
    compiled = len(graphs)
    policy.infer(tiny.observation(1))
    assert len(graphs) == compiled > 0
    keystone.detach(policy)
    torch._dynamo.reset()
    graphs.clear()
    warmed_up(policy, k=K)
    compiled = len(graphs)
    policy.infer(tiny.observation())
    assert len(graphs) == compiled > 0


def test_the_fast_step_compiles_and_is_compiled_before_the_first_request(record):
    """With inductor, on the code as it is written."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    policy = tiny.libero_policy(tiny.torch_model(pi05=True), is_pytorch=True)
    handle = warmed_up(policy, k=K, seed=0, compile=True).handle
    compiled = counters["stats"]["unique_graphs"]
    for prompt in ("pick it", "go"):
        policy.infer({**tiny.observation(), "prompt": prompt})
    assert handle.path == "fast"
    assert counters["stats"]["unique_graphs"] == compiled > 0
    record("openpi", "torch pi05 compile=True", handle.engine.finding.difference)
    keystone.detach(policy)


def test_the_context_is_encoded_once_in_jax():
    import jax
    import jax.numpy as jnp

    policy = tiny.libero_policy(tiny.jax_model(pi05=True))
    caught = []
    with mock.patch.object(
        policy, "_sample_actions", lambda *args, **kwargs: caught.append(args) or jnp.zeros((1, 10, 32))
    ):
        policy.infer(tiny.observation())
    rng, observation = caught[0]
    sample = policy._sample_actions

    def flops(function, *shape):
        cost = jax.jit(function).lower(jnp.zeros(shape)).compile().cost_analysis()
        return (cost[0] if isinstance(cost, list) else cost)["flops"]

    one = flops(lambda noise: sample(rng, observation, noise=noise), 1, 10, 32)
    wide = flops(lambda noise: jax.vmap(lambda z: sample(rng, observation, noise=z))(noise), 8, 1, 10, 32)
    print(f"FLOPs of K = 8 to K = 1 (jax pi05, tiny): {wide / one:.2f}")
    assert wide / one < 2
