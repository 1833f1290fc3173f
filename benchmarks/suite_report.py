"""All rows of all benchmarks on one page: benchmarks/results/suite.md."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keystone_robotics.files import atomic_write

INTRODUCTION = """\
# All benchmarks

Made by `make bench` from the JSON files beside it. Every number is a ratio of runs that took turns on one thread (CPU time):
above 1 is faster than what it is compared with, or, where it says *cost*, that many times as much.
`python -m benchmarks.regression OLD.json NEW.json` compares two of the files. Whole evaluations (closed_loop.json: episodes per
second, wall clock, partly two processes) are not among them; the README has their numbers.
"""


def results(folder: Path) -> dict[str, dict[str, Any]]:
    """The files in a folder that have rows, by name; others are of studies, not of benchmarks."""
    loaded = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    return {name: found for name, found in loaded.items() if isinstance(found, dict) and found.get("rows")}


def page(found: dict[str, dict[str, Any]], seconds: Mapping[str, float]) -> str:
    """How long each benchmark took, and a table for each file with where it was measured."""
    parts = [INTRODUCTION, *([durations(seconds)] if seconds else [])]
    for name, result in found.items():
        machine = result["machine"]
        versions = ", ".join(f"{key} {machine[key]}" for key in ("python", "torch", "numpy", "numba") if key in machine)
        lines = [
            f"## {name}",
            "",
            f"`{machine['command']}`, {machine['date']}, {machine['cpu']}, one thread, {versions}.",
            "",
        ]
        lines += ["| case | ratio |", "|---|---|"]
        for row in result["rows"]:
            kind = " (cost)" if row.get("better") == "lower" else ""
            lines.append(f"| {row['case']} | {row['ratio']:.2f}×{kind} |")
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def durations(seconds: Mapping[str, float]) -> str:
    """One line; wall clock, of the last run of each."""
    each = ", ".join(f"{name} {taken:.0f} s" for name, taken in seconds.items())
    return f"Making them took {sum(seconds.values()) / 60:.1f} minutes of wall-clock time (the last run of each): {each}.\n"


def write(folder: Path, seconds: Mapping[str, float]) -> Path:
    """Write suite.md into the folder of the results.

    Args:
        folder: of the results; the seconds of benchmarks that did not run this time are known from suite.json there.
        seconds: that those took which ran.
    """
    record = folder / "suite.json"
    known = json.loads(record.read_text())["seconds"] if record.exists() else {}
    known.update(seconds)
    path = folder / "suite.md"
    for target, text in (
        (record, json.dumps({"seconds": known}, indent=1) + "\n"),
        (path, page(results(folder), known)),
    ):
        with atomic_write(target) as draft:
            draft.write_text(text)
    return path
