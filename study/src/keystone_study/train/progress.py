"""Telling the user how far the work is, and how long it will still take."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

#: Called with how much is done and a short note, for instance the present loss.
Tell = Callable[[int, str], None]


def silent(done: int, note: str) -> None:
    """A `Tell` for when nobody watches."""


@contextlib.contextmanager
def progress_bar(title: str, total: int) -> Iterator[Tell]:
    """A line on the terminal: title, bar, how much is done, time gone and left, note.

    Resumed work starts in the middle of the bar; the time left counts from what is done now, not from what was there before.
    """
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns) as progress:
        bar = progress.add_task(title, total=total, note="")
        first = True

        def tell(done: int, note: str) -> None:
            nonlocal first
            if first:
                progress.reset(bar, completed=done)  # the clock starts here
                first = False
            progress.update(bar, completed=done, note=note)

        yield tell
