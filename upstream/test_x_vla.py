"""X-VLA, whose action spaces are now told the proprioception too."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import xvla_model

import keystone_robotics as keystone

NAME = "X-VLA"


@pytest.fixture(scope="module")
def model(checkout: Callable[..., Path]) -> Any:
    checkout(NAME)
    # "ee6d" cannot be called at this commit: its postprocess hands its parent an argument that it does not take.
    return xvla_model.build(action_mode="auto", real_action_dim=14, max_action_dim=20)


class TestModel(xvla_model.ModelTests):
    NAME = NAME

    def test_space_auto_says_what_is_real(self, model: Any) -> None:
        handle = keystone.attach(model, k=4)
        try:
            assert xvla_model.predict(model, 1).shape == (1, 6, 14)
            assert handle.stats["rounds"] == 1
        finally:
            keystone.detach(model)
