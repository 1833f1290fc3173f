"""GR00T N1.7 with the cache of keys and values that its own denoising loop has in pull request 736."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import groot_head
import pytest

NAME = "Isaac-GR00T-2ea60d6"


@pytest.fixture(scope="module", params=["AlternateVLDiT", "DiT"])
def model(checkout: Callable[..., Path], request: pytest.FixtureRequest) -> Any:
    checkout(NAME)
    from gr00t.model.modules import dit

    assert dit.CrossAttnKVCache, "another commit than that of the cache"
    return groot_head.build_n1d7(request.param)


class TestHead(groot_head.HeadTests, groot_head.PolicyTests, groot_head.RealTimeChunkingTests):
    NAME = NAME
