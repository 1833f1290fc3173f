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
    return groot_head.build_n1d5()


class TestHead(groot_head.HeadTests):
    NAME = NAME
