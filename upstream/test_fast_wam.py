"""Fast-WAM's real model with tiny random weights."""

import copy
import functools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fast_wam_model import build, predict

import keystone_robotics as keystone
from keystone_robotics.sample.check import TOLERANCES
from upstream_like import contract

NAME = "FastWAM"


@pytest.fixture(scope="module")
def model(checkout: Callable[..., Path]) -> Any:
    checkout(NAME, "src")
    return build()


@pytest.mark.parametrize("path", ["plain", "fast"])
@pytest.mark.parametrize("seed", [None, 42])
@pytest.mark.parametrize("k", [4, 16])
def test_candidates_are_single_calls(
    model: Any, record: Callable[..., None], k: int, seed: int | None, path: str
) -> None:
    found = contract.largest_difference(model, lambda: predict(model, seed), k, path)
    record(NAME, "candidates", found)
    assert found < 1e-5


@pytest.mark.parametrize("path", ["plain", "fast"])
def test_fewer_steps(model: Any, record: Callable[..., None], path: str) -> None:
    alone, asked = (functools.partial(predict, model, 42, steps) for steps in (2, 4))
    found = contract.largest_difference(model, asked, 4, path, alone, steps=2)
    record(NAME, "steps=2", found)
    assert found < 1e-5


def test_bfloat16(model: Any) -> None:
    """As Fast-WAM is run: all of it but its rotary tables."""
    half = copy.deepcopy(model).to(torch.bfloat16)
    half.torch_dtype = torch.bfloat16
    handle = keystone.attach(half, k=8, seed=0, check="all")
    chunk = predict(half)
    assert handle.path == "fast"
    assert handle.engine.finding.difference <= TOLERANCES[torch.bfloat16] * max(1.0, float(chunk.abs().max()))


def test_masked_video_tokens(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an action may see of the video is asked of the model's own mask, whatever it says."""
    whole, own_mask = predict(model, 42), model._build_mot_attention_mask

    def changed(video_seq_len: int, action_seq_len: int, **options: Any) -> torch.Tensor:
        mask = own_mask(video_seq_len=video_seq_len, action_seq_len=action_seq_len, **options)
        mask[video_seq_len:, 1] = False
        mask[video_seq_len + 2 :, 2] = False
        return mask

    monkeypatch.setitem(vars(model), "_build_mot_attention_mask", changed)
    assert contract.largest_difference(model, lambda: predict(model, 42), 4, "fast") < 1e-5
    assert (predict(model, 42) - whole).abs().max() > 1e-3, "the mask has no effect"


def test_a_compiled_expert_is_used(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = functools.partial(model.mot.forward_action_with_video_cache)
    monkeypatch.setitem(vars(model.mot), "forward_action_with_video_cache", engine)
    handle = keystone.attach(model, k=4, check="all")
    predict(model)
    keystone.detach(model)
    assert handle.path == "plain"


@pytest.mark.parametrize("seed", [None, 42])
def test_one_candidate_is_untouched_and_nothing_is_left_behind(model: Any, seed: int | None) -> None:
    contract.assert_one_is_untouched(model, lambda: predict(model, seed))
    contract.assert_no_trace(model, lambda: predict(model, seed))


def test_a_fixed_seed_gives_distinct_candidates_that_repeat(model: Any) -> None:
    rounds: list[Any] = []
    policy = SimpleNamespace(model=model, replan_steps=3)  # as experiments/robotwin holds it
    handle = keystone.attach(policy, k=8)
    handle.subscribe(rounds.append)
    chunks = [predict(model, seed) for seed in (42, 42, 43)]
    keystone.detach(policy)
    assert handle.path == "fast"
    first, again, other = (done.candidates[0] for done in rounds)
    assert len(first.flatten(1).unique(dim=0)) == 8
    assert torch.equal(first, again)
    assert torch.equal(chunks[0], chunks[1])
    assert not torch.equal(first, other)
