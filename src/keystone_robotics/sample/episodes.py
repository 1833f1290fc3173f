"""Whose rows a round has: ids of episodes within a ``with`` block, or numbers of rows since the last reset."""

from __future__ import annotations

import contextlib
import contextvars
import itertools
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple, Union

#: One id per row, or an iterator from which every row takes the next.
IdSource = Union[tuple[Hashable, ...], Iterator[Hashable]]

#: The active ids of this thread or task, by id of the engine.
_scoped: contextvars.ContextVar[Mapping[int, IdSource]] = contextvars.ContextVar(
    "keystone_episodes", default=MappingProxyType({})
)


class EpisodeRow(NamedTuple):
    """The id of an episode that nobody named.

    Attributes:
        reset: resets of the policy before it.
        row: of the batch, as it was at the reset.
    """

    reset: int
    row: int


@contextlib.contextmanager
def episode_scope(engine: int, ids: Sequence[Hashable] | Iterator[Hashable]) -> Iterator[None]:
    """Name the episodes of an engine's rounds within this block: one id per row of the batch.

    With an iterator, every row of every round takes the next id: for callers that do not know how their rows are batched.
    """
    given: IdSource = ids if isinstance(ids, Iterator) else tuple(ids)
    token = _scoped.set({**_scoped.get(), engine: given})
    try:
        yield
    finally:
        _scoped.reset(token)


@dataclass
class EpisodeRows:
    """Which episode each row of a batch belongs to, where nobody names them.

    Attributes:
        resets: so far.
        kept: the rows that are left of the batch at the last reset; None if all are.
    """

    resets: int = 0
    kept: tuple[int, ...] | None = field(default=None)

    def reset(self) -> None:
        """All rows start a new episode."""
        self.resets, self.kept = self.resets + 1, None

    def keep(self, rows: Sequence[int]) -> None:
        """These rows continue, renumbered from 0."""
        self.kept = tuple(rows if self.kept is None else (self.kept[row] for row in rows))

    def ids(self, engine: int, batch: int) -> tuple[Hashable, ...]:
        """One id for each row of a round: those of `episode_scope` if there are as many, else numbers of rows.

        >>> rows = EpisodeRows()
        >>> rows.keep([0, 2])
        >>> rows.ids(0, 2)
        (EpisodeRow(reset=0, row=0), EpisodeRow(reset=0, row=2))
        """
        given = _scoped.get().get(engine)
        if isinstance(given, Iterator):
            given = tuple(itertools.islice(given, batch))
        if given is not None and len(given) == batch:
            return given
        return self.numbered(batch)

    def numbered(self, batch: int) -> tuple[EpisodeRow, ...]:
        """The numbers of rows, whatever the caller names them."""
        rows = self.kept if self.kept is not None and len(self.kept) == batch else range(batch)
        return tuple(EpisodeRow(self.resets, row) for row in rows)
