"""What the override of a sampling method hands to the engine: one round, as data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

#: Maps initial noise (B * K, *shape) and K to candidates (B * K, T, D).
SampleFn = Callable[[Tensor, int], Tensor]


@dataclass(frozen=True)
class NoiseSpec:
    """The initial noise that a sampler starts from.

    Attributes:
        batch: B, number of observations.
        shape: of one row.
        device: of the noise.
        dtype: of the noise.
        uniform: uniform on [-1, 1] instead of standard normal.
        seed: that the policy's own method was called with; replaces the global generator.
    """

    batch: int
    shape: tuple[int, ...]
    device: torch.device | str
    dtype: torch.dtype = torch.float32
    uniform: bool = False
    seed: int | None = None

    @classmethod
    def like(cls, context: Tensor, shape: tuple[int, ...], uniform: bool = False) -> NoiseSpec:
        """For a context (B, ...), on its device and of its dtype."""
        return cls(context.shape[0], shape, context.device, context.dtype, uniform)


def _same(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class SampleRequest:
    """One call of an overridden sampling method.

    Attributes:
        single: the policy's own method with its own arguments; draws its own noise.
        wide: the policy's own code on B * K rows of noise.
        shared: the same on a context that the candidates share, without copies of it; None where that is not possible now.
        noise: what the sampler starts from; None where only the method itself knows (``site=``), which is then vectorised.
        delay: steps of the chunk that will have passed when it arrives (real-time chunking).
        guided: the chunk is drawn towards a previous one, with or without delay.
        stochastic: the sampler draws more noise at every step; it is seeded too.
        precision: coarsest dtype that the policy computes in, where its weights are not torch's and cannot tell.
        chunk: takes the chunks (B, T, D) out of what ``single`` returns.
        restore: makes what the caller of the method expects out of the selected chunks (B, T, D).
    """

    single: Callable[[], Any]
    wide: SampleFn | None = None
    shared: SampleFn | None = None
    noise: NoiseSpec | None = None
    delay: int = 0
    guided: bool = False
    stochastic: bool = False
    precision: torch.dtype | None = None
    chunk: Callable[[Any], Tensor] = _same
    restore: Callable[[Tensor], Any] = _same
