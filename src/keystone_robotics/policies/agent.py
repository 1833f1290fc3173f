"""The interface between an evaluation and a policy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from keystone_robotics.errors import KeystoneError

if TYPE_CHECKING:  # a server needs no gymnasium
    from keystone_robotics.environments.benchmark import Array, Benchmark, Observation


class Agent(ABC):
    """A policy with its pre- and post-processing: normalisation, task names, units of actions.

    Attributes:
        policy: the object for `keystone.attach`.
        history: number of past observations that `plan` takes.
        tasks: the tasks that the policy was trained on; empty if unknown.
    """

    policy: Any
    history: int = 1
    tasks: tuple[str, ...] = ()

    @property
    @abstractmethod
    def execute(self) -> int:
        """Steps of a chunk that are executed before the next round."""

    @execute.setter
    @abstractmethod
    def execute(self, steps: int) -> None: ...

    @abstractmethod
    def plan(self, histories: Sequence[Sequence[Observation]], tasks: Sequence[str]) -> Array:
        """(N, T, D) one chunk for each of N episodes, in the environment's units, starting with the next step.

        Args:
            histories: the last observations of each episode, newest last; fewer than `history` at the beginning.
            tasks: the task of each episode.
        """

    def in_env_units(self, candidates: Array, observation: Observation) -> Array | None:
        """(K, T, D) candidates, without padding and from the next step on, in the environment's units; None if unknown.

        Args:
            candidates: (K, T, D) as the policy's sampler returned them.
            observation: that they were drawn for.
        """
        return None

    def example(self) -> Observation:
        """One observation as `plan` takes it, of plausible numbers: for warm-ups, and for servers to check requests by."""
        raise KeystoneError(
            f"{type(self).__name__} has no example of its observations, which a server needs: define `example`"
        )

    def fit(self, benchmark: Benchmark) -> None:  # noqa: B027 (optional)
        """Prepare for the environments of a benchmark.

        Raises:
            KeystoneError: if the policy does not fit them.
        """
