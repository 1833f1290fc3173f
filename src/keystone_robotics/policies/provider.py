"""Policies that another installed distribution brings, such as the study's: found through entry points."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from keystone_robotics.policies.agent import Agent

#: Entry points of this group name a `PolicyProvider`.
GROUP = "keystone_robotics.policies"


class PolicyProvider(ABC):
    """A kind of checkpoint that is neither LeRobot's nor made by a function of the user's.

    Attributes:
        type: what ``config.json`` of such a checkpoint has as its type.
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
        """The policy in an environment."""

    @abstractmethod
    def sample_observation(self, policy: Any, batch: int) -> Any:
        """An observation of B rows, made up, as the policy is called with it."""


def policy_providers() -> list[PolicyProvider]:
    """Of all installed distributions."""
    return [entry.load() for entry in entry_points(group=GROUP)]
