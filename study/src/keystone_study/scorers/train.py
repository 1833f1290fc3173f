"""Training of a scorer on the features of a trained flow policy."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from keystone_robotics.environments.benchmark import Array
from keystone_study.policies.flow import FlowPolicy
from keystone_study.scorers.scorer import Scorer
from keystone_study.scorers.store import make_scorer
from keystone_study.scorers.taco import COINS, Taco
from keystone_study.scorers.value import DISCOUNT
from keystone_study.train.demonstration import Demonstration
from keystone_study.train.expert import Expert
from keystone_study.train.optimise import Schedule, optimise
from keystone_study.train.windows import cut_windows


class ScorerLearner:
    """A `Learner` of a scorer.

    Args:
        name: of the scorer.
        policy: whose features it uses; stays as it is.
        episodes: demonstrations and, for the value function, rollouts of the policy that failed.
        expert: of the benchmark, for how chunks are cut.
        seed: of weights and coin flips.
    """

    def __init__(
        self, name: str, policy: FlowPolicy, episodes: Sequence[Demonstration], expert: Expert, seed: int
    ) -> None:
        config = policy.config
        windows = cut_windows(episodes, config.horizon, expert.motion, config.relative)
        self.module: Scorer = make_scorer(name, config, seed)
        with torch.no_grad():
            self._context = policy.encode(torch.from_numpy(windows.environment_state))
        self._chunks = (torch.from_numpy(windows.chunks) - policy.action_mean) / policy.action_std
        self.examples = len(self._chunks)
        if isinstance(self.module, Taco):
            flips = torch.randint(2, (self.examples, COINS), generator=torch.Generator().manual_seed(seed))
            self._targets = 2.0 * flips - 1.0
            self.module.calibrate(self._context, self._chunks)
        else:
            self._targets = torch.from_numpy(np.concatenate([returns(one) for one in episodes]))

    def loss(self, rows: Tensor, generator: torch.Generator) -> Tensor:
        return self.module.loss(self._context[rows], self._chunks[rows], self._targets[rows], generator)


def returns(episode: Demonstration) -> Array:
    """(L,) float32: `DISCOUNT` to the number of steps that are left in the episode if it succeeds, else 0.

    >>> ones = np.ones((3, 2), np.float32)
    >>> [round(float(one), 4) for one in returns(Demonstration(ones, ones, ones, True))]
    [0.9801, 0.99, 1.0]
    """
    left = np.arange(len(episode.actions))[::-1]
    found: Array = (episode.success * DISCOUNT**left).astype(np.float32)
    return found


def train_scorer(
    learner: ScorerLearner, checkpoint: Path, iterations: int = 2000, seed: int = 0
) -> tuple[Scorer, float]:
    """The trained scorer, and the seconds of CPU that it took."""
    begin = time.process_time()
    optimise(learner, Schedule(iterations=iterations, batch=192), seed, checkpoint)
    return learner.module.eval().requires_grad_(False), time.process_time() - begin
