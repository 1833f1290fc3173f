"""What draws leave for the result besides candidates: hidden states, latents."""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class ByProducts(Generic[T]):
    """Collected by the draws of one round, and taken once, when the result is made of the selected chunk.

    The functions of a round outlive it with ``attach(keep=…)``. What was taken is not held any longer, and nothing is
    collected when the round is drawn again.

    >>> latents = ByProducts()
    >>> latents.add("first"), latents.take(), latents.add("replayed"), latents.take()
    (None, ['first'], None, [])
    """

    def __init__(self) -> None:
        self._collected: list[T] | None = []

    def add(self, value: T) -> None:
        if self._collected is not None:
            self._collected.append(value)

    def take(self) -> list[T]:
        taken, self._collected = self._collected, None
        return taken or []
