"""What comes out of episodes."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from keystone_robotics.evaluate.config import EvaluationConfig, Shard

log = logging.getLogger("keystone")


@dataclass(frozen=True)
class RoundRecord:
    """One round of one episode, for reports.

    Attributes:
        number: of the round in its episode.
        step: of the episode at which it began.
        candidates: (K, T, D) as the policy's sampler returned them.
        labels: (K,) cluster of each; -1 dropped.
        index: the chosen one.
        synthesised: the chunk is none of the candidates but made from them.
        consensus: share of the winning cluster.
        spread: the guard's measure.
        actions: (n, A) what was executed, in the environment's units.
    """

    number: int
    step: int
    candidates: NDArray[np.float32]
    labels: NDArray[np.int64]
    index: int
    synthesised: bool
    consensus: float
    spread: float
    actions: NDArray[np.float32]


@dataclass(frozen=True)
class EpisodeResult:
    """One episode.

    Attributes:
        episode: its number.
        initial_state: hash of the simulator's state after the reset; episodes of other arms with the same are paired.
        initial_seed: that the environment was reset with.
        noise_seed: of the first round's noise.
        success: whether the task was done; False where an error ended the episode.
        steps: that were executed.
        rounds: in which chunks were chosen.
        consensus: mean share of the winning cluster, None where nothing was chosen.
        latency_ms: of one round for this episode's first observation alone; None if it was not reached.
        error: traceback of what ended the episode, if something did.
        kept: its rounds, where they are to be stored.
    """

    episode: int
    initial_state: str
    initial_seed: int
    noise_seed: int
    success: bool
    steps: int
    rounds: int
    consensus: float | None
    latency_ms: float | None
    error: str | None = None
    kept: tuple[RoundRecord, ...] = ()


@dataclass(frozen=True)
class ShardResult:
    """All episodes of a shard, and the seconds it took."""

    shard: Shard
    episodes: tuple[EpisodeResult, ...]
    seconds: float


def given_up(settings: EvaluationConfig, shard: Shard, reason: str, seconds: float = 0.0) -> ShardResult:
    """All episodes of a shard as errors: counted, never dropped."""
    log.error("gave up on %s: %s", shard, reason.strip().rpartition("\n")[2])
    episodes = tuple(
        EpisodeResult(
            episode=number,
            initial_state="",
            initial_seed=settings.initial_seed(number),
            noise_seed=settings.noise_seed(shard.repeat, shard.task, number, 0),
            success=False,
            steps=0,
            rounds=0,
            consensus=None,
            latency_ms=None,
            error=reason,
        )
        for number in shard.episodes
    )
    return ShardResult(shard, episodes, seconds)
