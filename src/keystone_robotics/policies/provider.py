"""Policies of other installed distributions, such as the study, found through entry points."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from keystone_robotics.policies.agent import Agent

#: Entry points of this group name a `PolicyProvider`.
GROUP = "keystone_robotics.policies"


class PolicyProvider(ABC):
    """A checkpoint format other than LeRobot's.

    Attributes:
        type: the ``type`` in ``config.json`` of such checkpoints.
    """

    type: str

    @abstractmethod
    def shipped(self) -> Mapping[str, Path]:
        """The folders of the policies that come with the distribution, by name."""

    @abstractmethod
    def load(self, folder: Path, device: str | None) -> Any:
        """The policy in a folder, ready to act."""

    @abstractmethod
    def make_agent(self, policy: Any, tasks: Sequence[str]) -> Agent:
        """The `Agent` of a policy."""

    @abstractmethod
    def sample_observation(self, policy: Any, batch: int) -> Any:
        """A synthetic observation with B rows, as the policy takes it."""


@functools.cache  # a search through all distributions takes 20 ms, and an evaluation asks ten times
def policy_providers() -> tuple[PolicyProvider, ...]:
    """The providers of all installed distributions."""
    return tuple(entry.load() for entry in entry_points(group=GROUP))
