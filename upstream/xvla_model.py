"""X-VLA's real model on a Florence-2 of two small stages, with random weights; the tests of both its versions."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from groot_head import spread_out
from torch import Tensor

import keystone_robotics as keystone
from upstream_like import contract

FLORENCE = {
    "vision_config": {
        "model_type": "davit", "dim_embed": [16, 32], "num_heads": [2, 4], "num_groups": [2, 4], "depths": [1, 1],
        "patch_size": [7, 3], "patch_stride": [4, 2], "patch_padding": [3, 1], "patch_prenorm": [False, True],
        "window_size": 4, "projection_dim": 32, "visual_temporal_embedding": {"type": "COSINE", "max_temporal_embeddings": 10},
        "image_pos_embed": {"type": "learned_abs_2d", "max_pos_embeddings": 50},
        "image_feature_source": ["spatial_avg_pool", "temporal_avg_pool"],
    },
    "text_config": {
        "d_model": 32, "encoder_layers": 2, "decoder_layers": 1, "encoder_attention_heads": 2,
        "decoder_attention_heads": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "vocab_size": 512,
        "max_position_embeddings": 256, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2,
    },
    "projection_dim": 32, "vocab_size": 512,
}  # fmt: skip
SMALL = {
    "hidden_size": 32, "depth": 2, "num_heads": 2, "num_domains": 3, "len_soft_prompts": 4, "max_len_seq": 256,
    "num_actions": 6,
}  # fmt: skip


def build(**settings: Any) -> Any:
    from models.configuration_xvla import XVLAConfig
    from models.modeling_xvla import XVLA

    config = XVLAConfig(florence_config=FLORENCE, **SMALL, **settings)
    # Else newer versions of transformers ask the backbone what it supports before it is built.
    config._attn_implementation = config.florence_config._attn_implementation = "eager"
    return spread_out(XVLA(config))


def predict(model: Any, rows: int, steps: int = 4) -> Tensor:
    generator = torch.Generator().manual_seed(rows)
    return model.generate_actions(
        input_ids=torch.randint(3, 500, (rows, 5), generator=generator),
        image_input=torch.randn(rows, 2, 3, 32, 32, generator=generator),
        image_mask=torch.tensor([[True, False], *[[True, True]] * (rows - 1)]),
        domain_id=torch.arange(rows) % 3,
        proprio=torch.randn(rows, model.action_space.dim_action, generator=generator),
        steps=steps,
    )


class ModelTests:
    """For a class in each version's file, which says `NAME` and provides the fixture `model`."""

    NAME: str

    @pytest.mark.parametrize(("rows", "k"), [(1, 4), (1, 16), (3, 4)])
    def test_candidates_are_single_calls(self, model: Any, record: Callable[..., None], rows: int, k: int) -> None:
        space = keystone.ActionSpace(dims=model.action_space.dim_action // 2)
        found = contract.largest_difference(model, partial(predict, model, rows), k, space=space)
        record(self.NAME, "candidates", found)
        assert found < 1e-5

    def test_fewer_steps(self, model: Any, record: Callable[..., None]) -> None:
        space = keystone.ActionSpace(dims=model.action_space.dim_action // 2)
        alone, asked = partial(predict, model, 3, 2), partial(predict, model, 3)
        found = contract.largest_difference(model, asked, 4, alone=alone, steps=2, space=space)
        record(self.NAME, "steps=2", found)
        assert found < 1e-5

    def test_one_candidate_is_untouched_and_nothing_is_left_behind(self, model: Any) -> None:
        space = keystone.ActionSpace(dims=10)
        contract.assert_one_is_untouched(model, partial(predict, model, 2), space=space)
        contract.assert_no_trace(model, partial(predict, model, 2), space=space)
