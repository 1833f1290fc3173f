"""Outcomes of arms on initial states, from a store that grows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from keystone_robotics.evaluate.config import EvaluationConfig
from keystone_robotics.evaluate.executors import Executor
from keystone_robotics.evaluate.run import begin_session, for_workers, missing_shards, roll_out_shards
from keystone_robotics.records import EpisodeKey, EpisodeRecord, Store
from keystone_robotics.spec import Spec


class Rollouts:
    """Episodes of one folder, each rolled out once. ``with Rollouts(…) as rollouts: …``

    Args:
        folder: of the store; created if missing.
        settings: of all episodes, but for arms and initial states.
        executor: rolls out what is not stored.
        fingerprint: of the policy's files.
        watch: gets the episodes of every batch: those that are stored at once, the others as they finish.
    """

    def __init__(
        self,
        folder: Path,
        settings: EvaluationConfig,
        executor: Executor,
        fingerprint: str,
        watch: Callable[[Sequence[EpisodeRecord]], None],
    ) -> None:
        self.settings, self.new = settings, 0
        self._executor, self._fingerprint, self._watch = executor, fingerprint, watch
        self._store = Store(folder)
        self._episodes: dict[EpisodeKey, EpisodeRecord] = {}  # all that are stored

    def __enter__(self) -> Rollouts:
        try:
            self._store.claim({"policy": self._fingerprint, **self.settings.identity()})
            self._episodes = {one.key: one for one in self._store.episodes()}
        except BaseException:
            self._store.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._store.close()

    def episodes(self, arms: Sequence[Spec], first: int, count: int) -> list[EpisodeRecord]:
        """The episodes of arms on ``count`` initial states of every task, from number ``first`` on."""
        batch = replace(self.settings, arms=tuple(arms), first_episode=first, episodes=count)
        self._store.add_arms([str(arm) for arm in arms])
        wanted = [
            (str(arm), task, 0, first + number) for arm in arms for task in batch.tasks for number in range(count)
        ]
        self._watch([self._episodes[key] for key in wanted if key in self._episodes])
        missing = missing_shards(self._store, batch)
        if missing and not self.new:
            begin_session(self._store)
        for new in roll_out_shards(self._store, for_workers(batch, self._fingerprint), self._executor, missing):
            self.new += len(new)
            self._episodes |= {one.key: one for one in new}
            self._watch(new)
        return [self._episodes[key] for key in wanted]

    def outcomes(self, arms: Sequence[Spec], first: int, count: int) -> NDArray[np.bool_]:
        """(arms, count, tasks) whether each of these episodes was a success."""
        rows = {str(arm): row for row, arm in enumerate(arms)}
        columns = {task: column for column, task in enumerate(self.settings.tasks)}
        found = np.zeros((len(arms), count, len(columns)), np.bool_)
        for one in self.episodes(arms, first, count):
            found[rows[one.arm], one.episode - first, columns[one.task]] = one.success
        return found

    def only_errors(self) -> str:
        """If every stored episode ended with an error, the last line of the last one; else empty."""
        errors = [one.error for one in self._episodes.values()]
        last = errors[-1] if errors and all(error is not None for error in errors) else None
        return "" if last is None else (last.strip().splitlines() or ["unknown"])[-1]

    def everything(self) -> list[EpisodeRecord]:
        """All stored episodes, also of earlier calls."""
        return list(self._episodes.values())
