"""Writes the tables of docs/fast.md from ``benchmarks/results``: ``python -m benchmarks.fast_tables``."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def denoise_table(results: Path) -> str:
    """All cases of the ``denoise_*.json`` there are."""
    heads = (
        "case",
        "plain path",
        "fast path",
        "in steps of K = 1: authors / fast",
        "max abs. Δ",
        "memory: authors / fast",
    )
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    files = sorted(results.glob("denoise_*.json"))
    machines = set()
    for found in map(_read, files):
        machines.add(_machine(found))
        for row in found["rows"]:
            plain = f"{row['plain_ratio']:.2f}×" if "plain_ratio" in row else "–"
            fast = f"{row['ratio']:.2f}×"
            if "compiled_ratio" in row:
                fast += f" (compiled {row['compiled_ratio']:.2f}×)"
            cost = f"{row['authors_over_single']:.1f} / {row['fast_over_single']:.1f}"
            lines.append(f"| {row['case']} | {plain} | {fast} | {cost} | {row['difference']:.0e} | {_memory(row)} |")
    return "\n".join([*lines, "", *sorted(machines)])


def round_table(results: Path) -> str:
    """``whole_round.json``."""
    found = _read(results / "whole_round.json")
    heads = ("case", "path", "16 separate calls", "a batch of 16 rows", "in single calls")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for row in found["rows"]:
        ratios = f"{row['ratio']:.1f}× | {row['repeated_ratio']:.1f}× | {row['fast_over_single']:.1f}"
        lines.append(f"| {row['case']} | {row['path']} | {ratios} |")
    return "\n".join([*lines, "", _machine(found)])


def filled(page: str, results: Path = ROOT / "benchmarks/results") -> str:
    """The page with every table between its markers replaced by the current one."""
    for name, table in {"denoise": denoise_table(results), "whole-round": round_table(results)}.items():
        pattern = re.compile(f"(<!-- {name}:begin -->\n).*?(<!-- {name}:end -->)", re.DOTALL)
        page, count = pattern.subn(lambda found, table=table: f"{found[1]}{table}\n{found[2]}", page)
        if count != 1:
            raise SystemExit(f"docs/fast.md: expected the markers of the table {name!r} once, found them {count} times")
    return page


def _read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text()))


def _machine(found: dict[str, Any]) -> str:
    machine = found["machine"]
    return f"({machine['cpu']}, one thread, Python {machine['python']}, torch {machine['torch']}, {machine['date']})"


def _memory(row: dict[str, Any]) -> str:
    authors, fast = row["peak_mib"]["authors"], row["peak_mib"]["fast"]
    return "–" if authors is None else f"{authors:.0f} / {fast:.0f} MiB"


if __name__ == "__main__":
    document = ROOT / "docs" / "fast.md"
    document.write_text(filled(document.read_text()))
