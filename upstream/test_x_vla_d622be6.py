"""X-VLA as released, and as its checkpoints bring it along: the gripper is a logit until it is post-processed in place."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import xvla_model

import keystone_robotics as keystone

NAME = "X-VLA-d622be6"


@pytest.fixture(scope="module", params=["ee6d", "joint"])
def model(checkout: Callable[..., Path], request: pytest.FixtureRequest) -> Any:
    checkout(NAME)
    return xvla_model.build(action_mode=request.param)


class TestModel(xvla_model.ModelTests):
    NAME = NAME

    def test_dims_are_required(self, model: Any) -> None:
        with pytest.raises(keystone.KeystoneError, match="Missing: dims"):
            keystone.attach(model, k=4)

    def test_candidates_are_compared_after_the_sigmoid(self, model: Any) -> None:
        rounds: list[Any] = []
        handle = keystone.attach(model, k=4, space=keystone.ActionSpace(dims=7))
        handle.subscribe(rounds.append)
        xvla_model.predict(model, 1)
        keystone.detach(model)
        grippers = rounds[0].candidates[..., list(model.action_space.gripper_idx)]
        assert ((grippers > 0) & (grippers < 1)).all()
