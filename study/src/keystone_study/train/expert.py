"""The interface of an expert, and the random numbers of its attempts."""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from keystone_robotics.environments import Array, Benchmark
from keystone_robotics.evaluate.config import DEMONSTRATIONS
from keystone_study.train.demonstration import Demonstration

#: Initial states of demonstrations are drawn with seeds from the first of these up to the second. Evaluation takes 0, 1, 2,
#: ...: no policy is evaluated on a state that it was trained on.
FIRST_SEED, LAST_SEED = DEMONSTRATIONS, 2**31


class Expert(ABC):
    """Demonstrates the tasks of one benchmark.

    Attributes:
        benchmark: the tasks.
        default_tasks: training tasks if the user names none.
        regimes: names of the regimes of imperfection.
        relative: action dimensions that are positions, which a policy may learn relative to the robot's own.
        motion: action dimensions that are motions: zero in all of them holds still.
        horizon: steps in a chunk of a policy for this benchmark ...
        n_action_steps: ... and how many of them are executed.
        width: of the hidden layers of a flow policy for it.
        image: width and height of the image that a policy sees instead of the state, in pixels; 0 for the state.
        repeated: leading numbers of `environment_state` that repeat `agent_pos`; LeRobot's environment leaves them out.
        packages: distributions whose versions affect demonstrations.
    """

    benchmark: ClassVar[Benchmark]
    default_tasks: ClassVar[tuple[str, ...]]
    regimes: ClassVar[tuple[str, ...]]
    relative: ClassVar[tuple[int, ...]] = ()
    motion: ClassVar[tuple[int, ...]] = ()
    horizon: ClassVar[int] = 16
    n_action_steps: ClassVar[int] = 8
    width: ClassVar[int] = 192
    image: ClassVar[int] = 0
    repeated: ClassVar[int] = 0
    packages: ClassVar[tuple[str, ...]]

    @abstractmethod
    def describe(self, regime: str) -> str:
        """Everything but task, seed and index that a demonstration depends on; identifies stored ones."""

    @abstractmethod
    def demonstrate(self, task: str, regime: str, seed: int, index: int) -> Demonstration:
        """The attempt number ``index``, successful or not: a function of these four alone, whatever was done before."""

    def draw(self, environment_states: Array) -> NDArray[np.uint8]:
        """(N, image, image, 3) what was seen in states (N, O) of demonstrations, which store no images."""
        raise NotImplementedError


def attempt_random(task: str, regime: str, seed: int, index: int) -> tuple[np.random.Generator, int]:
    """The random numbers of one attempt, and the seed of its initial state.

    >>> random, state_seed = attempt_random("reach-v3", "clean", seed=0, index=3)
    >>> 2**30 <= state_seed < 2**31
    True
    """
    random = np.random.default_rng([zlib.crc32(f"{task}/{regime}".encode()), seed, index])
    return random, int(random.integers(FIRST_SEED, LAST_SEED))
