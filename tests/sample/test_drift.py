"""Another project's code changes under an adapter: a round works, or says so in one line; never an error of torch's."""

from collections.abc import Callable
from typing import Any

import pytest

from keystone_robotics.sample.families import ADAPTERS
from tiny import POLICIES
from upstream_like import drift
from upstream_like.test_upstream_like import CASES

NAMES = [name for name, adapter in ADAPTERS.items() if not adapter.refusal and adapter.project == "LeRobot"]


def lerobot(name: str) -> tuple[Any, Callable[[], Any]]:
    recipe, policy = POLICIES[name], POLICIES[name].build().requires_grad_(False)

    def predict() -> Any:
        policy.reset()
        return recipe.predict(policy, recipe.batch())

    return policy, predict


@pytest.mark.parametrize("name", NAMES)
def test_a_method_of_lerobot_takes_one_argument_more(name: str) -> None:
    policy, predict = lerobot(name)
    used = drift.assert_called_methods(policy, "lerobot", predict)
    assert used, "the adapter calls no method of LeRobot's"


@pytest.mark.parametrize("name", NAMES)
def test_an_overridden_method_of_lerobot_takes_one_argument_more(name: str) -> None:
    policy, predict = lerobot(name)
    drift.assert_overridden_methods(policy, name, predict)


#: One of each class whose signatures differ.
OTHERS = (
    "groot-n1.5", "groot-n1.6", "groot-n1.7", "starvla", "starvla-layerwise", "xvla", "fastwam", "diffusion-unet",
    "diffusion-transformer", "dp3", "cogact", "rdt", "h-rdt", "openvla-oft",
)  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_a_method_of_another_project_takes_one_argument_more(name: str) -> None:
    case = CASES[name]
    policy = case.build().eval().requires_grad_(False)
    used = drift.assert_called_methods(policy, "upstream_like", lambda: case.predict(policy, 1), **case.options)
    assert used, "the adapter calls no method of the project's"
    drift.assert_overridden_methods(policy, case.adapter, lambda: case.predict(policy, 1), **case.options)
