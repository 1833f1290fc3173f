"""Ensembles over time: the executed action is an average of what the chunks of the last steps planned for this step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from keystone_robotics.environments.benchmark import Array, Observation
from keystone_robotics.errors import KeystoneError
from keystone_study.policies.flow import FlowPolicy
from keystone_study.policies.flow_agent import FlowAgent

#: Maps n predictions of one action (n, D), oldest first, to weights (n,) that need not sum to one.
Weigh = Callable[[NDArray[np.float64]], NDArray[np.float64]]


def temporal_weights(predictions: NDArray[np.float64], decay: float = 0.01) -> NDArray[np.float64]:
    """ACT's temporal ensemble: exp(−decay · i), i = 0 being the oldest prediction, which weighs most.

    >>> temporal_weights(np.zeros((3, 2))).round(3).tolist()
    [1.0, 0.99, 0.98]
    """
    weights: NDArray[np.float64] = np.exp(-decay * np.arange(len(predictions)))
    return weights


def adaptive_weights(predictions: NDArray[np.float64], alpha: float = 0.1) -> NDArray[np.float64]:
    """CogACT's adaptive ensemble: exp(alpha · cosine similarity to the newest prediction).

    >>> adaptive_weights(np.array([[-1.0, 0.0], [1.0, 0.0]])).round(3).tolist()
    [0.905, 1.105]
    """
    newest = predictions[-1]
    lengths = np.linalg.norm(predictions, axis=1) * np.linalg.norm(newest)
    weights: NDArray[np.float64] = np.exp(alpha * (predictions @ newest) / (lengths + 1e-7))
    return weights


#: Weights, and how many of the last chunks are averaged: ACT takes all that overlap, CogACT seven (two for another robot).
ENSEMBLES: dict[str, tuple[Callable[..., NDArray[np.float64]], int | None]] = {
    "temporal-ensemble": (temporal_weights, None),
    "adaptive-ensemble": (adaptive_weights, 7),
}


class EnsembleAgent(FlowAgent):
    """Plans in every step, and returns one averaged action.

    A chunk belongs to the observation that it was planned from. The history of an episode holds the observations of the last
    steps, so that nothing needs to be known about episodes: where its own first chunk is, the average begins.

    Args:
        policy: draws one chunk in every step.
        tasks: that it was trained on.
        weigh: the weights.
        window: most chunks that are averaged; None for all that overlap.
    """

    def __init__(self, policy: FlowPolicy, tasks: Sequence[str], weigh: Weigh, window: int | None = None) -> None:
        super().__init__(policy, tasks)
        self._weigh = weigh
        self.history = min(window or policy.config.horizon, policy.config.horizon)
        self._planned: dict[int, tuple[Observation, Array]] = {}  # by identity of the observation, which it keeps alive

    @property
    def execute(self) -> int:
        return 1

    @execute.setter
    def execute(self, steps: int) -> None:
        if steps != 1:
            raise KeystoneError(f"execute={steps}: an ensemble over time plans in every step")

    def plan(self, histories: Sequence[Sequence[Observation]], tasks: Sequence[str]) -> Array:
        chunks = super().plan(histories, tasks)
        seen = {id(observation) for history in histories for observation in history}
        self._planned = {key: value for key, value in self._planned.items() if key in seen}
        for history, chunk in zip(histories, chunks, strict=True):
            self._planned[id(history[-1])] = (history[-1], chunk)
        averaged: Array = np.stack([self._average(list(history)) for history in histories])
        return averaged[:, None]

    def _average(self, history: Sequence[Observation]) -> Array:
        """(D,) for the next step. Chunks are absolute, so that they can be averaged; directions are compared as seen from the
        robot's present position, from where positions are motions.
        """
        predictions = np.stack(
            [
                self._planned[id(observation)][1][len(history) - 1 - at]
                for at, observation in enumerate(history)
                if id(observation) in self._planned
            ]
        ).astype(np.float64)
        dims, motions = list(self.policy.config.relative), predictions.copy()
        if dims:
            motions[:, dims] -= np.asarray(history[-1]["agent_pos"], np.float64)[dims]
        averaged: Array = np.average(predictions, axis=0, weights=self._weigh(motions)).astype(np.float32)
        return averaged
