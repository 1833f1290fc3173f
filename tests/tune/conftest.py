"""A small policy, and settings of a tuning run in the toy benchmark."""

import pytest

from keystone_robotics.tune.config import TuneConfig
from toy import save_random_flow, toy_settings


@pytest.fixture(scope="session")
def toy_policy(tmp_path_factory):
    return save_random_flow(tmp_path_factory.mktemp("policies") / "toy", integration_steps=4)


@pytest.fixture
def toy_tune(toy_policy, tmp_path):
    """Makes settings of a tuning run; few arms, and the least budget."""

    def make(task="reach", space=("first:steps=default|1,temperature=1|0.5", "core-mean:k=4,steps=1|2"), **given):
        given = {"budget": 200, "latency": None, **given}
        evaluation = {name: given.pop(name) for name in ("policy", "execute", "shard") if name in given}
        settings = toy_settings(evaluation.pop("policy", toy_policy), tmp_path, task, arms=["first"], **evaluation)
        return TuneConfig(settings, space=tuple(space), **given)

    return make
