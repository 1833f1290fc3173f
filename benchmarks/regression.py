"""``python -m benchmarks.regression OLD NEW [--allow 0.25] [--some]``: has anything become slower?

Compares the rows of two result files by their case, or those of all files in two folders. ``make bench-quick`` has some of the
cases of ``make bench``, with fewer rounds: ``benchmarks/results benchmarks/results/quick --some --allow 0.4``. Compared are
ratios that were measured within one run each, so the files may come from different machines: ratios of time, and of peak memory
where that is 100 MiB or more (less is within the noise of allocators). Where a ratio has a range of rounds, it is worse only if
the two ranges are disjoint, too. Exit code 0 if nothing is worse by more than is allowed; 1 if something is, or is missing in
NEW; 2 if the files cannot be compared.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.suite_report import results

#: MiB from which on peak memory is compared.
LEAST_MEMORY = 100.0


class Change(NamedTuple):
    """One case in both files. ``factor`` is above 1 where the new one is better, whichever direction that is. ``disjoint``: the
    ranges of the rounds do not overlap, or are not known.
    """

    case: str
    old: float
    new: float
    factor: float
    disjoint: bool


def read_rows(path: Path) -> dict[str, dict[str, Any]]:
    """The rows of a result file by case, or of all in a folder by file and case; of peak memory as well.

    Raises:
        ValueError: if it is not one.
    """
    if path.is_dir():
        listed = [(f"{name}: {row['case']}", row) for name, found in results(path).items() for row in found["rows"]]
    else:
        try:
            listed = [(row["case"], row) for row in json.loads(path.read_text())["rows"]]
        except OSError as error:
            raise ValueError(f"{path}: {error.strerror}") from None
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is no result file with rows of case and ratio: {error!r}") from None
    rows: dict[str, dict[str, Any]] = {}
    for case, row in listed:
        rows[case] = {**row, "ratio": _ratio(row.get("ratio"), case, path)}
        peaks = row.get("peak_mib") or {}
        if (peaks.get("authors") or 0.0) >= LEAST_MEMORY and peaks.get("fast"):
            rows[f"{case}, peak memory"] = {"ratio": peaks["authors"] / peaks["fast"]}
    return rows


def _ratio(value: Any, case: str, path: Path) -> float:
    if not isinstance(value, (int, float)) or not 0 < value < float("inf"):
        raise ValueError(f"{path}: the ratio of {case!r} is {value!r}, expected a number of more than 0")
    return float(value)


def changes(old: dict[str, dict[str, Any]], new: dict[str, dict[str, Any]]) -> list[Change]:
    """The cases that both have, the worst first."""
    found = []
    for case in old.keys() & new.keys():
        before, after = old[case]["ratio"], new[case]["ratio"]
        factor = before / after if old[case].get("better") == "lower" else after / before
        found.append(
            Change(case, before, after, factor, _ranges_disjoint(old[case].get("range"), new[case].get("range")))
        )
    return sorted(found, key=lambda change: (change.factor, change.case))


def _ranges_disjoint(old: Sequence[float] | None, new: Sequence[float] | None) -> bool:
    return old is None or new is None or old[0] > new[1] or new[0] > old[1]


def main(arguments: list[str] | None = None) -> int:
    """Print a table; an exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.regression", description=__doc__)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument(
        "--allow",
        type=float,
        default=0.25,
        help="how much worse a ratio may be, as a fraction; 0.25 is within the noise of a busy machine",
    )
    parser.add_argument("--some", action="store_true", help="NEW need not have all cases")
    given = parser.parse_args(arguments)
    if not 0 <= given.allow < 1:
        parser.error(f"--allow {given.allow}: expected a fraction from 0 to 1 (0.25 is a quarter)")
    try:
        old, new = read_rows(given.old), read_rows(given.new)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    compared = changes(old, new)
    if not compared:
        print(f"{given.old} and {given.new} have no case in common", file=sys.stderr)
        return 2
    worse = [change for change in compared if change.factor < 1 - given.allow and change.disjoint]
    missing, added = [] if given.some else sorted(old.keys() - new.keys()), sorted(new.keys() - old.keys())
    for change in compared:
        mark = "WORSE " if change in worse else "      "
        print(f"{mark}{change.factor:6.2f}  {change.old:8.3g} -> {change.new:8.3g}  {change.case}")
    for case in missing:
        print(f"MISSING in {given.new}: {case}")
    for case in added:
        print(f"new: {case}")
    print(f"{len(compared)} cases, {len(worse)} worse by more than {given.allow:.0%}, {len(missing)} missing")
    return 1 if worse or missing else 0


if __name__ == "__main__":
    sys.exit(main())
