"""The tiny policies are worth testing against: they see, they are stochastic and they can be repeated."""

import pytest
import torch
from torch import Tensor

from . import POLICIES, Batch
from .common import seeded

VISIBLE = 1e-2
"""A change in the output far above the tolerance of any equality test."""


@pytest.mark.parametrize("name", POLICIES)
def test_chunks_depend_on_observation_and_seed_and_on_nothing_else(name: str) -> None:
    recipe = POLICIES[name]
    policy, state = recipe.build(), torch.get_rng_state()
    again = recipe.build()
    assert torch.equal(torch.get_rng_state(), state)
    for key, value in policy.state_dict().items():
        assert torch.equal(again.state_dict()[key], value), key

    def predict(batch: Batch, seed: int = 0) -> Tensor:
        with seeded(seed):
            return recipe.predict(policy, batch)

    def moved(batch: Batch, seed: int = 0) -> bool:
        return float((predict(batch, seed) - chunk).abs().max()) > VISIBLE

    batch, size = recipe.batch(), max(recipe.batch_sizes)
    chunk = predict(batch)
    assert chunk.shape == (1, *recipe.chunk_shape)
    assert chunk.isfinite().all()
    assert torch.equal(predict(batch), chunk)
    assert moved(recipe.batch(seed=1))
    assert moved(batch, seed=1) == recipe.stochastic
    rows = recipe.batch(size)
    assert predict(rows).shape == (size, *recipe.chunk_shape)
    assert predict(recipe.row(rows, 0)).shape == (1, *recipe.chunk_shape)
