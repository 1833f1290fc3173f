"""All rows of all benchmarks on one page: benchmarks/results/suite.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

INTRODUCTION = """\
# All benchmarks

Made by `make bench` from the JSON files beside it. Every number is a ratio of runs that took turns on one thread (CPU time):
above 1 is faster than what it is compared with, or, where it says *cost*, that many times as much. There are no absolute times.
`python -m benchmarks.regression OLD.json NEW.json` compares two of the files.
"""


def results(folder: Path) -> dict[str, dict[str, Any]]:
    """The files with rows in a folder, by name."""
    loaded = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    return {name: found for name, found in loaded.items() if found.get("rows")}


def page(found: dict[str, dict[str, Any]]) -> str:
    """A table for each file, with where it was measured."""
    parts = [INTRODUCTION]
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


def write(folder: Path) -> Path:
    """Write suite.md into the folder of the results."""
    path = folder / "suite.md"
    path.write_text(page(results(folder)))
    return path
