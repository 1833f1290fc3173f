"""OpenVLA-OFT's model with its diffusion head, on a tiny Llama of its fork of transformers, without its image encoders."""

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cogact_heads import without_packages
from groot_head import spread_out
from torch import Tensor, nn

import keystone_robotics as keystone
from keystone_robotics import KeystoneError
from upstream_like import contract

NAME, WIDTH, PATCHES = "openvla-oft", 32, 6


class Vision(nn.Module):
    """In the place of the image encoders."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, WIDTH)

    def get_num_patches(self) -> int:
        return PATCHES

    def get_num_images_in_input(self) -> int:
        return 1

    def forward(self, pixel_values: Tensor) -> Tensor:
        return self.linear(pixel_values)


@pytest.fixture(scope="module")
def parts(checkout: Callable[..., Path]) -> Any:
    """The model, its diffusion head, the projector of noisy actions and the other head."""
    checkout(NAME)
    without_packages(
        "prismatic",
        "prismatic.models",
        "prismatic.training",
        "prismatic.extern",
        "prismatic.extern.hf",
        "prismatic.vla",
    )
    from prismatic.extern.hf.modeling_prismatic import OpenVLAForActionPrediction
    from prismatic.models.action_heads import DiffusionActionHead, L1RegressionActionHead
    from prismatic.models.projectors import NoisyActionProjector
    from transformers import LlamaConfig, LlamaForCausalLM

    size = {"hidden_size": WIDTH, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = OpenVLAForActionPrediction.__new__(OpenVLAForActionPrediction)
    nn.Module.__init__(model)  # its own constructor wants real image encoders
    model.vision_backbone, model.projector = Vision(), nn.Identity()
    model.language_model = LlamaForCausalLM(LlamaConfig(vocab_size=32064, **size))
    bounds = {"q01": [-1.0] * 7, "q99": [1.0] * 7, "mask": [False] * 7}  # as they are
    model.norm_stats = {"robot": {"action": bounds}}
    head = DiffusionActionHead(input_dim=WIDTH, hidden_dim=WIDTH, action_dim=7)
    head.noise_scheduler.set_timesteps(5)
    rest = head, NoisyActionProjector(llm_dim=WIDTH), L1RegressionActionHead(input_dim=WIDTH, hidden_dim=WIDTH)
    return spread_out(model), *(spread_out(one) for one in rest)


def predict(parts: Any, diffusion: bool = True) -> Tensor:
    model, head, projector, regression = parts
    ids = torch.tensor([[1, 306, 471, 29871]])
    pixels = torch.randn(1, PATCHES, 3, generator=torch.Generator().manual_seed(0))
    heads = {"action_head": head, "noisy_action_projector": projector} if diffusion else {"action_head": regression}
    with torch.inference_mode():
        actions, states = model.predict_action(
            ids, unnorm_key="robot", pixel_values=pixels, attention_mask=torch.ones_like(ids), **heads
        )
    assert states.shape == (1, 56, WIDTH)
    return torch.from_numpy(np.asarray(actions))[None].float()


def in_steps(parts: Any, steps: int) -> Any:
    model, head, *rest = parts
    few = copy.deepcopy(head)
    few.noise_scheduler.set_timesteps(steps)
    return (model, few, *rest)


def test_the_language_model_is_the_bidirectional_one(parts: Any) -> None:
    model = parts[0].language_model.model
    first = [model(torch.tensor([[1, 2, last]])).last_hidden_state[0, 0] for last in (3, 4)]
    assert not torch.equal(*first)


@pytest.mark.parametrize("k", [4, 16])
def test_candidates_are_single_calls(parts: Any, record: Callable[..., None], k: int) -> None:
    found = contract.largest_difference(parts[0], partial(predict, parts), k)
    record(NAME, "candidates", found)
    assert found < 1e-5


def test_fewer_steps(parts: Any, record: Callable[..., None]) -> None:
    alone, asked = partial(predict, in_steps(parts, 2)), partial(predict, parts)
    found = contract.largest_difference(parts[0], asked, 4, alone=alone, steps=2)
    record(NAME, "steps=2", found)
    assert found < 1e-5
    assert parts[1].noise_scheduler.num_inference_steps == 5


def test_one_candidate_is_untouched_and_nothing_is_left_behind(parts: Any) -> None:
    contract.assert_one_is_untouched(parts[0], partial(predict, parts))
    contract.assert_no_trace(parts[0], partial(predict, parts))


def test_a_deterministic_head_is_refused(parts: Any) -> None:
    keystone.attach(parts[0], k=4)
    try:
        with pytest.raises(KeystoneError, match="all candidates would be equal"):
            predict(parts, diffusion=False)
    finally:
        keystone.detach(parts[0])
    assert predict(parts, diffusion=False).shape == (1, 8, 7)
