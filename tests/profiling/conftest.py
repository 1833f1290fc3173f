"""A clock that a test turns by hand, a policy on it, and stored profiles out of the way."""

import pytest
from profiling_timed import HandClock, Timed


@pytest.fixture(autouse=True)
def stored(tmp_path, monkeypatch):
    """Profiles of a test are its own."""
    folder = tmp_path / "stored"
    monkeypatch.setenv("KEYSTONE_PROFILES", str(folder))
    return folder


@pytest.fixture
def clock(monkeypatch):
    clock = HandClock()
    for module in ("measure", "auto"):
        monkeypatch.setattr(f"keystone_robotics.profiling.{module}.clock_for", lambda device: clock)
    return clock


@pytest.fixture
def timed(clock):
    return Timed(clock)
