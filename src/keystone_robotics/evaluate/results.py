"""The result of a shard."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from keystone_robotics.evaluate.config import EvaluationConfig, Shard
from keystone_robotics.records import EpisodeKey, EpisodeRecord

log = logging.getLogger("keystone")


@dataclass(frozen=True)
class ShardResult:
    """All episodes of a shard, the seconds it took, and the `weights_fingerprint` of its policy, "" if unknown."""

    shard: Shard
    episodes: tuple[EpisodeRecord, ...]
    seconds: float
    weights: str = ""


def shard_keys(shard: Shard) -> list[EpisodeKey]:
    """The keys under which the episodes of a shard are stored."""
    return [(str(shard.arm), shard.task, shard.repeat, episode) for episode in shard.episodes]


def failed_shard(settings: EvaluationConfig, shard: Shard, reason: str, seconds: float = 0.0) -> ShardResult:
    """All episodes of a shard as errors: they count as failures instead of being dropped."""
    log.error("shard failed (%s): %s", shard, reason.strip().rpartition("\n")[2])
    episodes = tuple(
        EpisodeRecord(
            arm=str(shard.arm),
            task=shard.task,
            repeat=shard.repeat,
            episode=number,
            success=False,
            initial_seed=settings.initial_seed(number),
            noise_seed=settings.noise_seed(shard.repeat, shard.task, number, 0),
            error=reason,
        )
        for number in shard.episodes
    )
    return ShardResult(shard, episodes, seconds)
