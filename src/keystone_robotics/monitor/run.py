"""Scores of the rounds that ``keystone eval --keep-rounds`` stored."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from keystone_robotics.errors import KeystoneError, nearest_name
from keystone_robotics.monitor.conformal import Floats, smooth
from keystone_robotics.monitor.observed import Observed, observe_record
from keystone_robotics.monitor.scores import SCORES, Score
from keystone_robotics.monitor.separation import Series
from keystone_robotics.records import EpisodeRecord, RoundRecord, Store


@dataclass(frozen=True)
class EpisodeScores:
    """One episode.

    Attributes:
        record: what is stored about it.
        scores: by name (rounds,), higher is worse.
    """

    record: EpisodeRecord
    scores: dict[str, Floats]


@dataclass(frozen=True)
class RunScores:
    """One arm of a run.

    Attributes:
        source: its folder.
        arm: text of the arm's Spec.
        policy: name of the policy.
        fingerprint: of the policy's files.
        weights: `weights_fingerprint` of the policy; "" if unknown.
        env: benchmark.
        seed: of initial states and noise.
        execute: steps executed between rounds; None if unknown.
        episodes: those with kept rounds that no error ended.
        errors: number of episodes that an error ended, which are left out.
        k: most candidates of a round; 0 if unknown.
    """

    source: str
    arm: str
    policy: str
    fingerprint: str
    weights: str
    env: str
    seed: int
    execute: int | None
    episodes: tuple[EpisodeScores, ...]
    errors: int = 0
    k: int = 0

    @property
    def tasks(self) -> tuple[str, ...]:
        return tuple(sorted({one.record.task for one in self.episodes}))

    def successes(self) -> list[EpisodeScores]:
        return [one for one in self.episodes if one.record.success]

    def failures(self) -> list[EpisodeScores]:
        return [one for one in self.episodes if not one.record.success]

    def series(self, score: str, sign: int, window: int) -> list[Series]:
        """The episodes with one score, in one direction, smoothed."""
        return [
            Series(one.record.task, one.record.episode, one.record.success, smooth(sign * one.scores[score], window))
            for one in self.episodes
        ]


def score_rounds(rounds: Sequence[RoundRecord], scores: Iterable[Score]) -> dict[str, Floats]:
    """The scores of one episode's rounds, by name."""
    wanted = list(dict.fromkeys(scores))
    found: dict[str, list[float]] = {score.name: [] for score in wanted}
    before: Observed | None = None
    for record in rounds:
        now = observe_record(record)
        for score in wanted:
            found[score.name].append(score(now, before))
        before = now
    return {name: np.array(values, np.float64) for name, values in found.items()}


def read_run(
    folder: Path,
    arm: str | None = None,
    scores: Iterable[Score] = tuple(SCORES.values()),
    progress: Callable[[int, int], None] | None = None,
    prefer: str = "",
) -> RunScores:
    """The scores of one arm of a run.

    Args:
        folder: of a ``keystone eval --keep-rounds``.
        arm: text of its Spec; None is the only one with more than one candidate.
        scores: which.
        progress: called with the number of episodes done and of all.
        prefer: the arm to take if the run has it and none is given.

    Raises:
        KeystoneError: if there is no such run or arm, or it has no kept rounds.
    """
    wanted = list(scores)
    with Store(folder) as store:
        stored, identity, weights = store.episodes(), store.identity(), store.noted("weights")
        if not identity.get("keep_rounds"):
            raise KeystoneError(
                f"{folder} holds no rounds: roll out with `keystone eval --keep-rounds`, which stores the candidates"
            )
        seed = identity.get("seed", 0)
        if type(seed) is not int:
            raise KeystoneError(f"{store.path} is damaged: its seed is {seed!r}, expected a whole number")
        name = _choose_arm(store, stored, folder, arm, prefer)
        own = [one for one in stored if one.arm == name]
        episodes: list[EpisodeScores] = []
        execute: list[int] = []
        k = 0
        for number, one in enumerate(own):
            if one.error is None:
                rounds = store.rounds(one.key)
                execute += [len(kept.actions) for kept in rounds[:-1]]
                k = max([k, *(len(kept.candidates) for kept in rounds)])
                episodes.append(EpisodeScores(one, score_rounds(rounds, wanted)))
            if progress is not None:
                progress(number + 1, len(own))
    return RunScores(
        source=str(folder),
        arm=name,
        policy=str(_settings(folder).get("policy", "")),
        fingerprint=str(identity.get("policy", "")),
        weights=weights or "",
        env=str(identity.get("env", "")),
        seed=seed,
        execute=int(np.median(execute)) if execute else None,
        episodes=tuple(episodes),
        errors=len(own) - len(episodes),
        k=k,
    )


def _choose_arm(store: Store, stored: Sequence[EpisodeRecord], folder: Path, arm: str | None, prefer: str) -> str:
    if not stored:
        raise KeystoneError(f"{folder} holds no episode yet: wait for the first shard")
    arms = sorted({one.arm for one in stored})
    if arm is not None:
        if arm not in arms:
            raise KeystoneError(f"{folder} has no arm {arm!r}: {nearest_name(arm, arms)}")
        return arm
    if prefer in arms:
        return prefer
    several = [name for name in arms if _candidates(store, stored, name) > 1]
    if not several:
        raise KeystoneError(f"{folder}: K = 1 in all arms ({', '.join(arms)}), and one candidate cannot disagree")
    if len(several) > 1:
        raise KeystoneError(f"{folder} has several arms with candidates, choose one: --arm {' | --arm '.join(several)}")
    return several[0]


def _candidates(store: Store, stored: Sequence[EpisodeRecord], arm: str) -> int:
    """K of the first kept round of an arm; 0 if there is none."""
    for one in stored:
        if one.arm == arm and (rounds := store.rounds(one.key)):
            return len(rounds[0].candidates)
    return 0


def _settings(folder: Path) -> dict[str, Any]:
    """The settings beside the store; empty if they are missing or unreadable."""
    try:
        settings = json.loads((folder / "settings.json").read_text())
    except (OSError, ValueError):
        return {}
    return settings if isinstance(settings, dict) else {}
