"""Reads what `keystone report` is given: everything that `keystone compare` reads, and the folder of a `keystone tune`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from keystone_robotics.compare.files import read_json
from keystone_robotics.compare.find import read
from keystone_robotics.compare.outcomes import Outcomes
from keystone_robotics.errors import KeystoneError, nearest_name
from keystone_robotics.records import FILE as STORE_FILE
from keystone_robotics.tune.result import CONFIRM_FOLDER, RACE_FOLDER, RESULT_FILE, ArmResult, arm_rows


@dataclass(frozen=True)
class Tuning:
    """What a tuning run decided, and the race that led to it.

    Attributes:
        headline: the recommendation, one sentence.
        notes: for the reader.
        rows: the table of arms in the race as text, heading first.
    """

    headline: str
    notes: tuple[str, ...]
    rows: list[list[str]]


@dataclass(frozen=True)
class Runs:
    """The arms of all runs, with unique names; the others are compared with the first.

    Attributes:
        arms: in the order of the runs.
        names: of the arms inside their runs, where their episodes are stored.
        tunings: one for each tuning run.
    """

    arms: tuple[Outcomes, ...]
    names: tuple[str, ...]
    tunings: tuple[Tuning, ...]


def read_runs(paths: Sequence[Path], arms: Sequence[str] = ()) -> Runs:
    """The arms at these paths.

    Args:
        paths: of runs or results.
        arms: only these, in this order; empty takes all.

    Raises:
        KeystoneError: if a path holds no readable result, or an arm is unknown.
    """
    if not paths:
        raise KeystoneError("no run was given: keystone report RUN [RUN …], with the folder of a `keystone eval`, say")
    found: list[Outcomes] = []
    tunings: list[Tuning] = []
    for path in paths:
        outcomes, tuning = _read(path)
        found += outcomes
        tunings += [tuning] if tuning else []
    unique = _unique_names(found)
    if arms:
        for name in arms:
            if name not in unique:
                raise KeystoneError(f"there is no arm {name!r}: {nearest_name(name, unique)}")
        order = [unique.index(name) for name in arms]
        found, unique = [found[number] for number in order], list(arms)
    return Runs(
        tuple(replace(one, name=name) for one, name in zip(found, unique, strict=True)),
        tuple(one.name for one in found),
        tuple(tunings),
    )


def _read(path: Path) -> tuple[list[Outcomes], Tuning | None]:
    if (path / RESULT_FILE).is_file():
        return read(path / CONFIRM_FOLDER), _tuning(path / RESULT_FILE)
    if (path / RACE_FOLDER / STORE_FILE).is_file():
        note = f"{path} is an unfinished tuning run: these are the episodes of its race, which confirm nothing"
        return [replace(one, notes=(*one.notes, note)) for one in read(path / RACE_FOLDER)], None
    return read(path), None


def _tuning(path: Path) -> Tuning:
    result = read_json(path)
    try:
        arms = [ArmResult(**one) for one in result["arms"]]
        notes = [str(note) for note in (*result["notes"], *result["finalists"])]
        return Tuning(str(result["headline"]), tuple(notes), arm_rows(arms))
    except (KeyError, TypeError, ValueError) as error:
        raise KeystoneError(f"{path} is not in the format of `keystone tune`: {error!r}") from None


def _unique_names(arms: Sequence[Outcomes]) -> list[str]:
    """Names of arms; those of the same name get as much of their run's path in front as tells them apart, or a number.

    >>> old, new = (Outcomes("first", source, "keystone", ()) for source in ("old/run", "new/run"))
    >>> _unique_names([old, new]), _unique_names([old, old])
    (['old/run: first', 'new/run: first'], ['run: first', 'run: first (2)'])
    """
    often = Counter(one.name for one in arms)
    paths = {one.source: Path(one.source).parts for one in arms if often[one.name] > 1}
    depth = next(n for n in range(1, 1 + max(map(len, paths.values()), default=1)) if _tell_apart(paths.values(), n))
    names = [
        one.name if often[one.name] == 1 else f"{'/'.join(paths[one.source][-depth:])}: {one.name}" for one in arms
    ]
    seen: Counter[str] = Counter()
    for place, name in enumerate(names):
        seen[name] += 1
        if seen[name] > 1:
            names[place] = f"{name} ({seen[name]})"
    return names


def _tell_apart(paths: Collection[tuple[str, ...]], depth: int) -> bool:
    """Whether the last parts of these paths differ; as many as the longest has always do, as far as they can."""
    return len({parts[-depth:] for parts in paths}) == len(paths) or depth >= max(map(len, paths))
