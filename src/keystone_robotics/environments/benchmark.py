"""What a benchmark has to offer, so that policies can be trained and evaluated on it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

#: One observation, named as LeRobot's environments name it: ``agent_pos`` (the robot's own state), ``environment_state``
#: (everything, as numbers) and ``pixels`` (images), each where the environment has it.
Observation = dict[str, Any]
Array = NDArray[np.float32]


class Benchmark(ABC):
    """A set of tasks, each a gymnasium environment. A new benchmark is one short file with two classes.

    Its environments keep three promises, beyond gymnasium's:

    - ``reset(seed=n)`` leads to the same initial state for the same ``n``, whatever was done before: arms share initial states.
      ``info["initial_state"]`` holds the simulator's whole state (an array, or a dict of them; else the observation stands for
      it); its hash is stored, so that the pairing can be audited.
    - ``step`` says in ``info["success"]`` (or ``info["is_success"]``, as LeRobot's do) whether the task is done.
    - made with ``render=True``, ``render()`` returns an image (height, width, 3) of bytes.

    Attributes:
        name: as on the command line.
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
        """Steps after which an episode has failed, unless the user says otherwise."""
