"""The result of a shard."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from keystone_robotics.evaluate.config import EvaluationConfig, Shard
from keystone_robotics.records import EpisodeKey, EpisodeRecord

log = logging.getLogger("keystone")


@dataclass(frozen=True)
class ShardResult:
    """Episodes of a shard, all of them unless fewer were asked for, the seconds they took, and the `weights_fingerprint` of the
    policy, "" if unknown.
    """

    shard: Shard
    episodes: tuple[EpisodeRecord, ...]
    seconds: float
    weights: str = ""


def shard_keys(shard: Shard) -> list[EpisodeKey]:
    """The keys under which the episodes of a shard are stored."""
    return [(str(shard.arm), shard.task, shard.repeat, episode) for episode in shard.episodes]


def failed_episodes(
    settings: EvaluationConfig, shard: Shard, numbers: Sequence[int], reason: str
) -> tuple[EpisodeRecord, ...]:
    """Episodes of a shard as errors: they count as failures instead of being dropped."""
    log.error("episodes %s failed (%s): %s", ", ".join(map(str, numbers)), shard, reason.strip().rpartition("\n")[2])
    return tuple(
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
        for number in numbers
    )
