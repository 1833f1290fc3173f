"""The original Diffusion Policy: U-Net and transformer, on states and images, with DDPM and DDIM."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import diffusion_policies
import pytest
from diffusion_policy_tests import PolicyTests

NAME = "diffusion_policy"
POLICIES = {
    "unet-global": (diffusion_policies.unet_on_states, "global", ("obs", "action")),
    "unet-local": (diffusion_policies.unet_on_states, "local", ("obs", "action")),
    "unet-inpainted": (diffusion_policies.unet_on_states, "inpainted", ("obs", "action")),
    "transformer": (diffusion_policies.transformer_on_states, "global", ("obs", "action")),
    "transformer-inpainted": (diffusion_policies.transformer_on_states, "inpainted", ("obs", "action")),
    "images": (diffusion_policies.unet_on_images, "global", ("obs", "image", "action")),
    "images-inpainted": (diffusion_policies.unet_on_images, "inpainted", ("obs", "image", "action")),
}


@pytest.fixture(scope="module", params=[(name, kind) for name in POLICIES for kind in ("DDPM", "DDIM")], ids="-".join)
def policy(checkout: Callable[..., Path], request: pytest.FixtureRequest) -> Any:
    checkout(NAME)
    name, schedule = request.param
    build, how, fields = POLICIES[name]
    return diffusion_policies.finished(build(schedule, how), fields)


class TestPolicies(PolicyTests):
    NAME = NAME
