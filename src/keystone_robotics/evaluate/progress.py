"""Progress of a running evaluation: one bar per arm with its success rate so far, or a line now and then."""

from __future__ import annotations

import time
from collections.abc import Iterable
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from keystone_robotics.evaluate.config import EvaluationConfig
from keystone_robotics.records import EpisodeRecord

#: Seconds between two lines where there is no terminal.
INTERVAL = 30.0


class ProgressDisplay:
    """Counts episodes and successes per arm, and shows them."""

    def __init__(self, console: Console, settings: EvaluationConfig, stored: Iterable[EpisodeRecord]) -> None:
        self.console = console
        self.total = settings.episodes * settings.repeats * len(settings.tasks)
        self.counts = {str(arm): [0, 0] for arm in settings.arms}
        self.begin = self.printed = time.monotonic()
        self._count(stored)
        self.before = self.done
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self.bars: dict[str, TaskID] = {}

    @property
    def done(self) -> int:
        return sum(done for _, done in self.counts.values())

    def __enter__(self) -> ProgressDisplay:
        if self.console.is_terminal:
            for arm, (_, done) in self.counts.items():
                self.bars[arm] = self.progress.add_task(arm, total=self.total, completed=done, rate=self._rate(arm))
            self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bars:
            self.progress.stop()

    def add(self, episodes: Iterable[EpisodeRecord]) -> None:
        """Count episodes that were not stored before."""
        self._count(episodes)
        for arm, bar in self.bars.items():
            self.progress.update(bar, completed=self.counts[arm][1], rate=self._rate(arm))
        if not self.bars and time.monotonic() - self.printed > INTERVAL:
            self.printed = time.monotonic()
            self.console.print(self.line(), soft_wrap=True, highlight=False)

    def line(self) -> str:
        """Episodes done, time left, and the rate of each arm."""
        whole = self.total * len(self.counts)
        seconds = time.monotonic() - self.begin
        new = self.done - self.before
        left = f", about {seconds / new * (whole - self.done) / 60:.0f} min left" if new else ""
        rates = "; ".join(f"{arm} {self._rate(arm)}" for arm in self.counts)
        return f"{self.done}/{whole} episodes{left}: {rates}"

    def _count(self, episodes: Iterable[EpisodeRecord]) -> None:
        for one in episodes:
            if one.arm in self.counts:
                self.counts[one.arm][0] += one.success
                self.counts[one.arm][1] += 1

    def _rate(self, arm: str) -> str:
        successes, done = self.counts[arm]
        return f"{100 * successes / done:.1f} %" if done else "–"
