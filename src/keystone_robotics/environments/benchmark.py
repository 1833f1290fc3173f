"""The interface of a benchmark."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

#: One observation with the keys of LeRobot's environments: ``agent_pos`` (proprioception), ``environment_state`` (the full
#: state) and ``pixels`` (images), as far as the environment has them.
Observation = dict[str, Any]
Array = NDArray[np.float32]


class Benchmark(ABC):
    """A set of tasks, each a gymnasium environment.

    Beyond gymnasium's interface, its environments guarantee:

    - ``reset(seed=n)`` gives the same initial state for the same ``n``, independent of the history, so that arms share initial
      states. ``info["initial_state"]`` holds the full simulator state (an array or a dict of arrays; default the observation).
      Its hash is stored, so that the pairing can be audited.
    - ``step`` reports success in ``info["success"]`` (or ``info["is_success"]``, as LeRobot does).
    - ``render()`` returns a uint8 image (height, width, 3) if made with ``render=True``.

    Attributes:
        name: name on the command line.
    """

    name: str

    @abstractmethod
    def tasks(self) -> tuple[str, ...]:
        """The names of all tasks."""

    @abstractmethod
    def make(self, task: str, render: bool = False) -> gymnasium.Env[Any, Any]:
        """An environment for one of the tasks."""

    @abstractmethod
    def max_steps(self, task: str) -> int:
        """Default number of steps after which an episode has failed."""

    def tool_path(self, chunks: Array, observation: Observation) -> tuple[Array, NDArray[np.bool_] | None] | None:
        """Where chunks drive the tool, for pictures: its commanded positions, the present one first, and where it is closed.

        Args:
            chunks: (K, T, D) actions.
            observation: at the beginning of the chunks.

        Returns:
            Positions (K, T + 1, 3) in metres, or (K, T + 1, 2) in pixels of the rendered image, and whether the gripper is
            commanded to close (K, T + 1), None without one; None if the actions are no positions.
        """
        return None
