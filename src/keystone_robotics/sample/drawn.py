"""What a round draws, and those to whom it is handed: who chooses, who finds K."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class Drawn:
    """The candidates of one round, before one is chosen.

    Attributes:
        number: of the round, counted from 0 since `keystone.attach`.
        seeds: one for each row; the noise of the round follows from them.
        candidates: (B, K, T, D) in the space in which the policy's sampler returns them.
        delay: steps of the chunk that will have passed when it arrives (real-time chunking).
        seconds: time taken to draw them; on a GPU including what was left of the encoding when it began.
    """

    number: int
    seeds: tuple[int, ...]
    candidates: Tensor
    delay: int
    seconds: float


class Draws(NamedTuple):
    """Candidates (B, K, T, D), all noise that went in (B * K, ...), and how often each encoder was called."""

    candidates: Tensor
    noises: list[Tensor]
    calls: dict[str, int]


#: Maps initial noise (B * K, *shape) and K to candidates (B * K, T, D).
Draw = Callable[[Tensor, int], Tensor]


class Tuner(Protocol):
    """Finds K in the first round, for ``k="auto"``."""

    def reached(self) -> None:
        """The round has come to the seam: the context is encoded, unless the sampler does that."""

    def note(self, method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The encoder is about to be called."""

    def __call__(self, draw: Callable[[int], Tensor], batch: int, device: torch.device) -> int:
        """K, given how to draw K candidates (B, K, T, D) for the round's B observations as a round with that K would: with one
        candidate that may be the policy's own code, (B, T, D).
        """


class Choose(Protocol):
    """Reduces the candidates of a round to (B, T, D)."""

    def __call__(self, drawn: Drawn) -> Tensor: ...
