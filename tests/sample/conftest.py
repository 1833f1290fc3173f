"""Tiny policies that the tests of a file share."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import keystone_robotics as keystone


@pytest.fixture(scope="module")
def built() -> Callable[[str], Any]:
    """By name, each built once for the tests of a file."""
    from tiny import POLICIES  # needs LeRobot, which scripts/test_core.sh does without

    return functools.cache(lambda name: POLICIES[name].build().requires_grad_(False))


@pytest.fixture
def policy(name: str, built: Callable[[str], Any]) -> Iterator[Any]:
    """The tiny policy of this name, never attached to at the beginning of a test."""
    yield built(name)
    keystone.detach(built(name))
