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
#: Arms in such a line.
SHOWN = 6


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
        """Episodes done, time left, and the rate of each arm; of the best ones if there are many."""
        whole = self.total * len(self.counts)
        seconds = time.monotonic() - self.begin
        new = self.done - self.before
        left = f", about {seconds / new * (whole - self.done) / 60:.0f} min left" if new else ""
        shown = list(self.counts)
        if len(shown) > SHOWN:
            shown = sorted(shown, key=self._success, reverse=True)[:SHOWN]
        rates = "; ".join(f"{arm} {self._rate(arm)}" for arm in shown)
        more = f"; … and {len(self.counts) - SHOWN} more" if len(self.counts) > SHOWN else ""
        return f"{self.done}/{whole} episodes{left}: {rates}{more}"

    def _count(self, episodes: Iterable[EpisodeRecord]) -> None:
        for one in episodes:
            if one.arm in self.counts:
                self.counts[one.arm][0] += one.success
                self.counts[one.arm][1] += 1

    def _success(self, arm: str) -> float:
        """Share of its episodes; below zero if it has none."""
        successes, done = self.counts[arm]
        return successes / done if done else -1.0

    def _rate(self, arm: str) -> str:
        return f"{100 * self._success(arm):.1f} %" if self.counts[arm][1] else "–"
