"""Fast-WAM's real model with tiny random weights."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fast_wam_model import build, predict

import keystone
from upstream_like import contract

NAME = "FastWAM"


@pytest.fixture(scope="module")
def model(checkout: Callable[..., Path]) -> Any:
    checkout(NAME, "src")
    return build()


@pytest.mark.parametrize("seed", [None, 42])
@pytest.mark.parametrize("k", [4, 16])
def test_candidates_are_single_calls(model: Any, record: Callable[..., None], k: int, seed: int | None) -> None:
    found = contract.largest_difference(model, lambda: predict(model, seed), k)
    record(NAME, "candidates", found)
    assert found < 1e-5


@pytest.mark.parametrize("seed", [None, 42])
def test_one_candidate_is_untouched_and_nothing_is_left_behind(model: Any, seed: int | None) -> None:
    contract.assert_one_is_untouched(model, lambda: predict(model, seed))
    contract.assert_no_trace(model, lambda: predict(model, seed))


def test_a_fixed_seed_gives_distinct_candidates_that_repeat(model: Any) -> None:
    rounds: list[Any] = []
    policy = SimpleNamespace(model=model, replan_steps=3)  # as experiments/robotwin holds it
    handle = keystone.attach(policy, k=8)
    handle.on_round = rounds.append
    chunks = [predict(model, seed) for seed in (42, 42, 43)]
    keystone.detach(policy)
    first, again, other = (done.candidates[0] for done in rounds)
    assert len(first.flatten(1).unique(dim=0)) == 8
    assert torch.equal(first, again)
    assert torch.equal(chunks[0], chunks[1])
    assert not torch.equal(first, other)
