"""An evaluation from settings to a table; interrupted at any moment, the same call goes on where it was."""

from __future__ import annotations

import functools
import importlib.metadata
import json
import logging
import time
from dataclasses import dataclass, replace
from pathlib import Path

import scipy.stats  # noqa: F401  (the table at the end needs it; better to hear now that it is missing)
from rich.console import Console

from keystone_robotics import __version__
from keystone_robotics.errors import KeystoneError
from keystone_robotics.evaluate.config import EvaluationConfig
from keystone_robotics.evaluate.executors import Executor, in_process
from keystone_robotics.evaluate.progress import Watch
from keystone_robotics.evaluate.store import Store
from keystone_robotics.evaluate.summary import ArmSummary, as_markdown, summarise
from keystone_robotics.evaluate.worker import check_for_others, checked_worker
from keystone_robotics.files import written_whole
from keystone_robotics.policies.fingerprint import fingerprint_policy
from keystone_robotics.policies.load import find_policy, shipped_policies

log = logging.getLogger("keystone")


@dataclass(frozen=True)
class Report:
    """What an evaluation came to.

    Attributes:
        folder: of the run.
        summaries: one for each arm, the first being what the others are compared with.
        new: episodes that were rolled out now.
        seconds: that this took.
    """

    folder: Path
    summaries: list[ArmSummary]
    new: int
    seconds: float


def evaluate(
    settings: EvaluationConfig,
    folder: Path,
    executor: Executor = in_process,
    console: Console | None = None,
    retry_errors: bool = False,
) -> Report:
    """Roll out whatever of an evaluation is not stored yet, and sum up.

    Args:
        settings: what to evaluate.
        folder: of the run; made if it does not exist, resumed if it does.
        executor: who rolls out the shards.
        console: for progress; None shows none.
        retry_errors: roll out again what ended with an error.
    """
    console = console or Console(quiet=True)
    begin = time.monotonic()
    with Store(folder) as store:
        if folder.exists():  # else nobody works there, and nothing is made before the settings are known to be right
            store.lock()
        if executor is in_process:
            executor = functools.partial(in_process, worker=checked_worker(settings))
        else:
            check_for_others(settings)
        fingerprint = fingerprint_policy(settings.policy)  # once it was loaded, the commit of a hub policy is known
        store.claim({"policy": fingerprint, **settings.identity()})
        arms = store.add_arms([str(arm) for arm in settings.arms])
        about = {**settings.as_dict(), "arms": arms, "versions": versions()}
        _write(folder / "settings.json", json.dumps(about, indent=2) + "\n")
        if retry_errors:
            store.forget_errors(settings.shards())
        shards = store.missing(settings.shards())
        if shards:
            _begin_session(store, versions())
        rows = store.episodes()
        stored = {(row.arm, row.task, row.repeat, row.episode) for row in rows}
        whole = sum(shard.count for shard in settings.shards())
        left = sum(shard.count for shard in shards)
        console.print(
            f"{settings.policy} in {settings.env}: {len(settings.tasks)} tasks × {settings.episodes} initial states × "
            f"{settings.repeats} repeats × {len(settings.arms)} arms = {whole} episodes, {whole - left} of them stored already",
            soft_wrap=True,
            highlight=False,
        )
        with Watch(
            console, settings, [row for row in rows if settings.asks_for(row.task, row.repeat, row.episode)]
        ) as watch:
            for result in executor(_for_workers(settings, fingerprint), shards):
                store.add(result)
                key = (str(result.shard.arm), result.shard.task, result.shard.repeat)
                watch.add(result, [(*key, one.episode) not in stored for one in result.episodes])
        rows = [row for row in store.episodes() if settings.asks_for(row.task, row.repeat, row.episode)]
        new = watch.done - watch.before
    summaries = summarise(
        rows, arms
    )  # also those of earlier calls: the first of all is what the others are compared with
    _write(folder / "summary.json", json.dumps([one.as_dict() for one in summaries], indent=2) + "\n")
    _write(folder / "summary.md", as_markdown(summaries))
    return Report(folder, summaries, new, time.monotonic() - begin)


def _for_workers(settings: EvaluationConfig, fingerprint: str) -> EvaluationConfig:
    """The same, for processes that may run elsewhere: where the policy's folder is, and what must be in it."""
    folder = find_policy(settings.policy)
    if folder is None or settings.policy in shipped_policies():
        return replace(settings, fingerprint=fingerprint)
    return replace(settings, policy=str(folder.resolve()), fingerprint=fingerprint)


def _begin_session(store: Store, now: dict[str, str]) -> None:
    """Note the versions of packages, and say so if earlier episodes were rolled out with others."""
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
    """Of what an outcome may depend on."""
    packages = ("torch", "numpy", "mujoco", "metaworld", "gym-pusht", "lerobot")
    installed = [package for package in packages if list(importlib.metadata.distributions(name=package))]
    return {"keystone": __version__, **{package: importlib.metadata.version(package) for package in installed}}


def _write(path: Path, text: str) -> None:
    """Whole or not at all."""
    try:
        with written_whole(path) as draft:
            draft.write_text(text)
    except OSError as error:
        raise KeystoneError(
            f"cannot write {path}: {error.strerror}. The episodes are stored; the same command goes on"
        ) from None
