"""GR00T N1.5: the real action head and DiT of Isaac-GR00T, with tiny random weights."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import groot_head
import pytest

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


class TestHead(groot_head.HeadTests):
    NAME = NAME
