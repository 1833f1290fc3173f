"""Collect demonstrations and store them as they are made, so that an interrupted collection resumes."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from keystone_robotics.errors import KeystoneError
from keystone_robotics.files import atomic_write
from keystone_robotics.versions import package_versions
from keystone_study.train.demonstration import Demonstration
from keystone_study.train.expert import Expert
from keystone_study.train.progress import ProgressCallback, no_progress

FLUSH = 5  #: store after this many demonstrations: a few seconds of work


class Collection(NamedTuple):
    """The successful demonstrations among attempts 0, 1, 2, ... at one task.

    Attributes:
        demonstrations: in the order of the attempts.
        attempts: (n,) the attempt number of each.
        tried: number of attempts in all.
    """

    demonstrations: list[Demonstration]
    attempts: list[int]
    tried: int

    def first(self, count: int) -> Collection:
        """The collection as if it had stopped after ``count`` demonstrations."""
        if count >= len(self.demonstrations):
            return self
        return Collection(self.demonstrations[:count], self.attempts[:count], self.attempts[count - 1] + 1)

    @property
    def success_rate(self) -> float:
        """Success rate of the expert."""
        return len(self.demonstrations) / max(self.tried, 1)


def collect(
    expert: Expert, task: str, regime: str, seed: int, count: int, folder: Path, report: ProgressCallback = no_progress
) -> Collection:
    """The first ``count`` successful demonstrations of a task; those stored in ``folder`` are not made again.

    Raises:
        KeystoneError: if the expert hardly ever succeeds, or the folder holds demonstrations made in another way.
    """
    path = folder / f"{task}-{regime}-seed{seed}.npz"
    origin = _origin(expert, regime)
    folder.mkdir(parents=True, exist_ok=True)
    stored = _load(path, origin) if path.exists() else Collection([], [], 0)
    demonstrations, attempts, tried = list(stored.demonstrations), list(stored.attempts), stored.tried
    while len(demonstrations) < count:
        report(len(demonstrations), f"{len(demonstrations)} of {tried} attempts")
        demonstration = expert.demonstrate(task, regime, seed, tried)
        if demonstration.success:
            demonstrations.append(demonstration)
            attempts.append(tried)
        tried += 1
        if tried >= 50 and len(demonstrations) < tried / 20:
            raise KeystoneError(
                f"{task}: the expert succeeded in {len(demonstrations)} of {tried} attempts ({regime}): too rarely to train on"
            )
        if len(demonstrations) == count or (demonstration.success and len(demonstrations) % FLUSH == 0):
            _save(path, Collection(demonstrations, attempts, tried), origin)
    result = Collection(demonstrations, attempts, tried).first(count)
    report(count, f"{count} of {result.tried} attempts")
    return result


def _origin(expert: Expert, regime: str) -> str:
    versions = " ".join(f"{name}-{version}" for name, version in package_versions(*expert.packages).items())
    return f"{expert.describe(regime)} {versions}"


def _save(path: Path, collection: Collection, origin: str) -> None:
    """One array for all demonstrations, end to end, and their lengths."""
    demonstrations = collection.demonstrations
    with atomic_write(path) as draft, draft.open("wb") as file:
        np.savez_compressed(
            file,
            agent_pos=np.concatenate([one.agent_pos for one in demonstrations]),
            environment_state=np.concatenate([one.environment_state for one in demonstrations]),
            actions=np.concatenate([one.actions for one in demonstrations]),
            lengths=np.array([len(one.actions) for one in demonstrations]),
            attempts=np.array(collection.attempts),
            tried=np.array(collection.tried),
            origin=np.array(origin),
        )


def _load(path: Path, origin: str) -> Collection:
    try:
        with np.load(path, allow_pickle=False) as file:
            stored = {name: file[name] for name in file.files}
        if str(stored["origin"]) != origin:
            raise KeystoneError(
                f"{path} was collected with {stored['origin']}, expected {origin}: choose another folder with --demos, "
                "or delete the file"
            )
        ends = np.cumsum(stored["lengths"])[:-1]
        agent_pos, environment_state, actions = (
            np.split(stored[name], ends) for name in ("agent_pos", "environment_state", "actions")
        )
        demonstrations = [Demonstration(*arrays, True) for arrays in zip(agent_pos, environment_state, actions)]
        return Collection(demonstrations, stored["attempts"].tolist(), int(stored["tried"]))
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise KeystoneError(f"{path} is not a readable file of demonstrations ({error}): delete it") from error
