"""The folder of a tuning run: one policy and one set of settings, and every confirmation on states of its own."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keystone_robotics.errors import KeystoneError
from keystone_robotics.files import write_file
from keystone_robotics.spec import Spec
from keystone_robotics.tune.config import TuneConfig

SETTINGS_FILE, CONFIRMATIONS_FILE = "settings.json", "confirmations.json"
#: What sets a setting whose flag has another name.
FLAGS = {"space": "--arm or --space", "fingerprint": "the files of --policy"}


def check_folder(folder: Path, config: TuneConfig, fingerprint: str) -> None:
    """Refuse a folder with the result of another tuning run, before anything of it is overwritten.

    Args:
        folder: of the run.
        config: of the run; of all its settings only the budget may change, and not shrink.
        fingerprint: of the policy's files.

    Raises:
        KeystoneError: if another setting has changed, or the budget was larger.
    """
    stored, now = _read(folder / SETTINGS_FILE, {}), _settings(config, fingerprint)
    changed = [
        FLAGS.get(name, "--" + name.replace("_", "-"))
        for name, value in now.items()
        if name != "budget" and name in stored and stored[name] != value
    ]
    if changed:
        raise KeystoneError(
            f"{folder} holds a tuning run with other settings ({' and '.join(changed)}): give another --out, or the same "
            f"settings as in {folder / SETTINGS_FILE}"
        )
    if config.budget < stored.get("budget", 0):
        raise KeystoneError(
            f"--budget {config.budget}: {folder} holds a tuning run with {stored['budget']} episodes, which this one would "
            "overwrite: give as many or more, or another --out"
        )


def write_settings(folder: Path, config: TuneConfig, fingerprint: str) -> None:
    """What `check_folder` compares the next run with."""
    write_file(folder / SETTINGS_FILE, json.dumps(_settings(config, fingerprint), indent=2) + "\n")


def fresh_states(folder: Path, config: TuneConfig, arms: Sequence[Spec], first: int, count: int) -> tuple[int, str]:
    """Initial states for the confirmation that neither the race nor an earlier one in this folder used; noted before any of
    them is.

    Args:
        folder: of the run.
        config: of the run; with the same budget it has the states that it was given before.
        arms: to be confirmed.
        first: the first number after those of the race.
        count: states of each task.

    Returns:
        The number of the first one, and a sentence about earlier confirmations, if there were any.
    """
    path = folder / CONFIRMATIONS_FILE
    known: list[dict[str, Any]] = _read(path, [])
    tasks = list(config.evaluation.tasks)
    this = {"budget": config.budget, "tasks": tasks, "arms": [str(arm) for arm in arms], "count": count}
    earlier = known
    for place, one in enumerate(known):
        if one["first"] >= first and {name: one.get(name) for name in this} == this:
            first, earlier = one["first"], known[:place]
            break
    else:
        first = max([first, *(one["first"] + one["count"] for one in known)])
        write_file(path, json.dumps([*known, {**this, "first": first}], indent=2) + "\n")
    if not earlier:
        return first, ""
    budgets = ", ".join(f"--budget {one['budget']}" for one in earlier)
    return first, (
        f"this is confirmation {len(earlier) + 1} in this folder (before: {budgets}), on states that no earlier one used; each "
        "has a chance of 5 % of its own to call an arm better that is not: do not repeat it until it does"
    )


def _settings(config: TuneConfig, fingerprint: str) -> dict[str, Any]:
    return {**config.as_dict(), "fingerprint": fingerprint}


def _read(path: Path, default: Any) -> Any:
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(path.read_text())
        return found if isinstance(found, type(default)) else default
    return default
