"""Bidirectional decoding: agree with the previous chunk, and with the strong samples against the weak."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from keystone_robotics.select.engine import BatchResult
from keystone_robotics.select.rounds import Candidates, Round, as_float64, lowest
from keystone_robotics.select.rules.base import RoundRule
from keystone_robotics.select.rules.checks import number


@dataclass(frozen=True, eq=False)
class Coherent(RoundRule):
    """The candidate that best continues the previous chunk and lies among its peers.

    Keeps the third of the candidates nearest to ``previous`` where the two overlap, and of those takes the one with the
    smallest sum of: the distance to ``previous`` (per step, weighted decay^i, weights summing to 1), the mean distance to
    its nearest peers (half of them plus one), minus the mean distance to as many nearest chunks of ``weak``. Distances of
    whole chunks are divided by the root of their steps, which makes them distances per step too. Without ``previous`` (the
    first round) only the last two terms count.

    Args:
        previous: (T', D) what the previous chunk had planned from now on: its step 0 is for the same moment as step 0 of the
            candidates. (B, T', D) for batched candidates.
        weak: (M, T, D) chunks of a weaker policy for the same observation, or (B, M, T, D).
        decay: β, below 1 to trust the near future more.
        share: of the candidates that is kept for the second step.

    >>> import numpy as np, keystone_robotics as keystone
    >>> chunks = np.array([0.0, 1, 2, 9, 10, 11]).reshape(6, 1, 1)
    >>> keystone.select(chunks, "coherent", previous=np.array([[10.0]])).index
    4
    """

    name: ClassVar[str] = "coherent"
    remembers: ClassVar[bool] = True
    previous: Any = None
    weak: Any = None
    decay: float = 0.5
    share: float = 1 / 3

    def __post_init__(self) -> None:
        number("decay", self.decay, above=0, most=1)
        number("share", self.share, above=0, most=1)
        for name, value, ranks in (("previous", self.previous, (2, 3)), ("weak", self.weak, (3, 4))):
            if value is not None:
                object.__setattr__(self, name, _as_array(name, value, ranks))

    def select_batch(self, candidates: Candidates) -> BatchResult:
        batch = len(candidates.features)
        for name, value, rank in (("previous", self.previous, 2), ("weak", self.weak, 3)):
            if value is not None and value.ndim > rank and len(value) != batch:
                raise ValueError(f"{name} is a batch of {len(value)}, the candidates are {batch} rounds")
        return super().select_batch(candidates)

    def select_round(self, round: Round) -> int:
        n = len(round.chunks)
        kept: NDArray[np.intp] = np.arange(n)
        score: NDArray[np.float64] = np.zeros(n)
        if self.previous is not None:
            score = self._overlap(round, _row(self.previous, 2, round.row))
            kept = np.argsort(score.astype(np.float32), kind="stable")[: max(1, int(n * self.share))]
        score = score[kept]
        per_step = np.sqrt(len(round.layout.steps))
        count = min(len(kept) // 2 + 1, len(kept) - 1)
        if count:
            peers = np.sort(round.distances[np.ix_(kept, kept)], axis=1)[:, 1 : count + 1]
            score = score + peers.mean(1) / per_step
        if self.weak is not None:
            weak = _row(self.weak, 3, round.row)
            if weak.shape[1:] != round.chunks.shape[1:]:
                raise ValueError(f"weak has chunks of shape {weak.shape[1:]}, the candidates {round.chunks.shape[1:]}")
            distances = np.sort(round.distances_to(round.embed(weak))[kept], axis=1)
            score = score - distances[:, : len(kept) // 2 + 1].mean(1) / per_step
        return int(kept[lowest(score)])

    def _overlap(self, round: Round, previous: NDArray[np.float64]) -> NDArray[np.float64]:
        """(n,) weighted distance of each candidate to the previous chunk over the steps both have."""
        _, steps, dims = round.chunks.shape
        if previous.shape[1] != dims:
            raise ValueError(f"previous has {previous.shape[1]} dimensions, the candidates have {dims}")
        begin = round.layout.steps[0]
        shared = range(begin, min(steps, len(previous)))
        if not shared:
            return np.zeros(len(round.chunks))
        layout = dataclasses.replace(round.layout, steps=tuple(shared))
        padded = np.zeros((1, steps, dims))
        padded[0, : min(steps, len(previous))] = previous[:steps]
        both = layout.embed(np.concatenate([round.chunks, padded]))
        steps_apart = both.reshape(len(both), len(shared), -1)
        weights = self.decay ** np.arange(len(shared))
        distances = np.linalg.norm(steps_apart[:-1] - steps_apart[-1:], axis=2)
        return np.asarray(distances @ (weights / weights.sum()))


def _as_array(name: str, value: Any, ranks: tuple[int, int]) -> NDArray[np.float64]:
    array = as_float64(value)
    if array.ndim not in ranks:
        raise ValueError(f"{name} has shape {array.shape}: expected {ranks[0]} axes, or {ranks[1]} for a batch")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} holds a NaN or an infinity")
    return array


def _row(array: NDArray[np.float64], rank: int, row: int) -> NDArray[np.float64]:
    """The part of a possibly batched array that belongs to one round."""
    return array if array.ndim == rank else np.asarray(array[row])
