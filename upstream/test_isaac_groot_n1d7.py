"""GR00T N1.7: the real action head, DiT and policy class of Isaac-GR00T, with tiny random weights."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import groot_head
import pytest
import torch
from torch import Tensor

from upstream_like import contract

NAME = "Isaac-GR00T-N1.7"


@pytest.fixture(scope="module", params=["AlternateVLDiT", "DiT"])
def model(checkout: Callable[..., Path], request: pytest.FixtureRequest) -> Any:
    checkout(NAME)
    return groot_head.build_n1d7(request.param)


class TestHead(groot_head.HeadTests, groot_head.PolicyTests):
    NAME = NAME


@pytest.mark.parametrize("path", ["plain", "fast"])
@pytest.mark.parametrize("k", [4, 16])
def test_real_time_chunking(model: Any, record: Callable[..., None], k: int, path: str) -> None:
    inputs = groot_head.inputs(2)
    inputs["action"] = torch.randn(2, groot_head.HORIZON, groot_head.DIMS, generator=torch.Generator().manual_seed(1))
    options = {"action_horizon": 5, "rtc_overlap_steps": 4, "rtc_frozen_steps": 2, "rtc_ramp_rate": 3.0}

    def predict_on() -> Tensor:
        return model.get_action(inputs, options)["action_pred"]

    found = contract.largest_difference(model, predict_on, k, path, space=groot_head.REAL)
    record(NAME, "real-time chunking", found)
    assert found < 1e-5
