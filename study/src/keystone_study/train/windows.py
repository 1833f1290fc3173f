"""Cut demonstrations into training examples: the observation of every step and the chunk that followed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from keystone_robotics.environments.benchmark import Array
from keystone_study.train.demonstration import Demonstration

#: Smallest standard deviation that observations are divided by. Some numbers never change in the demonstrations (most of the
#: flags that tell the task, the orientation of an object that never turns): a smaller one would explode the first time they do.
OBSERVATION_FLOOR = 1e-2
ACTION_FLOOR = 1e-3  #: the same for actions


class Windows(NamedTuple):
    """N steps of all demonstrations.

    Attributes:
        agent_pos: (N, P) the robot's own state.
        environment_state: (N, O) the full state.
        chunks: (N, H, A) the actions of this step and the H - 1 that followed.
    """

    agent_pos: Array
    environment_state: Array
    chunks: Array


class Statistics(NamedTuple):
    """Of each of D numbers, over everything else; ``std`` is no smaller than a floor, nor is ``max - min``."""

    mean: Array
    std: Array
    min: Array
    max: Array


def cut_windows(
    demonstrations: Sequence[Demonstration],
    horizon: int,
    motion: Sequence[int] = (),
    relative: Sequence[int] = (),
) -> Windows:
    """One window for every step of every demonstration.

    Past the end of a demonstration its last action is repeated, except that motions stop.

    Args:
        demonstrations: at least one.
        horizon: H, steps in a chunk.
        motion: dimensions of actions that are motions.
        relative: dimensions of actions that are positions, expressed relative to ``agent_pos`` at the start of the chunk.

    >>> ones = np.ones((3, 2), np.float32)
    >>> windows = cut_windows([Demonstration(ones, ones, 5 * ones, True)], horizon=2, motion=[0], relative=[1])
    >>> windows.chunks[2].tolist()                          # the last step, and what is held after it
    [[5.0, 4.0], [0.0, 4.0]]
    """
    return Windows(
        np.concatenate([one.agent_pos for one in demonstrations]),
        np.concatenate([one.environment_state for one in demonstrations]),
        np.concatenate([_chunks(one, horizon, motion, relative) for one in demonstrations]),
    )


def _chunks(demonstration: Demonstration, horizon: int, motion: Sequence[int], relative: Sequence[int]) -> Array:
    """(L, H, A) of one demonstration of L steps."""
    length = len(demonstration.actions)
    steps = np.arange(length)[:, None] + np.arange(horizon)
    chunks: Array = demonstration.actions[np.minimum(steps, length - 1)]
    for dim in motion:
        chunks[..., dim] = np.where(steps < length, chunks[..., dim], 0.0)
    for dim in relative:
        chunks[..., dim] -= demonstration.agent_pos[:, None, dim]
    return chunks


def statistics(values: NDArray[np.floating], floor: float) -> Statistics:
    """Of values (..., D).

    >>> statistics(np.zeros((8, 1)), floor=0.01).std.tolist()[0]  # doctest: +ELLIPSIS
    0.0099...
    """
    flat = values.reshape(-1, values.shape[-1]).astype(np.float64)
    low, high = flat.min(0), flat.max(0)
    widen = np.maximum(0.0, floor - (high - low)) / 2
    found = (flat.mean(0), np.maximum(flat.std(0), floor), low - widen, high + widen)
    return Statistics(*(value.astype(np.float32) for value in found))
