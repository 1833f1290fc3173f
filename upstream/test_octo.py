"""Octo's own diffusion head in JAX, which has no adapter: ``site=`` on a jitted method, as its model samples."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkouts import without

import keystone_robotics as keystone

NAME, HORIZON, DIMS, WIDTH = "octo", 4, 7, 16


@pytest.fixture(scope="module")
def head(checkout: Callable[..., Path]) -> Any:
    """The head and its variables."""
    checkout(NAME)
    without("distrax")
    import jax

    jax.random.KeyArray = jax.Array  # its name until JAX 0.4.24; a type hint
    from octo.model.components.action_heads import DiffusionActionHead

    head = DiffusionActionHead("readout", action_horizon=HORIZON, action_dim=DIMS, hidden_dim=32)
    return head, head.init(jax.random.key(0), tokens(1), train=False)


def tokens(rows: int) -> Any:
    import jax
    from octo.model.components.base import TokenGroup

    return {"readout": TokenGroup.create(jax.random.normal(jax.random.key(rows), (rows, 2, 3, WIDTH)))}


class Policy:
    def __init__(self, head: Any) -> None:
        import jax

        module, variables = head
        self.sample_actions = jax.jit(
            functools.partial(module.apply, variables, train=False, embodiment_action_dim=DIMS, method="predict_action")
        )


@pytest.mark.parametrize(("rows", "k"), [(1, 4), (1, 16), (3, 4)])
def test_candidates_are_single_calls(head: Any, record: Callable[..., None], rows: int, k: int) -> None:
    import jax

    policy, key = Policy(head), jax.random.PRNGKey(1)
    alone = policy.sample_actions(tokens(rows), rng=key)
    handle = keystone.attach(policy, k=k, seed=0, site="sample_actions", check="all")
    chunk = policy.sample_actions(tokens(rows), rng=key)
    assert chunk.shape == (rows, HORIZON, DIMS)
    finding = handle.engine.finding
    assert finding.compared == k
    record(NAME, "candidates", finding.difference)
    assert finding.difference < 1e-4
    keystone.detach(policy)
    np.testing.assert_array_equal(policy.sample_actions(tokens(rows), rng=key), alone)
