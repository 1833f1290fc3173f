"""Small policies, and a folder of its own for each test's toy benchmark."""

import pytest

from toy import save_random_flow, toy_settings


@pytest.fixture(scope="session")
def toy_policy(tmp_path_factory):
    return save_random_flow(tmp_path_factory.mktemp("policies") / "toy")


@pytest.fixture(scope="session")
def metaworld_policy(tmp_path_factory):
    return save_random_flow(tmp_path_factory.mktemp("policies") / "metaworld", 89, 4)


@pytest.fixture
def toy(toy_policy, tmp_path):
    """Makes settings of an evaluation in the toy benchmark."""
    return lambda *args, **given: toy_settings(toy_policy, tmp_path, *args, **given)
