"""Reproducible noise: seeded per row and candidate."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_MASK = 2**64 - 1

#: Held while the state of the global generator is saved and restored (another thread would get repeated draws), and while a
#: round's seed is drawn from it.
global_generator = threading.RLock()


@contextlib.contextmanager
def preserve_rng(device: torch.device | str = "cpu") -> Iterator[None]:
    """Restore the global generators of the host and of one device after this block."""
    device = torch.device(device)
    with global_generator, torch.random.fork_rng([device] if device.type == "cuda" else []):
        yield


def derive_seed(*numbers: int) -> int:
    """Hash several numbers into one seed (splitmix64), the same on every machine.

    >>> derive_seed(0, 1) != derive_seed(1, 0)
    True
    """
    state = 0
    for number in numbers:
        state = (state ^ (number & _MASK)) + 0x9E3779B97F4A7C15 & _MASK
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _MASK
        state = (state ^ state >> 27) * 0x94D049BB133111EB & _MASK
        state ^= state >> 31
    return state


def initial_noise(seeds: Sequence[int], k: int, shape: Sequence[int], uniform: bool = False, first: int = 0) -> Tensor:
    """(B * K, *shape) float32 noise on the host, K rows for each of B seeds: of the candidates ``first`` to ``first + K - 1``.

    Candidate j of a row depends only on the row's seed and on j, not on K or on the other rows. So candidate 0 at K = 16
    equals the sample of K = 1, and the noise of an episode does not depend on its batch.

    >>> one, sixteen = initial_noise([7], 1, (50, 7)), initial_noise([3, 7], 16, (50, 7))
    >>> torch.equal(one[0], sixteen[16])
    True
    """
    noise = torch.empty(len(seeds), first + k, *shape)
    generator = torch.Generator()
    for row, seed in enumerate(seeds):
        generator.manual_seed(seed & _MASK)
        for candidate in noise[row]:
            if uniform:
                candidate.uniform_(-1.0, 1.0, generator=generator)
            else:
                candidate.normal_(generator=generator)
    return noise[:, first:].flatten(0, 1)


#: The functions of torch through which policies draw noise.
NOISE_FUNCTIONS: frozenset[Callable[..., Any]] = frozenset(
    {torch.randn, torch.rand, torch.normal, torch.randn_like, torch.rand_like}
)


class FixedNoise(TorchFunctionMode):
    """Within this context, torch's noise functions return the given tensors, in order, where their shapes match. A draw of
    fewer rows takes the first rows of a tensor and leaves the rest for the next (policies that sample row by row).

    The mode is thread-local and patches nothing. It slows down every torch call, so it is for checks and tests. ``drawn``
    has the shapes of all draws.

    >>> with FixedNoise(torch.ones(2)) as given:
    ...     torch.randn(2), len(torch.randn(3)), given.left
    (tensor([1., 1.]), 3, 0)
    """

    def __init__(self, *noise: Tensor) -> None:
        super().__init__()
        self._noise = list(noise)
        self.drawn: list[tuple[int, ...]] = []

    @property
    def left(self) -> int:
        """How many of the given tensors were not drawn."""
        return len(self._noise)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in NOISE_FUNCTIONS:
            self.drawn.append(tuple(result.shape))
            given = self._noise[0] if self._noise else None
            if given is not None and given.shape == result.shape:
                return self._noise.pop(0).to(result).clone()
            if given is not None and result.ndim and given.shape[1:] == result.shape[1:] and len(given) >= len(result):
                rows, rest = given.tensor_split([len(result)])
                self._noise[:1] = [rest] if len(rest) else []
                return rows.to(result).clone()
        return result


class SeededDraws(TorchFunctionMode):
    """Within this context, draws of B * K rows are seeded by row: for samplers that add noise at every step.

    Args:
        seeds: one for each of the B rows.
        k: candidates per row.
        first: number of the first of them.
    """

    def __init__(self, seeds: Iterable[int], k: int, first: int = 0) -> None:
        super().__init__()
        self._seeds, self._k, self._first = list(seeds), k, first
        self._draw = 0
        #: All draws, for the self-check.
        self.drawn: list[Tensor] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func not in NOISE_FUNCTIONS or result.shape[:1] != (len(self._seeds) * self._k,):
            return result
        self._draw += 1
        seeds = [derive_seed(seed, self._draw) for seed in self._seeds]
        uniform = func in (torch.rand, torch.rand_like)
        noise = initial_noise(seeds, self._k, result.shape[1:], uniform, self._first)
        self.drawn.append((noise.add(1).div(2) if uniform else noise).to(result))
        return self.drawn[-1].clone()
