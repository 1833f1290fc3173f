"""The tiny policies are worth testing against: they see, they are stochastic and they can be repeated."""

import functools

import pytest
import torch
from lerobot.policies.pretrained import PreTrainedPolicy
from torch import Tensor

from . import POLICIES, Batch
from .common import seeded

VISIBLE = 1e-2
"""A change in the output far above the tolerance of any equality test."""


@functools.cache
def built(name: str) -> PreTrainedPolicy:
    """Each policy is built once for all tests of this file."""
    return POLICIES[name].build()


def predict(name: str, batch: Batch, seed: int = 0) -> Tensor:
    """A chunk with torch's generator at `seed`."""
    with seeded(seed):
        return POLICIES[name].predict(built(name), batch)


def distance(first: Tensor, second: Tensor) -> float:
    """The largest difference of any action component."""
    return (first - second).abs().max().item()


@pytest.mark.parametrize("name", POLICIES)
def test_chunk_is_finite_and_shaped(name: str) -> None:
    recipe = POLICIES[name]
    for size in recipe.batch_sizes:
        chunk = predict(name, recipe.batch(size))
        assert chunk.shape == (size, *recipe.chunk_shape)
        assert chunk.isfinite().all()


@pytest.mark.parametrize("name", POLICIES)
def test_observation_moves_the_chunk(name: str) -> None:
    recipe = POLICIES[name]
    assert distance(predict(name, recipe.batch(seed=0)), predict(name, recipe.batch(seed=1))) > VISIBLE


@pytest.mark.parametrize("name", POLICIES)
def test_same_seed_repeats_the_chunk(name: str) -> None:
    batch = POLICIES[name].batch()
    assert torch.equal(predict(name, batch, seed=0), predict(name, batch, seed=0))


@pytest.mark.parametrize("name", POLICIES)
def test_another_seed_moves_only_stochastic_policies(name: str) -> None:
    recipe = POLICIES[name]
    moved = distance(predict(name, recipe.batch(), seed=0), predict(name, recipe.batch(), seed=1))
    assert (moved > VISIBLE) == recipe.stochastic


@pytest.mark.parametrize("name", POLICIES)
def test_building_again_gives_the_same_policy(name: str) -> None:
    recipe = POLICIES[name]
    state = torch.get_rng_state()
    again = recipe.build()
    assert torch.equal(torch.get_rng_state(), state)
    for key, value in built(name).state_dict().items():
        assert torch.equal(again.state_dict()[key], value), key


@pytest.mark.parametrize("name", POLICIES)
def test_row_is_a_batch_of_one(name: str) -> None:
    recipe = POLICIES[name]
    size = max(recipe.batch_sizes)
    batch = recipe.batch(size)
    alone = predict(name, recipe.row(batch, 0))
    assert alone.shape == (1, *recipe.chunk_shape)
    if not recipe.stochastic:
        assert distance(alone, predict(name, batch)[:1]) < 1e-5


@pytest.mark.parametrize("name", POLICIES)
def test_select_action_runs_twice(name: str) -> None:
    policy = built(name)
    policy.reset()
    for seed in range(2):
        action = policy.select_action(POLICIES[name].batch(seed=seed))
        assert action.isfinite().all()
    policy.reset()
