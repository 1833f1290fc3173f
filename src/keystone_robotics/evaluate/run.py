"""An evaluation from settings to stored episodes; after an interruption the same call resumes it."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from keystone_robotics import __version__
from keystone_robotics.evaluate.config import EvaluationConfig, Shard
from keystone_robotics.evaluate.executors import Executor
from keystone_robotics.evaluate.executors.in_process import InProcess
from keystone_robotics.evaluate.progress import ProgressDisplay
from keystone_robotics.evaluate.results import shard_keys
from keystone_robotics.files import write_file
from keystone_robotics.policies.fingerprint import checkpoint_fingerprint
from keystone_robotics.policies.load import find_policy, shipped_policies
from keystone_robotics.records import EpisodeRecord, Store
from keystone_robotics.tables import counted
from keystone_robotics.versions import package_versions

log = logging.getLogger("keystone")


@dataclass(frozen=True)
class Evaluation:
    """A finished evaluation.

    Attributes:
        folder: of the run.
        arms: names of all arms of the run, including those of earlier calls; the first is the baseline.
        episodes: the records that the settings ask for.
        new: number of episodes rolled out by this call.
        seconds: time taken by this call.
    """

    folder: Path
    arms: list[str]
    episodes: list[EpisodeRecord]
    new: int
    seconds: float


def evaluate(
    settings: EvaluationConfig,
    folder: Path,
    executor: Executor | None = None,
    console: Console | None = None,
    retry_errors: bool = False,
) -> Evaluation:
    """Roll out the episodes of an evaluation that are not stored yet.

    Args:
        settings: what to evaluate.
        folder: of the run; created if missing, resumed otherwise.
        executor: rolls out the shards; default `InProcess`.
        console: for progress; None is silent.
        retry_errors: roll out again the episodes that ended with an error.
    """
    executor, console = executor or InProcess(), console or Console(quiet=True)
    begin = time.monotonic()
    with Store(folder) as store, executor:
        if folder.exists():  # else there is nothing to lock, and nothing is created before the settings are checked
            store.lock()
        executor.check(for_workers(settings))
        # After loading: then the commit of a hub policy is cached.
        fingerprint = checkpoint_fingerprint(settings.policy)
        store.claim({"policy": fingerprint, **settings.identity()})
        arms = store.add_arms([str(arm) for arm in settings.arms])
        about = {**settings.as_dict(), "arms": arms, "versions": versions()}
        write_file(folder / "settings.json", json.dumps(about, indent=2) + "\n")
        shards = settings.shards()
        if retry_errors:
            store.delete_errors({key for shard in shards for key in shard_keys(shard)})
        missing = missing_shards(store, settings)
        if missing:
            begin_session(store)
        total, left = sum(shard.count for shard in shards), sum(shard.count for shard in missing)
        console.print(
            f"{settings.policy} in {settings.env}: {counted(len(settings.tasks), 'task')} × "
            f"{counted(settings.episodes, 'initial state')} × {counted(settings.repeats, 'repeat')} × "
            f"{counted(len(settings.arms), 'arm')} = {counted(total, 'episode')}, {total - left} already stored",
            soft_wrap=True,
            highlight=False,
        )
        with ProgressDisplay(console, settings, _wanted(store, settings)) as progress:
            for new in roll_out_shards(store, for_workers(settings, fingerprint), executor, missing):
                progress.add(new)
        episodes = _wanted(store, settings)
    return Evaluation(folder, arms, episodes, progress.done - progress.before, time.monotonic() - begin)


def missing_shards(store: Store, settings: EvaluationConfig) -> list[Shard]:
    """The shards of an evaluation that are not stored, or not whole."""
    stored = store.keys()
    return [shard for shard in settings.shards() if not stored.issuperset(shard_keys(shard))]


def roll_out_shards(
    store: Store, settings: EvaluationConfig, executor: Executor, shards: Sequence[Shard]
) -> Iterator[list[EpisodeRecord]]:
    """Roll out shards and store each as it finishes; yields those of its episodes that were not stored before."""
    stored = store.keys()
    for result in executor(settings, shards):
        store.add_shard(result.episodes, result.seconds)
        if result.weights:
            store.note("weights", result.weights)
        yield [one for one in result.episodes if one.key not in stored]


def _wanted(store: Store, settings: EvaluationConfig) -> list[EpisodeRecord]:
    """The stored episodes that the settings ask for; earlier calls may have stored more."""
    return [one for one in store.episodes() if settings.asks_for(one.task, one.repeat, one.episode)]


def for_workers(settings: EvaluationConfig, fingerprint: str | None = None) -> EvaluationConfig:
    """The configuration for other processes and machines: the policy's absolute path and the fingerprint of its files."""
    folder = find_policy(settings.policy)
    if folder is None or settings.policy in shipped_policies():
        return replace(settings, fingerprint=fingerprint)
    return replace(settings, policy=str(folder.resolve()), fingerprint=fingerprint)


def begin_session(store: Store) -> None:
    """Record the package versions, and warn if earlier episodes were rolled out with others."""
    now, changed = versions(), {}
    for _, earlier in store.sessions():
        for name in sorted({*earlier, *now}):
            if earlier.get(name) != now.get(name):
                changed[name] = f"{name} was {earlier.get(name, 'missing')}, now {now.get(name, 'missing')}"
    if changed:
        log.warning(
            "%s: earlier episodes were rolled out with other versions (%s); arms may differ for that reason alone",
            store.folder,
            "; ".join(changed.values()),
        )
    store.add_session(now)


def versions() -> dict[str, str]:
    """Versions of the packages that outcomes depend on."""
    packages = package_versions("torch", "numpy", "mujoco", "metaworld", "gym-pusht", "lerobot")
    return {"keystone": __version__, **packages}
