"""Shards whose workers died."""

from __future__ import annotations

import logging

from keystone.evaluate.results import EpisodeResult, ShardResult
from keystone.evaluate.settings import Settings, Shard

log = logging.getLogger("keystone")

#: How often a shard is tried whose worker dies.
TRIES = 3


def given_up(settings: Settings, shard: Shard, reason: str) -> ShardResult:
    """All episodes of a shard as errors: counted, never dropped."""
    log.error("gave up on %s: %s", shard, reason)
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
    return ShardResult(shard, episodes, 0.0)
