"""Cosmos Policy's adapter on a small model of ours: noise from numpy, actions inside latent frames."""

import sys
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import keystone_robotics as keystone
from keystone_robotics import KeystoneError

from . import contract, drift
from .cosmos_policy_like import (
    ACTION_FRAME,
    DIMS,
    STEPS,
    CosmosPolicyLike,
    chunk,
    observation,
    predict,
    predict_from_torch,
)


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    constants = SimpleNamespace(NUM_ACTIONS_CHUNK=STEPS, ACTION_DIM=DIMS)
    monkeypatch.setitem(sys.modules, "cosmos_policy.constants", constants)
    torch.manual_seed(0)
    model = CosmosPolicyLike().eval().requires_grad_(False)
    yield model
    keystone.detach(model)


@pytest.mark.parametrize(("rows", "k"), [(1, 4), (1, 16), (3, 4)])
def test_candidates_are_single_calls(model: Any, rows: int, k: int) -> None:
    alone = partial(predict_from_torch, model, rows)
    assert contract.largest_difference(model, partial(predict, model, rows), k, alone=alone) < 1e-5


def test_candidates_take_that_many_steps(model: Any) -> None:
    alone = partial(predict_from_torch, model, 1, num_steps=2)
    assert contract.largest_difference(model, partial(predict, model, 1), 4, alone=alone, steps=2) < 1e-5


def test_one_candidate_is_untouched_and_nothing_is_left_behind(model: Any) -> None:
    contract.assert_one_is_untouched(model, partial(predict, model, 2))
    contract.assert_no_trace(model, partial(predict, model, 2))


def test_kept_rounds_hold_no_candidates(model: Any) -> None:
    contract.assert_kept_rounds_hold_no_candidates(model, partial(predict, model, 1))


def test_its_steps_cannot_be_compiled(model: Any) -> None:
    with pytest.raises(KeystoneError, match="compile=True: adapter cosmos-policy has no denoising step"):
        keystone.attach(model, k=4, compile=True)


def test_images_are_encoded_once(model: Any) -> None:
    calls: list[Any] = []
    keystone.attach(model, k=8, check=False)
    model.encoder.register_forward_hook(lambda _, args, __: calls.append(len(args[0])))
    predict(model, 1)
    assert calls == [1]


def test_candidates_follow_from_the_seed_of_the_call(model: Any) -> None:
    rounds: list[Any] = []
    keystone.attach(model, k=4).subscribe(rounds.append)
    for seed in (1, 1, 2):
        predict(model, 1, seed=seed)
    first, again, other = (one.candidates for one in rounds)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("rule", ["keystone", "core-mean"])
def test_latents_hold_the_chosen_actions(model: Any, rule: str) -> None:
    rounds: list[Any] = []
    keystone.attach(model, k=8, rule=rule).subscribe(rounds.append)
    latents, frames = model.generate_samples_from_batch(
        observation(2), num_steps=4, n_sample=2, return_orig_clean_latent_frames=True
    )
    assert torch.allclose(chunk(latents), rounds[0].selection.chunk, atol=1e-5)
    assert torch.equal(frames, model.encoder(observation(2)["video"]))
    assert latents[:, :, ACTION_FRAME + 1].std() > 0


def test_the_future_of_chosen_actions_is_not_sampled_k_wide(model: Any) -> None:
    latent = model.encoder(observation(1)["video"])
    options = {"num_steps": 4, "skip_vae_encoding": True, "previous_generated_latent": latent}
    expected = model.generate_samples_from_batch(observation(1), **options)
    handle = keystone.attach(model, k=4)
    assert torch.equal(model.generate_samples_from_batch(observation(1), **options), expected)
    assert handle.stats["rounds"] == 0


def test_noise_that_is_scaled_for_a_whole_call_is_refused(model: Any) -> None:
    keystone.attach(model, k=4)
    with pytest.raises(KeystoneError, match=r"use_variance_scale .* temperature="):
        predict(model, 1, use_variance_scale=True)


def test_the_shape_of_a_chunk_must_be_known(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "cosmos_policy.constants")
    keystone.attach(model, k=4)
    with pytest.raises(KeystoneError, match=r"cosmos_policy\.constants"):
        predict(model, 1)


def test_the_self_check_refuses_a_loop_that_has_changed(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    keystone.attach(model, k=4)
    monkeypatch.setattr(
        "keystone_robotics.sample.families.cosmos_policy.upstream.denoise", lambda _, noise, *__: 0.5 * noise
    )
    with pytest.raises(KeystoneError, match="self-check failed"):
        predict(model, 1)


def test_a_method_that_takes_one_argument_more_is_said_in_words(model: Any) -> None:
    predict_one = partial(predict, model, 1)
    assert drift.assert_called_methods(model, "upstream_like", predict_one) == [
        "generate_samples_from_batch",
        "get_data_and_condition",
    ]
    drift.assert_overridden_methods(model, "cosmos-policy", predict_one)
