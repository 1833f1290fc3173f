"""Averaging chunks where that makes sense: a mean, but rotations as rotations and grippers by vote."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from keystone_robotics.select import rotations
from keystone_robotics.select.rounds import Choice, Round, lowest


def average(members: Round, of: NDArray[np.bool_]) -> Choice:
    """The mean chunk of some candidates, and the real candidate (of all) nearest to it.

    Every dimension of the chunk is averaged, whether it counts in distances or not. Rotation dimensions get the mean
    rotation, written as the nearest candidate writes it (a quaternion has two signs). At each step a gripper is opened or
    closed as most members say, at the mean of those that say so: the mean of all would be half open.
    """
    chunks = torch.from_numpy(members.chunks[of])
    mean = chunks.mean(0)
    layout = members.layout
    for name, block in layout.rotations:
        dims = list(block)
        matrices = rotations.to_matrix(name, chunks[..., dims])
        real = torch.isfinite(matrices).flatten(2).all(2).all(0)  # steps that do not count may hold padding
        if real.any():
            turned = rotations.from_matrix(name, rotations.mean_rotation(matrices[:, real]))
            mean[real.nonzero(), torch.tensor(block)] = turned
    for dim, kind in layout.grippers:
        threshold = 0.0 if kind == "logit" else kind
        mean[:, dim] = _vote(chunks[..., dim], threshold)
    features = members.embed(mean.numpy()[None])
    nearest = lowest(members.distances_to(features)[:, 0])
    for name, block in layout.rotations:
        if name.startswith("quaternion"):
            dims = list(block)
            same_sign = (mean[:, dims] * torch.from_numpy(members.chunks[nearest][:, dims])).sum(1, keepdim=True) >= 0
            mean[:, dims] = torch.where(same_sign, mean[:, dims], -mean[:, dims])
    return Choice(nearest, chunk=mean.numpy())


def _vote(values: torch.Tensor, threshold: float) -> torch.Tensor:
    """(n, T) gripper numbers to (T,): the mean of those on the side of the majority (a tie counts as above)."""
    above = values > threshold
    side = above == (above.double().mean(0) >= 0.5)
    return (values * side).sum(0) / side.sum(0)
