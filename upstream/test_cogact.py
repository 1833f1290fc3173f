"""CogACT's action model."""

from collections.abc import Callable
from pathlib import Path

import cogact_heads
import pytest

NAME = "CogACT"


@pytest.fixture(scope="module")
def framework(checkout: Callable[..., Path]) -> cogact_heads.Framework:
    checkout(NAME)
    # Its unconditional token has this width, whatever token_size is.
    head = cogact_heads.build("action_model.action_model", "token_size", 4096, hidden_size=16)
    return cogact_heads.Framework(head, 1, 4096)


class TestHead(cogact_heads.HeadTests):
    NAME = NAME
