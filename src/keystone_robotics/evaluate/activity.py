"""What a worker is doing now. It lies in shared memory, so that its supervisor can read it while the worker hangs and after it
died: the episode at fault is known without rolling out the others again.
"""

from __future__ import annotations

import contextlib
import enum
import time
from collections.abc import Iterator, MutableSequence, Sequence
from typing import NamedTuple

#: Numbers (doubles) of shared memory that an `Activity` needs.
SIZE = 3


class Doing(enum.IntEnum):
    """Whose code runs."""

    NOTHING = 0
    LOADING = 1  # the policy
    PREPARING = 2  # a shard: its arm and its environments
    ENVIRONMENT = 3  # reset() or step() of one episode
    POLICY = 4  # a round


class Note(NamedTuple):
    """One reading.

    Attributes:
        doing: whose code runs.
        episode: number of the episode that it runs for; None for all of the shard.
        since: `time.monotonic` when it began, minus what the episode had spent in its environment before.
    """

    doing: Doing
    episode: int | None
    since: float


class Activity:
    """Written by a worker, read by its supervisor.

    Args:
        memory: three shared doubles; default memory of this process, for workers without a supervisor.
    """

    def __init__(self, memory: MutableSequence[float] | None = None) -> None:
        self._memory: MutableSequence[float] = [0.0] * SIZE if memory is None else memory
        self._spent: dict[int, float] = {}

    def read(self) -> Note:
        """What the worker is doing now."""
        since, doing, episode = self._memory[:SIZE]
        return Note(Doing(int(doing)), None if episode < 0 else int(episode), since)

    @property
    def slowest(self) -> float:
        """Seconds that the slowest episode since `begin_shard` spent in its environment."""
        return max(self._spent.values(), default=0.0)

    def begin_shard(self) -> None:
        """Forget the times of earlier episodes."""
        self._spent.clear()

    def doing(self, what: Doing) -> contextlib.AbstractContextManager[None]:
        """Code that runs for all episodes of the shard, or for none."""
        return self._block(what, None, 0.0)

    def policy(self, episodes: Sequence[int]) -> contextlib.AbstractContextManager[None]:
        """A round for these episodes."""
        return self._block(Doing.POLICY, episodes[0] if len(episodes) == 1 else None, 0.0)

    @contextlib.contextmanager
    def environment(self, episode: int) -> Iterator[None]:
        """Code of this episode's environment. Its time adds up over the blocks of an episode."""
        begin = time.monotonic()
        spent = self._spent.get(episode, 0.0)
        with self._block(Doing.ENVIRONMENT, episode, spent):
            yield
        self._spent[episode] = spent + time.monotonic() - begin

    @contextlib.contextmanager
    def _block(self, doing: Doing, episode: int | None, spent: float) -> Iterator[None]:
        before = self._memory[1:SIZE]
        self._write(spent, doing, -1 if episode is None else episode)
        try:
            yield
        finally:
            self._write(0.0, *before)

    def _write(self, spent: float, doing: float, episode: float) -> None:
        # The time first: a reader in between sees the block before as if it had just begun.
        self._memory[0] = time.monotonic() - spent
        self._memory[1] = doing
        self._memory[2] = episode
