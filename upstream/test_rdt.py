"""RDT-1B's runner, with its deterministic scheduler and with one that draws noise at every step."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import rdt_runners

import keystone_robotics as keystone

NAME = "RoboticsDiffusionTransformer"


@pytest.fixture(scope="module", params=["dpmsolver++", "sde-dpmsolver++"])
def runner(checkout: Callable[..., Path], request: pytest.FixtureRequest) -> Any:
    checkout(NAME)
    return rdt_runners.build_rdt(request.param)


class TestRunner(rdt_runners.RunnerTests):
    NAME = NAME

    def test_dimensions_of_other_robots_are_zero_in_all_candidates(self, runner: Any) -> None:
        rounds: list[Any] = []
        keystone.attach(runner, k=4, seed=0).subscribe(rounds.append)
        rdt_runners.predict(runner, 2)
        keystone.detach(runner)
        assert not rounds[0].candidates[..., rdt_runners.REAL :].any()
        assert rounds[0].candidates[..., : rdt_runners.REAL].all()
