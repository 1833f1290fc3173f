"""One file with what a recipe measured on somebody's hardware, and the table made of such files (docs/gpu.md)."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from keystone_robotics.compare.comparison import rate_of
from keystone_robotics.compare.find import read
from keystone_robotics.errors import KeystoneError
from keystone_robotics.profiling.result import Cost, Profile

FORMAT = 1


def recipe_command(text: str, command: str) -> list[str] | None:
    r"""The words of a recipe's own ``keystone COMMAND``, without ``keystone``; None if it has none.

    >>> recipe_command("    keystone eval --policy x \\\n        --env y\n", "eval")
    ['eval', '--policy', 'x', '--env', 'y']
    """
    lines = re.sub(r" *\\\n *", " ", text).splitlines()
    line = next((line for line in lines if line.startswith(f"    keystone {command} ")), None)
    return None if line is None else shlex.split(line, comments=True)[1:]


def paper_k(text: str) -> int:
    r"""The K of the paper in a recipe's table.

    >>> paper_k("| model | workload | K | paper: K = 1 |\n|---|---|---|---|\n| GR00T | WidowX | 4 | 50.0 |\n")
    4
    """
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return int(rows[2][rows[0].index("K")])


def with_options(words: Sequence[str], given: Mapping[str, Sequence[str]]) -> list[str]:
    """A command with some of its flags replaced, or added; a flag without values is left as it is.

    >>> with_options(["eval", "--arm", "a", "--arm", "b", "--seed", "0"], {"--arm": ["c"], "--out": ["x"], "--env": []})
    ['eval', '--seed', '0', '--arm', 'c', '--out', 'x']
    """
    kept, skipping = [], False
    for word in words:
        if word.startswith("--"):
            skipping = bool(given.get(word))
        if not skipping:
            kept.append(word)
    return kept + [word for flag, values in given.items() if values for word in (flag, *values)]


def collected(recipe: str, profile: Path, run: Path | None, results: Sequence[Path] = ()) -> dict[str, Any]:
    """What goes into the file: versions, device, latency against K × steps, success with intervals.

    Args:
        recipe: name.
        profile: folder of a `keystone profile`.
        run: folder of a `keystone eval`; None if the benchmark ran elsewhere.
        results: what that benchmark wrote, as `keystone compare` reads it.
    """
    measured = _json(profile / "profile.json")
    settings: dict[str, Any] = {} if run is None else _json(run / "settings.json")
    kept = ("policy", "env", "tasks", "episodes", "repeats", "seed", "max_steps", "execute", "device")
    return {
        "format": FORMAT,
        "recipe": recipe,
        "device": measured["device"],
        "versions": {**settings.get("versions", {}), **measured["versions"]},
        "settings": {name: settings[name] for name in kept if name in settings},
        "profile": measured,
        "arms": _arms_of(results) if run is None else _json(run / "summary.json"),
    }


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _arms_of(results: Sequence[Path]) -> list[dict[str, Any]]:
    """Success of every arm of other tools' results; their latency is that of an episode, or unknown."""
    found = []
    for arm in (one for path in results for one in read(path)):
        rate = rate_of(arm)
        found.append({"arm": arm.name, "tool": arm.tool, **asdict(rate), "latency_ms": None})
    return found


def read_collected(path: Path) -> dict[str, Any]:
    """A file of `collected`.

    Raises:
        KeystoneError: if it is none.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["format"] != FORMAT:
            raise KeystoneError(f"{path}: format {found['format']!r}, expected {FORMAT}")
        Profile.from_dict(found["profile"])
        table_rows([found])
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise KeystoneError(f"{path} is no file of `keystone recipes NAME --collect` ({error!r})") from None
    return dict(found)


def table_rows(files: Iterable[Mapping[str, Any]]) -> list[list[str]]:
    """One row for each arm of each file, heading first."""
    rows = [["recipe", "device", "arm", "success, %", "a round, ms", "largest K no slower than K = 1, by steps"]]
    for one in files:
        found = Profile.from_dict(one["profile"])
        free: dict[int | None, Cost] = {}
        for cost in sorted(found.no_slower(), key=lambda cost: cost.k):
            free[cost.steps or found.steps] = cost
        by_steps = ", ".join(
            f"{steps or 'own'}: {cost.k}" for steps, cost in sorted(free.items(), key=lambda it: it[0] or 0)
        )
        for arm in one["arms"]:
            low, high = (100 * bound for bound in arm["interval"])
            latency = "–" if arm["latency_ms"] is None else f"{arm['latency_ms']:.3g}"
            rate = f"{100 * arm['rate']:.1f} [{low:.1f}, {high:.1f}] of {arm['episodes']}"
            rows.append([one["recipe"], one["device"], f"`{arm['arm']}`", rate, latency, by_steps])
    return rows
