"""The folder of a tuning run: one space and one latency limit, and every confirmation on states of its own."""

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
#: Settings that belong to the folder, and the flags that set them. The stores of episodes check the others.
FLAGS = {"space": "--arm or --space", "latency": "--latency"}


def check_folder(folder: Path, config: TuneConfig) -> None:
    """Refuse a folder with the result of another tuning run, which this one would overwrite.

    Raises:
        KeystoneError: if the arms or the limit were others, or the budget was larger.
    """
    stored, now = _read(folder / SETTINGS_FILE, {}), config.as_dict()
    changed = [flag for name, flag in FLAGS.items() if name in stored and stored[name] != now[name]]
    if changed:
        raise KeystoneError(
            f"{folder} holds a tuning run with other arms or limits ({' and '.join(changed)}): give another --out, or the same "
            f"settings as in {folder / SETTINGS_FILE}"
        )
    if config.budget < stored.get("budget", 0):
        raise KeystoneError(
            f"--budget {config.budget}: {folder} holds a tuning run with {stored['budget']} episodes, which this one would "
            "overwrite: give as many or more, or another --out"
        )


def write_settings(folder: Path, config: TuneConfig) -> None:
    """What `check_folder` compares the next run with."""
    write_file(folder / SETTINGS_FILE, json.dumps(config.as_dict(), indent=2) + "\n")


def fresh_states(folder: Path, config: TuneConfig, arms: Sequence[Spec], first: int, count: int) -> tuple[int, str]:
    """Initial states for the confirmation that no earlier one in this folder used; noted before any of them is.

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
    this = {"budget": config.budget, "arms": [str(arm) for arm in arms], "count": count}
    earlier = known
    for place, one in enumerate(known):
        if {name: one[name] for name in this} == this:
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


def _read(path: Path, default: Any) -> Any:
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(path.read_text())
        return found if isinstance(found, type(default)) else default
    return default
