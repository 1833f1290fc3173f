"""What a scorer is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from keystone_robotics.select import Scored
from keystone_study.policies.flow import FlowConfig, FlowPolicy


class Scorer(nn.Module, ABC):
    """Scores the candidates of a flow policy.

    Attributes:
        name: in `keystone_study.scorers.store.SCORERS`.
    """

    name: ClassVar[str]

    def __init__(self, config: FlowConfig) -> None:
        super().__init__()
        self.config = config

    @abstractmethod
    def score(self, context: Tensor, candidates: Tensor) -> Tensor:
        """(B, K), higher is better, for the policy's context (B, width) and normalised candidates (B, K, T, D)."""

    @abstractmethod
    def loss(self, context: Tensor, chunks: Tensor, target: Tensor, generator: torch.Generator) -> Tensor:
        """Of contexts (B, width), normalised chunks (B, T, D) and what is learned about each, (B, …)."""

    def rule(self, policy: FlowPolicy) -> Scored:
        """For ``keystone.attach(policy, rule=…)``: the candidate with the highest score."""

        def score(context: Mapping[str, Any], candidates: Tensor) -> Tensor:
            return self.score(context["context"], (candidates - policy.action_mean) / policy.action_std)

        score.__name__ = self.name
        return Scored(score)


def perceptron(inputs: int, outputs: int, width: int) -> nn.Sequential:
    """Two hidden layers."""
    return nn.Sequential(
        nn.Linear(inputs, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, outputs)
    )


def features(context: Tensor, candidates: Tensor, executed: int) -> Tensor:
    """(B, K, width + executed * D): the context beside the executed steps of each candidate (B, K, T, D)."""
    flat = candidates[:, :, :executed].flatten(2)
    return torch.cat([context[:, None].expand(-1, flat.shape[1], -1), flat], -1)
