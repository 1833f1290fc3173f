"""GR00T N1.5: the real action head and DiT of Isaac-GR00T, with tiny random weights."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import groot_head
import pytest
from torch import Tensor

from upstream_like import contract

NAME = "Isaac-GR00T-N1.5"


@pytest.fixture(scope="module")
def model(checkout: Callable[..., Path]) -> Any:
    checkout(NAME)
    from gr00t.model.action_head.flow_matching_action_head import FlowmatchingActionHead, FlowmatchingActionHeadConfig

    config = FlowmatchingActionHeadConfig(
        **groot_head.HEAD,
        add_pos_embed=True,
        action_dim=groot_head.DIMS,
        diffusion_model_cfg={**groot_head.TRANSFORMER, "cross_attention_dim": 20},
        vl_self_attention_cfg={"num_layers": 2, "num_attention_heads": 2, "attention_head_dim": 10, "dropout": 0.2},
        num_target_vision_tokens=4,
        noise_beta_alpha=1.5,
        noise_beta_beta=1.0,
        noise_s=0.999,
        num_timestep_buckets=1000,
        tune_projector=True,
        tune_diffusion_model=True,
        use_vlln=True,
    )
    return groot_head.Model(groot_head.spread_out(FlowmatchingActionHead(config)))


def predict(model: Any, rows: int) -> Tensor:
    return model.get_action(groot_head.inputs(rows))["action_pred"]


@pytest.mark.parametrize("path", ["plain", "fast"])
@pytest.mark.parametrize(("rows", "k"), [(1, 4), (1, 16), (3, 4)])
def test_candidates_are_single_calls(model: Any, record: Callable[..., None], rows: int, k: int, path: str) -> None:
    found = contract.largest_difference(model, partial(predict, model, rows), k, path, space=groot_head.REAL)
    record(NAME, "candidates", found)
    assert found < 1e-5


def test_one_candidate_is_untouched_and_nothing_is_left_behind(model: Any) -> None:
    contract.assert_one_is_untouched(model, partial(predict, model, 2), space=groot_head.REAL)
    contract.assert_no_trace(model, partial(predict, model, 2), space=groot_head.REAL)
