"""The request that the override of a sampling method passes to the engine: one round, as data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from keystone_robotics.sample.usage import Call

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
        seed: argument of the policy's own method; replaces the global generator.
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
        shared: the same on a shared context, without copies of it: what the path "fast" draws from. None where the adapter has
            none, or its ``may_share`` says that this round would skip a hook, a replaced method or a part it does not know.
        noise: the initial noise; None if unknown (``site=``).
        vectorised: instead of ``wide`` and ``noise``: K, a seed and the temperature to candidates (B, K, T, D) and the noise
            (K, ...) of each draw.
        delay: steps of the chunk that will have been executed when it arrives (real-time chunking).
        guided: guided by the previous chunk, with or without delay.
        stochastic: the sampler draws noise at every step; it is seeded too.
        precision: coarsest dtype of the computation, where torch's parameters do not tell; asked after candidates are drawn.
        chunk: extracts the chunks (B, T, D) from the result of ``single``.
        restore: converts the selected chunks (B, T, D) to the method's return value.
        own: what K = 1 runs, where that is not ``single``: the method with what it writes to the policy's memory.
        call: of the overridden method, for rules that look at its arguments; set by the engine.
    """

    single: Callable[[], Any]
    wide: SampleFn | None = None
    shared: SampleFn | None = None
    noise: NoiseSpec | None = None
    vectorised: Callable[[int, int, float], tuple[Tensor, tuple[Tensor, ...]]] | None = None
    delay: int = 0
    guided: bool = False
    stochastic: bool = False
    precision: Callable[[], torch.dtype] | None = None
    chunk: Callable[[Any], Tensor] = _same
    restore: Callable[[Tensor], Any] = _same
    own: Callable[[], Any] | None = None
    call: Call | None = None

    def wrapped(self, wrap: Callable[[Any], Any]) -> SampleRequest:
        """The request with its calls of the policy's code wrapped."""
        calls = {name: getattr(self, name) for name in ("single", "wide", "shared")}
        return replace(self, **{name: wrap(call) for name, call in calls.items() if call is not None})
