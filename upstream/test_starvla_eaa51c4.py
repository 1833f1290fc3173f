"""StarVLA's flow-matching heads at the commit that vla-eval uses."""

from collections.abc import Callable
from pathlib import Path

import pytest
import starvla_heads

NAME = "starVLA-eaa51c4"


@pytest.fixture(scope="module", params=["GR00T", "Layerwise"])
def framework(checkout: Callable[..., Path], request: pytest.FixtureRequest) -> starvla_heads.Framework:
    checkout(NAME)
    return starvla_heads.build(request.param, masked=False)


class TestHeads(starvla_heads.HeadTests):
    NAME = NAME
