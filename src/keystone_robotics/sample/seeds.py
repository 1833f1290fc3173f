"""Seeds that a caller gives to the rounds within a block."""

from __future__ import annotations

import contextlib
import contextvars
import itertools
from collections.abc import Iterator, Mapping, Sequence
from numbers import Integral
from types import MappingProxyType
from typing import Any, Union

from keystone_robotics.sample.noise import derive_seed

#: One for each row, the next for each row, or one for all.
SeedSource = Union[tuple[int, ...], Iterator[int], int]

#: In this thread or task, by the id of the engine that they are for.
_scoped: contextvars.ContextVar[Mapping[int, SeedSource]] = contextvars.ContextVar(
    "keystone_seeds", default=MappingProxyType({})
)


@contextlib.contextmanager
def seed_scope(engine: int, seeds: Sequence[int] | Iterator[int] | int) -> Iterator[None]:
    """Rounds of an engine within this block take their noise from ``seeds``: one for each row of the batch, or one for all.

    Of an iterator every row of every round takes the next: for callers that do not know in which batches their rows
    will come. A method named by ``site``, whose rows are not known, takes one for the round.
    """
    given: SeedSource
    if isinstance(seeds, Iterator):
        given = map(_checked, seeds)
    else:
        given = _checked(seeds) if isinstance(seeds, Integral) else tuple(map(_checked, seeds))  # type: ignore[arg-type]
    token = _scoped.set({**_scoped.get(), engine: given})
    try:
        yield
    finally:
        _scoped.reset(token)


def current_seeds(engine: int) -> SeedSource | None:
    """The seeds in force for an engine; None if there are none."""
    return _scoped.get().get(engine)


def seeds_for_rows(given: SeedSource, batch: int | None) -> tuple[int, ...]:
    """A seed for each of ``batch`` rows; one for all where their number is not known.

    >>> seeds_for_rows((7, 8), 2), seeds_for_rows(iter([7, 8, 9]), 2)
    ((7, 8), (7, 8))
    """
    if isinstance(given, Iterator):
        rows = tuple(itertools.islice(given, batch or 1))
        if len(rows) != (batch or 1):
            raise ValueError(f"the iterator ended after {len(rows)} of {batch or 1} seeds: every row takes one")
        return rows
    if not isinstance(given, tuple):
        return row_seeds(derive_seed(given), batch)
    if batch is None:
        return (derive_seed(*given),)
    if len(given) != batch:
        raise ValueError(f"{len(given)} seeds were given for a batch of {batch} observations: give one for each")
    return given


def row_seeds(base: int, batch: int | None) -> tuple[int, ...]:
    """A seed for each row out of one.

    >>> len(set(row_seeds(7, 3)))
    3
    """
    return tuple(derive_seed(base, row) for row in range(batch or 1))


def _checked(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"seed {value!r}: expected a whole number")
    return int(value)
