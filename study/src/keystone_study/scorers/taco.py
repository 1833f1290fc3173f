"""TACO's scorer: a coin-flip network that counts, on the policy's features, how often demonstrations did the like."""

from __future__ import annotations

import torch
from torch import Tensor

from keystone_study.policies.flow import FlowConfig
from keystone_study.scorers.scorer import Scorer, features, perceptron

COINS = 20  #: flips that the network predicts
WIDTH = 128


class Taco(Scorer):
    """Coin-flip network (Lobel et al., 2023) with a frozen random prior, as in TACO.

    Each example of the demonstrations has a vector of random coin flips (±1) of its own. The network learns to predict them
    from context and chunk. Where n similar examples were seen, the best prediction is the mean of n vectors, whose squared
    norm is about 1 / n of the number of coins. The prior makes unseen inputs look like ones that were never counted; the score
    is the negative of the norm, so that the candidate that demonstrations support most wins.
    """

    name = "taco"

    def __init__(self, config: FlowConfig) -> None:
        super().__init__(config)
        size = config.width + config.n_action_steps * config.action_dim
        self.network = perceptron(size, COINS, WIDTH)
        self.prior = perceptron(size, COINS, WIDTH).requires_grad_(False)
        self.register_buffer("prior_mean", torch.zeros(COINS))
        self.register_buffer("prior_std", torch.ones(COINS))

    prior_mean: Tensor
    prior_std: Tensor

    def calibrate(self, context: Tensor, chunks: Tensor) -> None:
        """Make the prior's outputs zero on average and of unit size over contexts (N, width) and chunks (N, T, D)."""
        with torch.no_grad():
            out = self.prior(features(context, chunks[:, None], self.config.n_action_steps)[:, 0])
        self.prior_mean.copy_(out.mean(0))
        self.prior_std.copy_(out.std(0).clamp_min(1e-6))

    def flips(self, context: Tensor, candidates: Tensor) -> Tensor:
        """(B, K, coins) predicted."""
        inputs = features(context, candidates, self.config.n_action_steps)
        predicted: Tensor = self.network(inputs) + (self.prior(inputs) - self.prior_mean) / self.prior_std
        return predicted

    def score(self, context: Tensor, candidates: Tensor) -> Tensor:
        return -self.flips(context, candidates).square().mean(-1)

    def loss(self, context: Tensor, chunks: Tensor, target: Tensor, generator: torch.Generator) -> Tensor:
        """``target`` (B, coins): the coin flips of each example, which stay the same throughout training."""
        return (self.flips(context, chunks[:, None])[:, 0] - target).square().mean()
