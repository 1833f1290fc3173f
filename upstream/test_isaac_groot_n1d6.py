"""GR00T N1.6: the real action head, DiT and policy class of Isaac-GR00T, with tiny random weights."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import groot_head
import pytest

NAME = "Isaac-GR00T-N1.6"


@pytest.fixture(scope="module", params=["AlternateVLDiT", "DiT"])
def model(checkout: Callable[..., Path], request: pytest.FixtureRequest) -> Any:
    checkout(NAME)
    from gr00t.configs.model.gr00t_n1d6 import Gr00tN1d6Config
    from gr00t.model.gr00t_n1d6.gr00t_n1d6 import Gr00tN1d6ActionHead

    config = Gr00tN1d6Config(
        **groot_head.HEAD,
        max_action_dim=groot_head.DIMS,
        diffusion_model_cfg=groot_head.TRANSFORMER,
        use_alternate_vl_dit=request.param == "AlternateVLDiT",
    )
    return groot_head.Model(groot_head.spread_out(Gr00tN1d6ActionHead(config)))


class TestHead(groot_head.HeadTests, groot_head.PolicyTests):
    NAME = NAME
