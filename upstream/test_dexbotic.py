"""Dexbotic's action model of CogACT."""

from collections.abc import Callable
from pathlib import Path

import cogact_heads
import pytest

NAME = "dexbotic"


@pytest.fixture(scope="module")
def framework(checkout: Callable[..., Path]) -> cogact_heads.Framework:
    checkout(NAME)
    module = "dexbotic.model.cogact.action_model.action_models"
    cogact_heads.without_packages(*(module.rsplit(".", depth)[0] for depth in (4, 3, 2, 1)))
    return cogact_heads.Framework(cogact_heads.build(module, "token_size", hidden_size=16), 1)


class TestHead(cogact_heads.HeadTests):
    NAME = NAME
