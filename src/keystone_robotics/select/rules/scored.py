"""The candidate that a learned scorer likes best: a value function, a reward model, a verifier."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from keystone_robotics.select.engine import BatchResult, select_rounds
from keystone_robotics.select.rounds import Candidates, RuleResult
from keystone_robotics.select.rules.base import Rule, with_results


@dataclass(frozen=True)
class Scored(Rule):
    """The candidate with the highest score; of equal ones the first.

    Args:
        score: called once a round as ``score(context, candidates)``. The context is what the policy's sampling method was
            called with, by the names of its parameters (``{"context": …, "noise": …}``, ``{"images": …, "state": …}``); the
            candidates are a tensor (B, K, T, D) as the method returns them, on its device. Returns (B, K) numbers.

    >>> import torch, keystone_robotics as keystone
    >>> class Policy(torch.nn.Module):
    ...     def act(self, goal):
    ...         return goal[:, None] + torch.randn(len(goal), 8, 2)
    >>> def nearness(context, candidates):                       # the chunk that ends nearest to the goal
    ...     return -(candidates[:, :, -1] - context["goal"][:, None]).norm(dim=-1)
    >>> policy = Policy()
    >>> handle = keystone.attach(policy, k=16, site="act", seed=0, rule=keystone.Scored(nearness))
    >>> policy.act(torch.zeros(1, 2)).shape, handle.last.rule
    (torch.Size([1, 8, 2]), 'nearness')
    """

    score: Callable[[Mapping[str, Any], Any], Any]
    _scores: NDArray[np.float64] | None = field(default=None, repr=False, compare=False)

    @property
    def name(self) -> str:  # type: ignore[override]
        return getattr(self.score, "__name__", type(self.score).__name__)

    def __post_init__(self) -> None:
        if not callable(self.score):
            raise TypeError(
                f"score={self.score!r}: expected a function score(context, candidates) that returns (B, K) numbers"
            )

    def of(self, context: Mapping[str, Any], candidates: Any) -> Scored:
        """The rule for one round: with the scores of these candidates, a tensor (B, K, T, D)."""
        scores = self.score(context, candidates)
        if hasattr(scores, "detach"):
            scores = scores.detach().double().cpu()
        values = np.asarray(scores, np.float64)
        expected = tuple(candidates.shape[:2])
        if values.shape != expected:
            raise ValueError(f"scorer {self.name} returned shape {values.shape}: expected (B, K), here {expected}")
        return replace(self, _scores=values)

    def select_batch(self, candidates: Candidates) -> BatchResult:
        if self._scores is None:
            raise TypeError(f"scorer {self.name} needs what a policy was called with: keystone.attach(policy, rule=…)")
        medoids, results = select_rounds(candidates), []
        for scores, labels in zip(self._scores, medoids.labels, strict=True):
            valid = scores[labels >= 0]
            if not valid.size:
                return medoids  # a round without a valid candidate: the caller raises
            if np.isnan(valid).any():
                raise ValueError(f"scorer {self.name} returned NaN for a finite candidate")
            results.append(RuleResult(int(valid.argmax())))
        return with_results(candidates, medoids, results)
