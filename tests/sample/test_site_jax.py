"""``site=`` on a method in JAX: ``jax.vmap`` over the random key, checked as a method in torch is."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import keystone_robotics as keystone
from keystone_robotics import KeystoneError


class Sampler:
    """Denoises in two steps, with noise at each."""

    def __init__(self) -> None:
        self.weights = jax.random.normal(jax.random.PRNGKey(0), (5, 2))
        self.calls = 0

    def sample_actions(self, observation: Any, *, rng: Any, steps: int = 2) -> Any:
        self.calls += 1
        first, rng = jax.random.split(rng)
        chunk = jax.random.normal(first, (len(observation), 6, 2))
        context = jax.numpy.repeat(observation[:, None], 6, 1)
        for key in jax.random.split(rng, steps):
            inputs = jax.numpy.concatenate([context, chunk], -1)
            chunk = chunk + jax.numpy.tanh(inputs @ self.weights) / steps + 0.1 * jax.random.normal(key, chunk.shape)
        return {"actions": chunk, "norm": jax.numpy.linalg.norm(chunk, axis=(1, 2))}


@pytest.mark.parametrize(("kind", "rows"), [("old", 1), ("new", 3)])
def test_candidates_are_single_calls(kind: str, rows: int) -> None:
    policy, key = Sampler(), jax.random.PRNGKey(1) if kind == "old" else jax.random.key(1)
    observation = jax.numpy.arange(rows * 3.0).reshape(rows, 3) / 9
    alone = policy.sample_actions(observation, rng=key)
    handle = keystone.attach(policy, k=4, seed=0, site="sample_actions", check="all", rule="medoid")
    events: list[Any] = []
    handle.subscribe(events.append)
    chosen = policy.sample_actions(observation, rng=key)
    assert handle.engine.finding.compared == 4
    assert handle.engine.finding.difference < 1e-5
    expected = events[0].candidates.numpy()[range(rows), events[0].selection.index]
    np.testing.assert_array_equal(chosen["actions"], expected)
    np.testing.assert_allclose(chosen["norm"], np.linalg.norm(expected, axis=(1, 2)), rtol=1e-5)
    keystone.detach(policy)
    keystone.attach(policy, k=3, seed=0, site="sample_actions").subscribe(events.append)
    policy.sample_actions(observation, rng=key)
    np.testing.assert_allclose(events[1].candidates, events[0].candidates[:, :3], atol=1e-6)
    keystone.detach(policy)
    np.testing.assert_array_equal(policy.sample_actions(observation, rng=key)["actions"], alone["actions"])


class Jitted:
    def __init__(self) -> None:
        own = Sampler()
        self.sample_actions = jax.jit(lambda observation, rng: own.sample_actions(observation, rng=rng))


def test_a_method_that_is_jitted_on_the_object() -> None:
    policy, key, observation = Jitted(), jax.random.PRNGKey(1), jax.numpy.ones((1, 3))
    alone = policy.sample_actions(observation, key)["actions"]
    handle = keystone.attach(policy, k=4, site="sample_actions", chunk="actions")
    policy.sample_actions(observation, key)
    assert handle.engine.finding.difference < 1e-5
    keystone.detach(policy)
    np.testing.assert_array_equal(policy.sample_actions(observation, key)["actions"], alone)


def test_one_candidate_uses_the_callers_key() -> None:
    policy, key, observation = Sampler(), jax.random.PRNGKey(1), jax.numpy.zeros((1, 3))
    alone = policy.sample_actions(observation, rng=key)["actions"]
    keystone.attach(policy, k=1, site="sample_actions")
    np.testing.assert_array_equal(policy.sample_actions(observation, rng=key)["actions"], alone)


class Sized:
    """Draws from its second argument; the first, the size of an image, looks like a key of the old kind."""

    def act(self, size: Any, rng: Any) -> Any:
        return jax.random.normal(rng, (1, 4, 2)) + size.sum()

    def act_unnamed(self, size: Any, seed: Any) -> Any:
        return self.act(size, seed)

    def act_nested(self, batch: Any, *, rngs: Any) -> Any:
        return self.act(batch["size"], rngs["sample"]) + 0 * jax.random.normal(rngs["dropout"])

    def act_each(self, keys: Any) -> Any:
        return jax.vmap(lambda key: jax.random.normal(key, (4, 2)))(keys)


@pytest.mark.parametrize("make", [jax.random.PRNGKey, jax.random.key])
@pytest.mark.parametrize("nested", [False, True])
def test_two_uint32_beside_the_key_are_no_key(make: Callable[[int], Any], nested: bool) -> None:
    policy, size = Sized(), jax.numpy.array([224, 224], jax.numpy.uint32)
    handle = keystone.attach(policy, k=4, site="act_nested" if nested else "act", check="all")
    if nested:
        chunk = policy.act_nested({"size": size}, rngs={"dropout": make(1), "sample": make(0)})
    else:
        chunk = policy.act(size, make(0))
    assert handle.engine.finding.compared == 4
    np.testing.assert_allclose(chunk, 448, atol=10)


def test_a_key_that_cannot_be_told_is_refused() -> None:
    policy, size = Sized(), jax.numpy.array([224, 224], jax.numpy.uint32)
    keystone.attach(policy, k=4, site="act_unnamed")
    with pytest.raises(KeystoneError, match="name the one that is key, rng or rngs"):
        policy.act_unnamed(size, jax.random.PRNGKey(0))
    np.testing.assert_allclose(policy.act_unnamed(size, jax.random.key(0)), 448, atol=10)


def test_a_method_without_a_key_is_refused() -> None:
    policy = Sized()
    keystone.attach(policy, k=4, site="act_each")
    with pytest.raises(KeystoneError, match="no single random key is among its arguments"):
        policy.act_each(jax.random.split(jax.random.key(0), 2))


class Stepped(Sampler):
    """Returns the key that it drew with, as samplers return the next one, and a key that it was not given."""

    def act(self, observation: Any, rng: Any) -> Any:
        rng = jax.random.fold_in(rng, 5)
        return self.sample_actions(observation, rng=rng)["actions"], rng, jax.random.key(7)


@pytest.mark.parametrize("make", [jax.random.PRNGKey, jax.random.key])
@pytest.mark.parametrize("k", [1, 4])
def test_a_returned_key_is_that_of_the_selected_candidate(make: Callable[[int], Any], k: int) -> None:
    policy, key = Stepped(), make(1)
    keystone.attach(policy, k=k, site="act", seed=0, rule="medoid")
    observation = jax.numpy.ones((2, 3)) / 9  # as many rows as a key of the old kind has numbers
    chunk, returned, other = policy.act(observation, key)
    assert (returned.dtype, returned.shape) == (key.dtype, key.shape)
    assert other == jax.random.key(7)
    keystone.detach(policy)
    alone = policy.sample_actions(observation, rng=returned)["actions"]
    np.testing.assert_allclose(chunk[0], alone[0], atol=1e-5)


@pytest.mark.parametrize("rule", ["medoid", "mean"])
def test_results_have_the_methods_own_types(rule: str) -> None:
    policy = Spoilt(
        lambda _, chunk: (chunk.astype("bfloat16"), chunk.max().astype("bfloat16"), jax.numpy.ones(3, "bfloat16"))
    )
    keystone.attach(policy, k=4, seed=0, site="sample_actions", rule=rule)
    found = policy.sample_actions(jax.numpy.zeros((1, 3)), rng=jax.random.key(0))
    assert [value.dtype for value in found] == ["bfloat16"] * 3


def test_temperature_is_refused() -> None:
    policy = Sampler()
    keystone.attach(policy, k=4, site="sample_actions", temperature=0.5)
    with pytest.raises(KeystoneError, match="a method in JAX draws its noise itself"):
        policy.sample_actions(jax.numpy.zeros((1, 3)), rng=jax.random.PRNGKey(0))


class Spoilt(Sampler):
    """Does something with its sample before it returns it."""

    def __init__(self, spoil: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.last, self.queue, self.spoil = jax.numpy.zeros(()), [0], spoil

    def sample_actions(self, observation: Any, *, rng: Any, steps: int = 2) -> Any:
        return self.spoil(self, super().sample_actions(observation, rng=rng, steps=steps)["actions"])


def refused(policy: Sampler) -> str:
    """The message, of one line, with which a round is refused."""
    keystone.attach(policy, k=4, seed=0, site="sample_actions")
    with pytest.raises(KeystoneError) as caught:
        policy.sample_actions(jax.numpy.zeros((1, 3)), rng=jax.random.PRNGKey(0))
    keystone.detach(policy)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def _assign(_: Any, chunk: Any) -> Any:
    out = np.zeros((1, 6, 2))
    out[:] = chunk
    return out


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda _, chunk: chunk * float(chunk.max()), "float(), int(), .item()"),
        (lambda _, chunk: chunk if chunk.sum() > 0 else -chunk, "jax.numpy.where or jax.lax.cond"),
        (lambda _, chunk: np.clip(chunk, -1, 1), "use jax.numpy, return the array"),
        (_assign, "use jax.numpy, return the array"),
        (lambda _, chunk: chunk * (1.0, 2.0)[chunk.sum().argmax()], "use jax.numpy.take"),
        (lambda _, chunk: chunk[chunk > 0], "a shape in it depends on the random key"),
    ],
)
def test_what_cannot_be_vectorised_is_said_in_one_line(spoil: Any, reason: str) -> None:
    message = refused(Spoilt(spoil))
    assert message.startswith("the method cannot be vectorised over its noise: ")
    assert reason in message
    assert "docs/adapters.md" in message


def _stores(policy: Any, chunk: Any) -> Any:
    policy.last = chunk
    return chunk


def _appends(policy: Any, chunk: Any) -> Any:
    policy.queue.append({"chunk": chunk})
    return chunk


@pytest.mark.parametrize(("spoil", "where"), [(_stores, "last"), (_appends, "queue[1].chunk")])
def test_a_method_that_stores_its_sample_is_refused_with_the_name(spoil: Any, where: str) -> None:
    policy = Spoilt(spoil)
    assert f"stores a tensor that depends on the noise in {where}, " in refused(policy)
    assert policy.last.shape == ()
    assert policy.queue == [0]


def test_the_self_check_leaves_state_as_one_call_does() -> None:
    policy = Sampler()
    keystone.attach(policy, k=4, site="sample_actions")
    for _ in range(2):
        policy.sample_actions(jax.numpy.zeros((1, 3)), rng=jax.random.PRNGKey(0))
    assert policy.calls == 2


def test_state_of_another_shape_is_refused_with_the_name() -> None:
    def remember(policy: Any, chunk: Any) -> Any:
        policy.last = jax.numpy.zeros(2 if isinstance(chunk, jax.core.Tracer) else 1)
        return chunk

    assert "last has shape (2,), and (1,) after a single call" in refused(Spoilt(remember))


def test_an_error_of_the_method_itself_stays_its_own() -> None:
    policy = Sampler()
    keystone.attach(policy, k=4, site="sample_actions")
    with pytest.raises(TypeError, match="dot_general"):
        policy.sample_actions(jax.numpy.zeros((1, 4)), rng=jax.random.PRNGKey(0))


def test_values_that_do_not_depend_on_the_key_are_returned_as_they_are() -> None:
    policy = Spoilt(lambda _, chunk: {"actions": chunk, "steps": 4, "name": "x", "mean": jax.numpy.ones(2)})
    keystone.attach(policy, k=4, site="sample_actions", chunk="actions")
    found = policy.sample_actions(jax.numpy.zeros((1, 3)), rng=jax.random.PRNGKey(0))
    assert (found["steps"], found["name"], found["mean"].tolist()) == (4, "x", [1, 1])
    assert isinstance(found["mean"], jax.Array)


@pytest.mark.parametrize(
    "prepare", [lambda values: values / float(values.max()), lambda values: values[values > 0].reshape(1, 3)]
)
def test_python_may_decide_by_the_observation(prepare: Callable[[Any], Any]) -> None:
    class Prepared(Sampler):
        def sample_actions(self, observation: Any, *, rng: Any, steps: int = 2) -> Any:
            return super().sample_actions(prepare(observation), rng=rng)

    policy = Prepared()
    handle = keystone.attach(policy, k=4, site="sample_actions")
    policy.sample_actions(jax.numpy.ones((1, 3)), rng=jax.random.PRNGKey(0))
    assert handle.engine.finding.difference < 1e-5


def test_fewer_candidates_are_drawn_where_memory_is_exhausted() -> None:
    def exhaust(policy: Any, chunk: Any) -> Any:
        if policy.calls == 1:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 17179869184 bytes.")
        return chunk

    policy, events = Spoilt(exhaust), list[Any]()
    keystone.attach(policy, k=4, site="sample_actions").subscribe(events.append)
    policy.sample_actions(jax.numpy.zeros((1, 3)), rng=jax.random.PRNGKey(0))
    assert events[0].candidates.shape[1] == 2
