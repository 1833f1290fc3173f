"""A stored episode, executed again: what the robot saw in every round, and images of it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from keystone_robotics.environments.benchmark import Benchmark, Observation
from keystone_robotics.errors import KeystoneError
from keystone_robotics.evaluate.rollout import hash_state
from keystone_robotics.records import EpisodeRecord, RoundRecord

log = logging.getLogger("keystone")

Image = NDArray[np.uint8]


@dataclass(frozen=True)
class Replay:
    """What a replayed episode showed.

    Attributes:
        observations: at the beginning of each round.
        frames: environment steps and images (H, W, 3) after them, the initial state's first; empty if nothing can be drawn.
        seconds: of one environment step; None if the environment does not say.
        notes: what differs from the stored episode, or could not be drawn, for the reader.
    """

    observations: tuple[Observation, ...]
    frames: tuple[tuple[int, Image], ...] = ()
    seconds: float | None = None
    notes: tuple[str, ...] = field(default=())


def replay_episode(
    benchmark: Benchmark, episode: EpisodeRecord, rounds: Sequence[RoundRecord], every: int = 0
) -> Replay:
    """Reset to the initial state of an episode and execute its stored actions.

    Args:
        benchmark: of the episode.
        episode: its record.
        rounds: all of its rounds.
        every: steps between two images; 0 draws none.

    Raises:
        KeystoneError: if the environment cannot be made, or begins in another state.
    """
    if episode.initial_seed is None:
        raise KeystoneError(f"{episode.task} episode {episode.episode} does not say which seed it began with")
    env = benchmark.make(episode.task, render=every > 0)
    try:
        observation, info = env.reset(seed=episode.initial_seed)
        state = info.get("initial_state")
        if hash_state(observation if state is None else state) != episode.initial_state:
            raise KeystoneError(
                f"{episode.task} episode {episode.episode} begins in another state here: another version of the simulator?"
            )
        fps = (getattr(env, "metadata", None) or {}).get("render_fps")
        notes: list[str] = []
        frames: list[tuple[int, Image]] = []
        observations: list[Observation] = []
        every = every if every and _draw(env, 0, frames, notes) else 0
        step, success = 0, False
        for record in rounds:
            observations.append(observation)
            for action in record.actions:
                observation, _, _, _, info = env.step(action)
                step, success = step + 1, bool(info.get("success", info.get("is_success", False)))
                if every and (step % every == 0 or step == episode.steps):
                    every = every if _draw(env, step, frames, notes) else 0
    finally:
        env.close()
    if success != episode.success:
        ends = {True: "succeeds", False: "fails"}
        notes.append(f"replayed, the episode {ends[success]}; when it was stored, it {ends[episode.success]}")
    return Replay(tuple(observations), tuple(frames), 1 / fps if fps else None, tuple(notes))


def _draw(env: Any, step: int, frames: list[tuple[int, Image]], notes: list[str]) -> bool:
    """Add an image; False, with a note, if the environment cannot be drawn."""
    try:
        if getattr(env, "render_mode", "rgb_array") is None:
            raise NotImplementedError("it was made without images")
        image = np.asarray(env.render())
        if image.ndim != 3 or image.shape[2] != 3:
            raise TypeError(f"render() returned shape {image.shape}")
    except Exception as error:  # graphics fail in many ways, and the rest needs none
        notes.append(f"the environment cannot be drawn: {error}")
        return False
    frames.append((step, np.ascontiguousarray(image, np.uint8)))
    return True
