"""GR00T N1.7: the real action head, DiT and policy class of Isaac-GR00T, with tiny random weights."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import groot_head
import pytest
import torch
from torch import Tensor

import keystone
from upstream_like import contract

NAME = "Isaac-GR00T-N1.7"


@pytest.fixture(scope="module", params=["AlternateVLDiT", "DiT"])
def model(checkout: Callable[..., Path], request: pytest.FixtureRequest) -> Any:
    checkout(NAME)
    from gr00t.configs.model.gr00t_n1d7 import Gr00tN1d7Config
    from gr00t.model.gr00t_n1d7.gr00t_n1d7 import Gr00tN1d7ActionHead

    config = Gr00tN1d7Config(
        **groot_head.HEAD,
        max_action_dim=groot_head.DIMS,
        diffusion_model_cfg=groot_head.TRANSFORMER,
        use_alternate_vl_dit=request.param == "AlternateVLDiT",
    )
    return groot_head.Model(groot_head.spread_out(Gr00tN1d7ActionHead(config)))


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


def test_a_policy_knows_its_robot(model: Any) -> None:
    from gr00t.data.types import ModalityConfig
    from gr00t.policy.gr00t_policy import Gr00tPolicy

    policy = groot_head.policy(Gr00tPolicy, model, ModalityConfig)
    handle = keystone.attach(policy, k=4)
    try:
        window = handle._adapter.window(policy)
        assert (handle.adapter, window.dims, window.steps) == ("isaac-groot", 7, 4)
        predict(model, 1)
        assert handle.stats["rounds"] == 1
    finally:
        keystone.detach(policy)


@pytest.mark.parametrize("k", [4, 16])
def test_real_time_chunking(model: Any, record: Callable[..., None], k: int) -> None:
    inputs = groot_head.inputs(2)
    inputs["action"] = torch.randn(2, groot_head.HORIZON, groot_head.DIMS, generator=torch.Generator().manual_seed(1))
    options = {"action_horizon": 5, "rtc_overlap_steps": 4, "rtc_frozen_steps": 2, "rtc_ramp_rate": 3.0}

    def predict_on() -> Tensor:
        return model.get_action(inputs, options)["action_pred"]

    found = contract.largest_difference(model, predict_on, k, space=groot_head.REAL)
    record(NAME, "real-time chunking", found)
    assert found < 1e-5
