"""Candidate clouds for the selector benchmarks: (B, K, T, D) float32 tensors, the candidates in random order."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Generator, Tensor

import keystone_robotics as keystone

Shape = tuple[int, int, int, int]


def one_way(shape: Shape, generator: Generator) -> Tensor:
    """The same movement at different paces; only rounds that the guard takes for one group are kept."""
    batch, k, steps, dims = shape
    kept = torch.empty(0, k, steps, dims)
    while len(kept) < batch:
        movement = torch.randn(batch, 1, steps, dims, generator=generator)
        pace = 1 + 0.3 * torch.randn(batch, k, 1, 1, generator=generator)
        drawn = movement * pace + 0.02 * torch.randn(shape, generator=generator)
        kept = torch.cat([kept, drawn[torch.from_numpy(~keystone.select(drawn).clustered)]])
    return kept[:batch].clone()


def two_ways(shape: Shape, generator: Generator) -> Tensor:
    """Two separate modes, 70 % of the candidates in one and 30 % in the other."""
    batch, k, steps, dims = shape
    modes = torch.randn(batch, 2, steps, dims, generator=generator)
    second = torch.arange(k) >= round(0.7 * k)
    mode = torch.stack([second[torch.randperm(k, generator=generator)] for _ in range(batch)]).long()
    noise = 0.2 * torch.randn(shape, generator=generator)
    return modes[torch.arange(batch)[:, None], mode] + noise


def isotropic(shape: Shape, generator: Generator) -> Tensor:
    """No structure at all: in many dimensions the guard lets such a round through to clustering."""
    return torch.randn(shape, generator=generator)


#: Every cloud by name, with whether the paper's rule clusters it.
CLOUDS: dict[str, tuple[Callable[[Shape, Generator], Tensor], bool]] = {
    "one way": (one_way, False),
    "two ways": (two_ways, True),
    "isotropic": (isotropic, True),
}


def draw(cloud: str, shape: Shape, copies: int, seed: int = 0) -> list[Tensor]:
    """Several inputs of one kind, all certain to take the branch that the cloud is meant for.

    Several, because a branch predictor learns a single one by heart and then shows times that no robot will see.
    """
    make, clusters = CLOUDS[cloud]
    generator = Generator().manual_seed(seed)
    inputs = [make(shape, generator) for _ in range(copies)]
    for candidates in inputs:
        if not (keystone.select(candidates).clustered == clusters).all():
            raise AssertionError(f"cloud {cloud!r} of shape {shape} does not take the branch it is meant for")
    return inputs
