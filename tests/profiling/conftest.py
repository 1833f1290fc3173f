"""A clock that a test turns by hand, a policy on it, and stored profiles out of the way."""

from types import SimpleNamespace

import pytest
from profiling_timed import HandClock, Timed

from keystone_robotics.sample.timer import Mark


@pytest.fixture(autouse=True)
def stored(tmp_path, monkeypatch):
    """Profiles of a test are its own."""
    folder = tmp_path / "stored"
    monkeypatch.setenv("KEYSTONE_PROFILES", str(folder))
    return folder


@pytest.fixture
def clock(monkeypatch):
    """All times of rounds come from this clock. Memory is not measured, which would take longer than the test."""
    clock = HandClock()
    monkeypatch.setattr(Mark, "now", classmethod(lambda cls: cls(clock.now / 1e3, None)))
    meter = SimpleNamespace(title="nothing", begin=lambda: None, end=lambda: None)
    monkeypatch.setattr("keystone_robotics.profiling.measure.meter_for", lambda device: meter)
    return clock


@pytest.fixture
def timed(clock):
    return Timed(clock)
