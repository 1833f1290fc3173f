"""Progress bars."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

#: Called with the number of finished steps and a short note, for instance the loss.
ProgressCallback = Callable[[int, str], None]


def no_progress(done: int, note: str) -> None:
    """A `ProgressCallback` that does nothing."""


@contextlib.contextmanager
def progress_bar(title: str, total: int) -> Iterator[ProgressCallback]:
    """A line on the terminal: title, bar, steps, time elapsed and left, note.

    Resumed work starts in the middle of the bar; the time left is estimated from this run alone.
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

        def report(done: int, note: str) -> None:
            nonlocal first
            if first:
                progress.reset(bar, completed=done)  # the clock starts here
                first = False
            progress.update(bar, completed=done, note=note)

        yield report
