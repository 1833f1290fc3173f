"""Seeds for the rounds within a ``with`` block."""

from __future__ import annotations

import contextlib
import contextvars
import itertools
from collections.abc import Iterator, Mapping, Sequence
from numbers import Integral
from types import MappingProxyType
from typing import Any, Union

from keystone_robotics.sample.noise import derive_seed

#: One seed per row, an iterator of row seeds, or one seed for all rows.
SeedSource = Union[tuple[int, ...], Iterator[int], int]

#: The active seeds of this thread or task, by id of the engine.
_scoped: contextvars.ContextVar[Mapping[int, SeedSource]] = contextvars.ContextVar(
    "keystone_seeds", default=MappingProxyType({})
)


@contextlib.contextmanager
def seed_scope(engine: int, seeds: Sequence[int] | Iterator[int] | int) -> Iterator[None]:
    """Seed the noise of an engine's rounds within this block: one seed per row of the batch, or one for all.

    With an iterator, every row of every round takes the next seed: for callers that do not know how their rows are batched.
    A method named by ``site``, whose batch size is unknown, takes one seed per round.
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
    """The active seeds of an engine, or None."""
    return _scoped.get().get(engine)


def seeds_for_rows(given: SeedSource, batch: int | None) -> tuple[int, ...]:
    """One seed for each of ``batch`` rows; one in total if the batch size is unknown.

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
    """Derive one seed per row.

    >>> len(set(row_seeds(7, 3)))
    3
    """
    return tuple(derive_seed(base, row) for row in range(batch or 1))


def _checked(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"seed {value!r}: expected a whole number")
    return int(value)
