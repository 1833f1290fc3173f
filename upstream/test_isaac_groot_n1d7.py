"""GR00T N1.7: the real action head, DiT and policy class of Isaac-GR00T, with tiny random weights."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import groot_head
import pytest

NAME = "Isaac-GR00T-N1.7"


@pytest.fixture(scope="module", params=["AlternateVLDiT", "DiT"])
def model(checkout: Callable[..., Path], request: pytest.FixtureRequest) -> Any:
    checkout(NAME)
    return groot_head.build_n1d7(request.param)


class TestHead(groot_head.HeadTests, groot_head.PolicyTests, groot_head.RealTimeChunkingTests):
    NAME = NAME
