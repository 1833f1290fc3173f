"""Finds the reader for a path, and the arms to compare."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path

from keystone_robotics.compare.files import read_json
from keystone_robotics.compare.outcomes import Outcomes
from keystone_robotics.compare.read_lerobot import FILE as LEROBOT_FILE
from keystone_robotics.compare.read_lerobot import is_lerobot, read_lerobot
from keystone_robotics.compare.read_run import read_run
from keystone_robotics.compare.read_vla_eval import PATTERN, is_vla_eval, read_vla_eval, read_vla_eval_folder
from keystone_robotics.errors import KeystoneError, nearest_name
from keystone_robotics.records import FILE as STORE_FILE

EXPECTED = f"the folder of a `keystone eval`, LeRobot's {LEROBOT_FILE} or vla-eval's {PATTERN} (or their folder)"

#: Paths that an error names at most.
NEAREST = 5


def read(path: Path) -> list[Outcomes]:
    """All arms at a path: those of a run, or the one arm of another tool's result.

    Raises:
        KeystoneError: if there is no readable result.
    """
    if not path.exists():
        raise KeystoneError(f"{path} does not exist{_nearest_paths(path)}: expected {EXPECTED}")
    if path.is_dir():
        return _read_folder(path)
    if path.name == STORE_FILE:
        return read_run(path.parent)
    document = read_json(path)
    if is_lerobot(document):
        return [read_lerobot(path)]
    if is_vla_eval(document):
        return [read_vla_eval(path)]
    raise KeystoneError(f"{path} is not a result that can be compared: expected {EXPECTED}")


def _nearest_paths(path: Path) -> str:
    """The entries of the parent folder whose names are nearest, five at most, in brackets."""
    if not path.parent.is_dir():
        return ""
    names = sorted(one.name for one in path.parent.iterdir() if not one.name.startswith("."))
    near = difflib.get_close_matches(path.name, names, n=NEAREST, cutoff=0.4)
    return f" (did you mean {' or '.join(str(path.parent / name) for name in near)}?)" if near else ""


def _read_folder(folder: Path) -> list[Outcomes]:
    if (folder / STORE_FILE).is_file():
        return read_run(folder)
    if (folder / LEROBOT_FILE).is_file():
        return [read_lerobot(folder / LEROBOT_FILE)]
    if any(folder.glob(PATTERN)):
        return [read_vla_eval_folder(folder)]
    inside = sorted(str(one.parent) for one in folder.glob(f"*/{STORE_FILE}"))[:NEAREST]
    hint = f", but there are in {' and '.join(inside)}: give one of them" if inside else f": expected {EXPECTED}"
    raise KeystoneError(f"{folder} holds no result{hint}")


def read_arms(first: Path, second: Path | None, arms: Sequence[str] = ()) -> list[Outcomes]:
    """The arms to compare; the others are compared with the first.

    Args:
        first: path of A, or of a run that holds all arms.
        second: path of B; None to compare within `first`.
        arms: with one run, A's name followed by those to compare with it (default all); with two, A's and B's, or one for both.

    Raises:
        KeystoneError: if an arm is unknown or ambiguous.
    """
    ours = read(first)
    if second is None:
        chosen = [_named(ours, name, first) for name in arms] if arms else ours
        if len(chosen) < 2:
            instead = f", or --arms with two of {', '.join(one.name for one in ours)}" if len(ours) > 1 else ""
            raise KeystoneError(
                f"{first} gives one arm ({chosen[0].name}) and a comparison needs two: give a second result{instead}"
            )
        return chosen
    theirs = read(second)
    if len(arms) > 2:
        raise KeystoneError(f"--arms {' '.join(arms)}: for two results expected one name, or A's and B's")
    names = (arms[0], arms[-1]) if arms else (None, None)
    return [_named(ours, names[0], first), _named(theirs, names[1], second)]


def _named(outcomes: Sequence[Outcomes], name: str | None, path: Path) -> Outcomes:
    known = [one.name for one in outcomes]
    if name is None or (len(outcomes) == 1 and outcomes[0].tool != "keystone"):
        if len(outcomes) > 1:
            raise KeystoneError(f"{path} holds {len(outcomes)} arms, say which with --arms: {', '.join(known)}")
        return outcomes[0]
    if name not in known:
        raise KeystoneError(f"{path} has no arm {name!r}: {nearest_name(name, known)}")
    return outcomes[known.index(name)]
