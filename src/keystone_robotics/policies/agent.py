"""What an evaluation needs of a policy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from keystone_robotics.environments.benchmark import Array, Benchmark, Observation


class Agent(ABC):
    """A policy and what lies between it and an environment: normalisation, the task's name, the units of actions.

    Attributes:
        policy: what `keystone.attach` takes.
        history: how many of the last observations of an episode `plan` wants.
        tasks: the tasks that the policy was trained on; empty if that is not known.
    """

    policy: Any
    history: int = 1
    tasks: tuple[str, ...] = ()

    @property
    @abstractmethod
    def execute(self) -> int:
        """How many steps of a chunk are executed before the next round."""

    @execute.setter
    @abstractmethod
    def execute(self, steps: int) -> None: ...

    @abstractmethod
    def plan(self, histories: Sequence[Sequence[Observation]], tasks: Sequence[str]) -> Array:
        """(N, T, D) one chunk for each of N episodes, in the environment's units, the first step being the next.

        Args:
            histories: for each episode its last observations, the newest last; fewer than `history` at the beginning.
            tasks: for each episode what is to be done.
        """

    def fit(self, benchmark: Benchmark) -> None:  # noqa: B027 (most have nothing to get ready)
        """Get ready for the environments of a benchmark.

        Raises:
            KeystoneError: if the policy cannot act in them.
        """
