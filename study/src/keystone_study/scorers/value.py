"""A value function in the manner of V-GPS: how soon the task is solved after a chunk, from demonstrations and own rollouts."""

from __future__ import annotations

import torch
from torch import Tensor

from keystone_study.policies.flow import FlowConfig
from keystone_study.scorers.scorer import Scorer, features, perceptron

WIDTH = 128
DISCOUNT = 0.99  #: of a step
#: Contrast with chunks of other states, as conservative Q-learning has it: without it, chunks that nobody demonstrated would
#: be judged by what was demonstrated near them.
CONSERVATIVE = 0.1


class Value(Scorer):
    """Discounted success after a chunk: ``DISCOUNT`` to the number of steps until success, 0 in an episode that failed."""

    name = "value"

    def __init__(self, config: FlowConfig) -> None:
        super().__init__(config)
        self.network = perceptron(config.width + config.n_action_steps * config.action_dim, 1, WIDTH)

    def score(self, context: Tensor, candidates: Tensor) -> Tensor:
        value: Tensor = self.network(features(context, candidates, self.config.n_action_steps))[..., 0]
        return value

    def loss(self, context: Tensor, chunks: Tensor, target: Tensor, generator: torch.Generator) -> Tensor:
        """``target`` (B,): the return of each example."""
        others = chunks[torch.randperm(len(chunks), generator=generator)]
        values = self.score(context, torch.stack([chunks, others], 1))
        own, other = values[:, 0], values[:, 1]
        return (own - target).square().mean() + CONSERVATIVE * (torch.relu(other) - own).mean()
