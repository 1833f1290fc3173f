"""X-VLA, whose action spaces are now told the proprioception too."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import xvla_model

import keystone


class TestModel(xvla_model.ModelTests):
    NAME = "X-VLA"

    @pytest.fixture(scope="class")
    def model(self, checkout: Callable[..., Path]) -> Any:
        checkout(self.NAME)
        # "ee6d" cannot be called at this commit: its postprocess hands its parent an argument that it does not take.
        return xvla_model.build(action_mode="auto", real_action_dim=14, max_action_dim=20)

    def test_space_auto_says_what_is_real(self, model: Any) -> None:
        handle = keystone.attach(model, k=4)
        try:
            assert xvla_model.predict(model, 1).shape == (1, 6, 14)
            assert handle.stats["rounds"] == 1
        finally:
            keystone.detach(model)
