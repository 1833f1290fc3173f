"""``site=`` on a method in JAX, in an environment that has it: ``jax.vmap`` over the random key. Needs no checkout."""

from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import keystone_robotics as keystone  # noqa: E402
from keystone_robotics import KeystoneError  # noqa: E402


class Sampler:
    """Denoises in four steps, with noise at each."""

    def __init__(self) -> None:
        self.weights = jax.random.normal(jax.random.PRNGKey(0), (5, 2))

    def sample_actions(self, observation: Any, *, rng: Any, steps: int = 4) -> Any:
        first, rng = jax.random.split(rng)
        chunk = jax.random.normal(first, (len(observation), 6, 2))
        context = jax.numpy.repeat(observation[:, None], 6, 1)
        for key in jax.random.split(rng, steps):
            inputs = jax.numpy.concatenate([context, chunk], -1)
            chunk = chunk + jax.numpy.tanh(inputs @ self.weights) / steps + 0.1 * jax.random.normal(key, chunk.shape)
        return {"actions": chunk, "norm": jax.numpy.linalg.norm(chunk, axis=(1, 2))}


@pytest.mark.parametrize("kind", ["old", "new"])
@pytest.mark.parametrize("rows", [1, 3])
def test_candidates_are_single_calls(kind: str, rows: int) -> None:
    policy, key = Sampler(), jax.random.PRNGKey(1) if kind == "old" else jax.random.key(1)
    observation = jax.numpy.arange(rows * 3.0).reshape(rows, 3) / 9
    alone = policy.sample_actions(observation, rng=key)
    handle = keystone.attach(policy, k=8, seed=0, site="sample_actions", check="all", rule="medoid")
    events: list[Any] = []
    handle.subscribe(events.append)
    chosen = policy.sample_actions(observation, rng=key)
    assert handle.engine.finding.compared == 8
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


def test_one_candidate_uses_the_callers_key() -> None:
    policy, key, observation = Sampler(), jax.random.PRNGKey(1), jax.numpy.zeros((1, 3))
    alone = policy.sample_actions(observation, rng=key)["actions"]
    keystone.attach(policy, k=1, site="sample_actions")
    np.testing.assert_array_equal(policy.sample_actions(observation, rng=key)["actions"], alone)


def test_temperature_is_refused() -> None:
    policy = Sampler()
    keystone.attach(policy, k=4, site="sample_actions", temperature=0.5)
    with pytest.raises(KeystoneError, match="a method in JAX draws its noise itself"):
        policy.sample_actions(jax.numpy.zeros((1, 3)), rng=jax.random.PRNGKey(0))
