"""The records of one episode and of one round of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from keystone_robotics.select import ActionSpace

if TYPE_CHECKING:
    from keystone_robotics.sample.adapter import Window  # imports torch, which takes seconds

#: What identifies an episode of a run: arm, task, repeat, episode.
EpisodeKey: TypeAlias = tuple[str, str, int, int]


@dataclass(frozen=True)
class RoundRecord:
    """One round of one episode.

    Attributes:
        number: index of the round in its episode.
        step: environment step at which the round began.
        candidates: (K, T, D) as the policy's sampler returned them.
        labels: (K,) cluster of each candidate; -1 if it was dropped as non-finite.
        index: the chosen candidate, or the one nearest to a synthesised chunk.
        synthesised: the executed chunk was averaged from candidates.
        consensus: `Selection.consensus`.
        spread: `Selection.spread`.
        actions: (n, A) executed actions in the environment's units.
        dispersion: `Selection.dispersion`; None in rounds stored by 0.1.0.
        median_distance: `Selection.median_distance`; None in rounds stored by 0.1.0.
        space: `RoundEvent.space`; None if unknown.
        window: `RoundEvent.window`; None if unknown.
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
    dispersion: float | None = None
    median_distance: float | None = None
    space: ActionSpace | None = None
    window: Window | None = None


@dataclass(frozen=True)
class EpisodeRecord:
    """One episode, from `keystone eval` or from another tool's results. What a tool does not record keeps its default.

    Attributes:
        task: name of the task.
        episode: index of the initial state within the task.
        success: whether the task was completed; False if an error ended the episode.
        repeat: repetition of the initial state with fresh policy noise.
        arm: name of the arm.
        initial_state: hash of the simulator's state after reset, "" if unknown. Equal hashes show that episodes are paired.
        initial_seed: the environment was reset with this seed.
        noise_seed: seed of the first round's noise.
        steps: environment steps executed.
        rounds: number of rounds (chunks selected).
        consensus: mean of `Selection.consensus` over the rounds; None for K = 1.
        dispersion: mean of `Selection.dispersion` over the rounds; None for K = 1.
        median_distance: mean of `Selection.median_distance` over the rounds; None for K = 1.
        drawn: mean of `Selection.drawn` over the rounds, candidates per round; None for K = 1 and in older runs.
        latency_ms: time of one round for the first observation, batch size 1; None if not measured.
        error: traceback of the error that ended the episode.
        kept_rounds: the rounds, where they are stored; `Store.episodes` does not load them.
    """

    task: str
    episode: int
    success: bool
    repeat: int = 0
    arm: str = ""
    initial_state: str = ""
    initial_seed: int | None = None
    noise_seed: int | None = None
    steps: int = 0
    rounds: int = 0
    consensus: float | None = None
    dispersion: float | None = None
    median_distance: float | None = None
    drawn: float | None = None
    latency_ms: float | None = None
    error: str | None = None
    kept_rounds: tuple[RoundRecord, ...] = ()

    @property
    def key(self) -> EpisodeKey:
        return self.arm, self.task, self.repeat, self.episode
