"""How often a round on a fast path waits for the device: as often whatever the number of layers and of steps."""

from typing import Any

import pytest
from lerobot.policies.fastwam.configuration_fastwam import default_action_dit_config, default_video_dit_config

import keystone_robotics as keystone
from tiny import POLICIES
from tiny.common import ACTION_DIM
from tiny.fastwam import LAYERS
from tiny.shapes import Waits

#: Questions of the denoising, of one observation: which of the context's tokens count, whether a candidate's tokens all see
#: each other; GR00T, which text and which images count; Fast-WAM, also whether all actions see the same, and which words count;
#: EO1 and Wall-X, also whether no action token is masked.
EXPECTED = {
    "pi0": 2, "pi05": 2, "smolvla": 2, "groot": 2, "fastwam": 4,
    "eo1": 3, "wall_x": 3, "evo1": 1, "vla_jepa": 0, "molmoact2": 0,
}  # fmt: skip

THREE = {**LAYERS, "num_layers": 3}
DEEPER_OR_SHORTER: list[tuple[str, dict[str, Any]]] = [
    ("pi05", {"depth": 3}),
    ("smolvla", {"num_steps": 2}),
    ("groot", {"blocks": 8}),
    (
        "fastwam",
        {
            "video_dit_config": {**default_video_dit_config(ACTION_DIM), **THREE, "hidden_dim": 64},
            "action_dit_config": {**default_action_dit_config(ACTION_DIM), **THREE, "hidden_dim": 48},
        },
    ),
]


def waits_of_a_round(policy: Any, name: str, fast: bool) -> int:
    """Past the first round, whose comparisons wait for much."""
    handle = keystone.attach(policy, k=3, seed=0, fast=fast)
    POLICIES[name].predict(policy, POLICIES[name].batch(1))
    with Waits() as waits:
        POLICIES[name].predict(policy, POLICIES[name].batch(1))
    assert handle.path == ("fast" if fast else "plain")
    keystone.detach(policy)
    return waits.count


@pytest.mark.parametrize(
    ("name", "options"), [*((name, {}) for name in EXPECTED), *DEEPER_OR_SHORTER], ids=lambda given: str(given)[:40]
)
def test_waits_of_a_round(name: str, options: dict[str, Any]) -> None:
    """Beyond what encoder and selector wait for: the denoising of the plain path asks nothing."""
    policy = POLICIES[name].build(**options).requires_grad_(False)
    fast, plain = (waits_of_a_round(policy, name, fast) for fast in (True, False))
    assert fast - plain == EXPECTED[name]
