"""An evaluation from settings to stored episodes; after an interruption the same call resumes it."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from keystone_robotics import __version__
from keystone_robotics.evaluate.config import EvaluationConfig
from keystone_robotics.evaluate.executors import Executor, in_process
from keystone_robotics.evaluate.executors.processes import LocalProcesses
from keystone_robotics.evaluate.progress import ProgressDisplay
from keystone_robotics.evaluate.results import shard_keys
from keystone_robotics.evaluate.worker import check_for_workers, checked_worker
from keystone_robotics.files import write_file
from keystone_robotics.policies.fingerprint import checkpoint_fingerprint
from keystone_robotics.policies.load import find_policy, shipped_policies
from keystone_robotics.records import EpisodeRecord, Store
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
    executor: Executor = in_process,
    console: Console | None = None,
    retry_errors: bool = False,
) -> Evaluation:
    """Roll out the episodes of an evaluation that are not stored yet.

    Args:
        settings: what to evaluate.
        folder: of the run; created if missing, resumed otherwise.
        executor: rolls out the shards.
        console: for progress; None is silent.
        retry_errors: roll out again the episodes that ended with an error.
    """
    console = console or Console(quiet=True)
    begin = time.monotonic()
    with Store(folder) as store, contextlib.ExitStack() as stack:
        if folder.exists():  # else there is nothing to lock, and nothing is created before the settings are checked
            store.lock()
        for_workers = _for_workers(settings)
        executor = stack.enter_context(_checked(executor, for_workers))
        # After loading: then the commit of a hub policy is cached.
        fingerprint = checkpoint_fingerprint(settings.policy)
        store.claim({"policy": fingerprint, **settings.identity()})
        arms = store.add_arms([str(arm) for arm in settings.arms])
        about = {**settings.as_dict(), "arms": arms, "versions": versions()}
        write_file(folder / "settings.json", json.dumps(about, indent=2) + "\n")
        shards = settings.shards()
        if retry_errors:
            store.delete_errors({key for shard in shards for key in shard_keys(shard)})
        stored = store.keys()
        missing = [shard for shard in shards if not stored.issuperset(shard_keys(shard))]
        if missing:
            _begin_session(store, versions())
        total, left = sum(shard.count for shard in shards), sum(shard.count for shard in missing)
        console.print(
            f"{settings.policy} in {settings.env}: {len(settings.tasks)} tasks × {settings.episodes} initial states × "
            f"{settings.repeats} repeats × {len(settings.arms)} arms = {total} episodes, {total - left} already stored",
            soft_wrap=True,
            highlight=False,
        )
        with ProgressDisplay(console, settings, _wanted(store, settings)) as progress:
            for result in executor(replace(for_workers, fingerprint=fingerprint), missing):
                store.add_shard(result.episodes, result.seconds)
                progress.add([one for one in result.episodes if one.key not in stored])
        episodes = _wanted(store, settings)
    return Evaluation(folder, arms, episodes, progress.done - progress.before, time.monotonic() - begin)


def _wanted(store: Store, settings: EvaluationConfig) -> list[EpisodeRecord]:
    """The stored episodes that the settings ask for; earlier calls may have stored more."""
    return [one for one in store.episodes() if settings.asks_for(one.task, one.repeat, one.episode)]


def _for_workers(settings: EvaluationConfig) -> EvaluationConfig:
    """The configuration for other processes and machines: with the policy's absolute path."""
    folder = find_policy(settings.policy)
    if folder is None or settings.policy in shipped_policies():
        return settings
    return replace(settings, policy=str(folder.resolve()))


@contextlib.contextmanager
def _checked(executor: Executor, settings: EvaluationConfig) -> Iterator[Executor]:
    """The executor, after checking that policy, tasks and arms fit together, with what was loaded for that.

    Raises:
        KeystoneError: if they do not.
    """
    if isinstance(executor, LocalProcesses):
        with executor:
            executor.check(settings)
            yield executor
    elif executor is in_process:
        yield functools.partial(in_process, worker=checked_worker(settings))
    else:
        check_for_workers(settings)
        yield executor


def _begin_session(store: Store, now: dict[str, str]) -> None:
    """Record the package versions, and warn if earlier episodes were rolled out with others."""
    changed = {}
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
