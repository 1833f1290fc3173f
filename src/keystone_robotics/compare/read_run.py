"""Reads the folder of a `keystone eval`, finished or still being written."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keystone_robotics.compare.outcomes import Episode, Outcomes
from keystone_robotics.errors import KeystoneError
from keystone_robotics.evaluate.store import EpisodeRow, Store

#: Settings of a run that decide what its success rates mean.
SETTINGS = ("env", "seed", "max_steps", "execute")


def read_run(folder: Path) -> list[Outcomes]:
    """The arms of a run, in the order in which they were asked for.

    Raises:
        KeystoneError: if there is no run, it is damaged, or it holds no episode yet.
    """
    with Store(folder) as store:
        rows, identity = store.episodes(), store.identity()
    if not rows:
        raise KeystoneError(f"{folder} holds no episode yet: wait for the first ones")
    by_arm: dict[str, list[EpisodeRow]] = {}
    for row in rows:
        by_arm.setdefault(row.arm, []).append(row)
    wanted = [arm for arm in _arms_asked_for(folder) if arm in by_arm]
    return [
        outcomes_of(arm, by_arm[arm], folder, identity)
        for arm in [*wanted, *(arm for arm in by_arm if arm not in wanted)]
    ]


def _unfinished(arm: str, rows: Sequence[EpisodeRow], folder: Path) -> tuple[str, ...]:
    """A note if less of an arm is stored than was last asked for."""
    try:
        settings = json.loads((folder / "settings.json").read_text())
        tasks, each = settings["tasks"], settings["episodes"] * settings["repeats"]
    except (OSError, ValueError, KeyError, TypeError):
        return ()
    there = sum(row.task in tasks for row in rows)
    return (f"{arm} is unfinished: {there} of {len(tasks) * each} episodes",) if there < len(tasks) * each else ()


def _arms_asked_for(folder: Path) -> list[str]:
    """From the settings that lie beside the store; without them the order is that of names."""
    try:
        settings = json.loads((folder / "settings.json").read_text())
        return [str(arm) for arm in settings["arms"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def outcomes_of(arm: str, rows: Sequence[EpisodeRow], folder: Path, identity: Mapping[str, Any]) -> Outcomes:
    """One arm, from its stored episodes."""
    latencies = [row.latency_ms for row in rows if row.latency_ms is not None]
    return Outcomes(
        name=arm,
        source=str(folder),
        tool="keystone",
        episodes=tuple(
            Episode(
                task=row.task,
                number=row.episode,
                success=row.success and row.error is None,
                repeat=row.repeat,
                state=row.initial_state or None,
                seed=row.initial_seed,
                error=row.error is not None,
            )
            for row in rows
        ),
        time=("one round", float(np.median(latencies))) if latencies else None,
        settings={name: identity.get(name) for name in SETTINGS},
        notes=_unfinished(arm, rows, folder),
    )
