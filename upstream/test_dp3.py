"""DP3 and Simple DP3 on point clouds, with DDPM and DDIM."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import diffusion_policies
import pytest
from diffusion_policy_tests import PolicyTests

NAME = "3D-Diffusion-Policy"
CASES = [("film", "DDIM"), ("film", "DDPM"), ("simple", "DDIM")]


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def policy(checkout: Callable[..., Path], request: pytest.FixtureRequest) -> Any:
    checkout(NAME, "3D-Diffusion-Policy")
    how, schedule = request.param
    return diffusion_policies.finished(diffusion_policies.dp3(schedule, how), ("point_cloud", "agent_pos", "action"))


class TestPolicies(PolicyTests):
    NAME = NAME
