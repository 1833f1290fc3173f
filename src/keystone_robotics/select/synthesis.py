"""Averaging chunks where that makes sense: a mean, but rotations as rotations and grippers by vote."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from keystone_robotics.select import rotations
from keystone_robotics.select.engine import NEVER, BatchResult, Clustering, mean_chunks, select_rounds
from keystone_robotics.select.rounds import Candidates, Round, RuleResult, lowest
from keystone_robotics.select.rules.base import rounds, with_results


def average_rounds(
    candidates: Candidates, average: str, clustering: Clustering = NEVER, share: float = 1.0
) -> BatchResult:
    """The mean chunk of some candidates of each round; arguments as in `select_rounds`."""
    result = select_rounds(candidates, clustering, average, share)
    if result.dropped and result.indices[:, 0].min() < 0:
        return result  # a round without a valid candidate: the caller raises
    layout = candidates.layout
    if layout is None or layout.is_plain:
        return BatchResult(*result[:5], mean_chunks(candidates.chunks, result.members))
    members = [of[labels >= 0] for of, labels in zip(result.members, result.labels, strict=True)]
    means = [_average(shown, of) for shown, of in zip(rounds(candidates, result), members, strict=True)]
    return with_results(candidates, result, means)


def _average(round: Round, of: NDArray[np.bool_]) -> RuleResult:
    """The mean chunk of some candidates, and the real candidate (of all) nearest to it.

    Every dimension of the chunk is averaged, whether it counts in distances or not. Rotation dimensions get the mean
    rotation, written as the nearest candidate writes it (a quaternion has two signs). At each step a gripper is opened or
    closed as most members say, at the mean of those that say so: the mean of all would be half open.
    """
    chunks = round.chunks[of]
    mean = chunks.mean(0)
    layout = round.layout
    for name, block in layout.rotations:
        dims = list(block)
        matrices = rotations.to_matrix(name, chunks[..., dims])
        real = np.isfinite(matrices).all((0, 2, 3))  # steps that do not count may hold padding
        if real.any():
            turned = rotations.from_matrix(name, rotations.mean_rotation(matrices[:, real]))
            mean[np.flatnonzero(real)[:, None], dims] = turned
    for dim, kind in layout.grippers:
        threshold = 0.0 if kind == "logit" else kind
        mean[:, dim] = _vote(chunks[..., dim], threshold)
    features = round.embed(mean[None])
    nearest = lowest(round.distances_to(features)[:, 0])
    for name, block in layout.rotations:
        dims = list(block)
        if name == "angle":  # a joint at 3.5 rad must not be sent to -2.8: stay on the turn that the candidates are on
            mean[:, dims] += 2 * np.pi * np.round((round.chunks[nearest][:, dims] - mean[:, dims]) / (2 * np.pi))
        if name.startswith("quaternion"):
            same_sign = (mean[:, dims] * round.chunks[nearest][:, dims]).sum(1, keepdims=True) >= 0
            mean[:, dims] *= np.where(same_sign, 1, -1)
    return RuleResult(nearest, chunk=mean)


def _vote(values: NDArray[np.float64], threshold: float) -> NDArray[np.float64]:
    """(n, T) gripper numbers to (T,): the mean of those on the side of the majority (a tie counts as above)."""
    above = values > threshold
    side = above == (above.mean(0) >= 0.5)
    return np.asarray((values * side).sum(0) / side.sum(0))
