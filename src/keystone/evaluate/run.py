"""An evaluation from settings to a table; interrupted at any moment, the same call goes on where it was."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from keystone import __version__
from keystone.errors import KeystoneError
from keystone.evaluate.executors import Executor, in_process
from keystone.evaluate.progress import Watch
from keystone.evaluate.settings import Settings
from keystone.evaluate.store import Store
from keystone.evaluate.summary import ArmSummary, as_markdown, summarise
from keystone.evaluate.worker import check
from keystone.policies.load import find_policy

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
    settings: Settings,
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
    check(settings)
    begin = time.monotonic()
    with Store(folder) as store:
        store.claim({"policy": fingerprint_policy(settings.policy), **settings.identity()})
        _write(folder / "settings.json", json.dumps({**settings.as_dict(), "versions": versions()}, indent=2) + "\n")
        if retry_errors:
            store.forget_errors(settings.shards())
        shards = store.missing(settings.shards())
        rows = store.episodes()
        stored = {(row.arm, row.task, row.repeat, row.episode) for row in rows}
        with Watch(console, settings, [row for row in rows if _wanted(row, settings)]) as watch:
            for result in executor(settings, shards):
                store.add(result)
                key = (str(result.shard.arm), result.shard.task, result.shard.repeat)
                watch.add(result, [(*key, one.episode) not in stored for one in result.episodes])
        rows = [row for row in store.episodes() if _wanted(row, settings)]
        new = watch.done - watch.before
    summaries = summarise(rows, [str(arm) for arm in settings.arms])
    _write(folder / "summary.json", json.dumps([one.as_dict() for one in summaries], indent=2) + "\n")
    _write(folder / "summary.md", as_markdown(summaries))
    return Report(folder, summaries, new, time.monotonic() - begin)


def _wanted(row: Any, settings: Settings) -> bool:
    """A store may hold more than was asked for now: of tasks, episodes and repeats of earlier calls."""
    return row.task in settings.tasks and row.episode < settings.episodes and row.repeat < settings.repeats


def fingerprint_policy(name: str) -> str:
    """A hash of a policy's configuration and weights; for a name on the hub, the name."""
    folder = find_policy(name)
    if folder is None:
        return name
    digest = hashlib.sha256()
    files = [path for path in sorted(folder.glob("*")) if path.suffix in (".safetensors", ".json") and path.is_file()]
    for path in files:
        digest.update(path.name.encode())
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()[:16]


def versions() -> dict[str, str]:
    """Of what an outcome may depend on."""
    packages = ("torch", "numpy", "mujoco", "metaworld", "gym-pusht", "lerobot")
    installed = [package for package in packages if list(importlib.metadata.distributions(name=package))]
    return {"keystone": __version__, **{package: importlib.metadata.version(package) for package in installed}}


def _write(path: Path, text: str) -> None:
    """Whole or not at all."""
    part = path.with_suffix(path.suffix + ".part")
    try:
        part.write_text(text)
        part.replace(path)
    except OSError as error:
        raise KeystoneError(
            f"cannot write {path}: {error.strerror}. The episodes are stored; the same command goes on"
        ) from None
