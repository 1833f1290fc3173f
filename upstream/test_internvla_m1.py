"""InternVLA-M1's action model."""

from collections.abc import Callable
from pathlib import Path

import cogact_heads
import pytest

NAME = "InternVLA-M1"


@pytest.fixture(scope="module")
def framework(checkout: Callable[..., Path]) -> cogact_heads.Framework:
    checkout(NAME)
    module = "InternVLA.model.modules.action_model.DiTActionHeader"
    cogact_heads.without_packages("InternVLA", "InternVLA.model", "InternVLA.model.modules")
    return cogact_heads.Framework(cogact_heads.build(module, "action_hidden_dim", token_size=cogact_heads.WIDTH), 64)


class TestHead(cogact_heads.HeadTests):
    NAME = NAME
