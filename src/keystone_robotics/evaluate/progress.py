"""What a user sees while an evaluation runs: a bar with the time left, and how each arm does so far."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
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
from keystone_robotics.evaluate.results import ShardResult
from keystone_robotics.evaluate.store import EpisodeRow

#: Where there is no terminal, a line is printed this often (s).
INTERVAL = 30.0


class Watch:
    """Counts episodes and successes, of all arms and of each."""

    def __init__(self, console: Console, settings: EvaluationConfig, stored: Iterable[EpisodeRow]) -> None:
        self.console = console
        self.total = settings.episodes * settings.repeats * len(settings.tasks)
        self.counts = {str(arm): [0, 0] for arm in settings.arms}
        self.begin = self.printed = time.monotonic()
        for row in stored:
            self._count(row.arm, [row.success])
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

    def __enter__(self) -> Watch:
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

    def add(self, result: ShardResult, fresh: Sequence[bool]) -> None:
        """A shard is stored.

        Args:
            result: of the shard.
            fresh: for each of its episodes, whether it was not stored before.
        """
        arm = str(result.shard.arm)
        self._count(arm, [one.success for one, new in zip(result.episodes, fresh, strict=True) if new])
        if self.bars:
            self.progress.update(self.bars[arm], completed=self.counts[arm][1], rate=self._rate(arm))
        elif time.monotonic() - self.printed > INTERVAL:
            self.printed = time.monotonic()
            self.console.print(self.line(), soft_wrap=True, highlight=False)

    def line(self) -> str:
        """How far it is, how long it will take, how each arm does."""
        whole = self.total * len(self.counts)
        seconds = time.monotonic() - self.begin
        new = self.done - self.before
        left = f", about {seconds / new * (whole - self.done) / 60:.0f} min left" if new else ""
        rates = "; ".join(f"{arm} {self._rate(arm)}" for arm in self.counts)
        return f"{self.done}/{whole} episodes{left}: {rates}"

    def _count(self, arm: str, successes: Sequence[bool]) -> None:
        if arm in self.counts:
            self.counts[arm][0] += sum(successes)
            self.counts[arm][1] += len(successes)

    def _rate(self, arm: str) -> str:
        successes, done = self.counts[arm]
        return f"{100 * successes / done:.1f} %" if done else "–"
