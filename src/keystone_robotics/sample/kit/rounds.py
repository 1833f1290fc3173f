"""Values that are computed in the first step of a round and reused in the others."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch

Prepared = TypeVar("Prepared")

#: Values of the current round in this thread or task; empty before its first step, None outside of a fast path.
_prepared: contextvars.ContextVar[list[Any] | None] = contextvars.ContextVar("keystone_prepared", default=None)


@contextlib.contextmanager
def sharing(shared: bool = True) -> Iterator[None]:
    """Within this block candidates are drawn on the fast path, or on the plain one."""
    token = _prepared.set([] if shared else None)
    try:
        yield
    finally:
        _prepared.reset(token)


def is_sharing() -> bool:
    """Whether the current step belongs to a round on the fast path."""
    return _prepared.get() is not None


def once_per_round(prepare: Callable[[], Prepared]) -> Prepared:
    """The result of ``prepare``, called in the first step of a round only; without gradients, since guidance does not
    differentiate through it.

    >>> with sharing():
    ...     once_per_round(lambda: 1), once_per_round(lambda: 2)
    (1, 1)
    """
    kept = _prepared.get()
    if kept is None:
        raise RuntimeError("once_per_round: no round is being drawn on a fast path here")
    if not kept:
        with torch.no_grad():
            kept.append(prepare())
    return kept[0]  # type: ignore[no-any-return]
