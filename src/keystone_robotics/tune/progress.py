"""Progress of a tuning run: episodes of the budget, arms left, the leaders."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from keystone_robotics.records import EpisodeRecord

#: Seconds between two lines where there is no terminal.
INTERVAL = 30.0


class TuneProgress:
    """One bar on a terminal, else a line now and then. ``with TuneProgress(…) as progress: …``"""

    def __init__(self, console: Console, budget: int) -> None:
        self.console, self.budget, self.done = console, budget, 0
        self._standing, self._printed = "", time.monotonic()
        self._bar = Progress(
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("episodes; {task.description}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self._task = self._bar.add_task("", total=budget)

    def __enter__(self) -> TuneProgress:
        if self.console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.console.is_terminal:  # else it was not started, and would print an empty line
            self._bar.stop()

    def add(self, episodes: Sequence[EpisodeRecord]) -> None:
        """Count episodes, stored or new."""
        self.done += len(episodes)
        self._show()

    def standing(self, text: str) -> None:
        """Who leads."""
        self._standing = text
        self._show()

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        self._bar.console.print(text, soft_wrap=True, highlight=False, markup=False)

    def _show(self) -> None:
        self._bar.update(self._task, completed=self.done, description=self._standing)
        if not self.console.is_terminal and time.monotonic() - self._printed > INTERVAL:
            self._printed = time.monotonic()
            self.say(f"{self.done}/{self.budget} episodes; {self._standing}")
