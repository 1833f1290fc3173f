"""Seeds that a caller gives to the rounds within a block."""

from __future__ import annotations

import contextlib
import contextvars
import itertools
from collections.abc import Iterator, Mapping, Sequence
from numbers import Integral
from types import MappingProxyType
from typing import Any, Union

from keystone_robotics.sample.noise import mix

#: One for each row, the next for each row, or one for all.
Given = Union[tuple[int, ...], Iterator[int], int]

#: In this thread or task, by the id of the session that they are given to.
_given: contextvars.ContextVar[Mapping[int, Given]] = contextvars.ContextVar(
    "keystone_seeds", default=MappingProxyType({})
)


@contextlib.contextmanager
def giving(session: int, seeds: Sequence[int] | Iterator[int] | int) -> Iterator[None]:
    """Rounds of a session within this block take their noise from ``seeds``: one for each row of the batch, or one for all.

    Of an iterator every row of every round takes the next: for callers that do not know in which batches their rows
    will come. A method named by ``site``, whose rows are not known, takes one for the round.
    """
    given: Given
    if isinstance(seeds, Iterator):
        given = map(_checked, seeds)
    else:
        given = _checked(seeds) if isinstance(seeds, Integral) else tuple(map(_checked, seeds))  # type: ignore[arg-type]
    token = _given.set({**_given.get(), session: given})
    try:
        yield
    finally:
        _given.reset(token)


def given_to(session: int) -> Given | None:
    """What was given to a session; None if nothing was."""
    return _given.get().get(session)


def rows_from(given: Given, batch: int | None) -> tuple[int, ...]:
    """A seed for each of ``batch`` rows; one for all where their number is not known.

    >>> rows_from((7, 8), 2), rows_from(iter([7, 8, 9]), 2)
    ((7, 8), (7, 8))
    """
    if isinstance(given, Iterator):
        rows = tuple(itertools.islice(given, batch or 1))
        if len(rows) != (batch or 1):
            raise ValueError(f"the iterator ended after {len(rows)} of {batch or 1} seeds: every row takes one")
        return rows
    if not isinstance(given, tuple):
        return spread(mix(given), batch)
    if batch is None:
        return (mix(*given),)
    if len(given) != batch:
        raise ValueError(f"{len(given)} seeds were given for a batch of {batch} observations: give one for each")
    return given


def spread(base: int, batch: int | None) -> tuple[int, ...]:
    """A seed for each row out of one.

    >>> len(set(spread(7, 3)))
    3
    """
    return tuple(mix(base, row) for row in range(batch or 1))


def _checked(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"seed {value!r}: expected a whole number")
    return int(value)
