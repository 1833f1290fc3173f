"""Reads the folder of a `keystone eval`, finished or running."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keystone_robotics.compare.files import as_time
from keystone_robotics.compare.outcomes import Outcomes
from keystone_robotics.errors import KeystoneError
from keystone_robotics.records import EpisodeRecord, Store
from keystone_robotics.spec import BASELINE

#: Settings of a run that success rates depend on.
SETTINGS = ("env", "seed", "max_steps", "execute")


def read_run(folder: Path) -> list[Outcomes]:
    """The arms of a run in the order of its settings; where it has none (a race of `keystone tune`), the policy as it is first.

    Raises:
        KeystoneError: if there is no run, it is damaged, or it holds no episode yet.
    """
    with Store(folder) as store:
        episodes, identity = store.episodes(), store.identity()
    if not episodes:
        raise KeystoneError(f"{folder} holds no episode yet: wait for the first shard")
    by_arm: dict[str, list[EpisodeRecord]] = {}
    for one in episodes:
        by_arm.setdefault(one.arm, []).append(one)
    asked = _settings(folder)
    ordered = [arm for arm in asked.get("arms", ()) if arm in by_arm]
    return [
        outcomes_of(arm, by_arm[arm], str(folder), identity, _unfinished(arm, by_arm[arm], asked))
        for arm in [*ordered, *sorted((arm for arm in by_arm if arm not in ordered), key=lambda arm: arm != BASELINE)]
    ]


def outcomes_of(
    arm: str,
    episodes: Sequence[EpisodeRecord],
    source: str = "",
    identity: Mapping[str, Any] | None = None,
    notes: tuple[str, ...] = (),
) -> Outcomes:
    """One arm, from its stored episodes."""
    latencies = measured_latencies(episodes)
    return Outcomes(
        name=arm,
        source=source,
        tool="keystone",
        episodes=tuple(episodes),
        time=("one round", float(np.median(latencies))) if latencies else None,
        settings={name: (identity or {}).get(name) for name in SETTINGS},
        notes=notes,
    )


def _settings(folder: Path) -> dict[str, Any]:
    """The settings beside the store, as last given; empty if they are missing or unreadable."""
    try:
        settings = json.loads((folder / "settings.json").read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(settings, dict):
        return {}
    numbers = {name: settings[name] for name in ("episodes", "repeats") if isinstance(settings.get(name), int)}
    lists = {name: settings[name] for name in ("arms", "tasks") if isinstance(settings.get(name), list)}
    return {**numbers, **{name: [one for one in found if isinstance(one, str)] for name, found in lists.items()}}


def _unfinished(arm: str, episodes: Sequence[EpisodeRecord], settings: Mapping[str, Any]) -> tuple[str, ...]:
    """A note if fewer episodes of an arm are stored than were last asked for."""
    if not {"tasks", "episodes", "repeats"} <= settings.keys():
        return ()
    tasks = settings["tasks"]
    stored, asked = sum(one.task in tasks for one in episodes), len(tasks) * settings["episodes"] * settings["repeats"]
    return (f"{arm} is unfinished: {stored} of {asked} episodes",) if stored < asked else ()


def measured_latencies(episodes: Sequence[EpisodeRecord]) -> list[float]:
    """Times of one round in ms, of the episodes where one was measured."""
    return [time for one in episodes if (time := as_time(one.latency_ms)) is not None]
