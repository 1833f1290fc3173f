"""The tables of docs/fast.md, from ``benchmarks/results``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.harness import RESULTS
from keystone_robotics.tables import as_markdown


def denoise_table(results: Path = RESULTS) -> str:
    """How much faster the shared-context paths are, with the range of the rounds' ratios and the largest difference."""
    heads = (
        "case",
        "plain path",
        "fast path (range)",
        "in steps of K = 1: authors / fast",
        "max abs. Δ",
        "peak MiB: authors / fast",
    )
    cells = []
    found = _denoise_results(results)
    for row in _rows(found):
        plain = f"{row['plain_ratio']:.2f}×" if "plain_ratio" in row else "–"
        low, high = row["range"]
        fast = f"{row['ratio']:.2f}× ({low:.2f} to {high:.2f})"
        if "compiled_ratio" in row:
            fast += f", compiled {row['compiled_ratio']:.2f}×"
        cost = f"{row['authors_over_single']:.1f} / {row['fast_over_single']:.1f}"
        cells.append([row["case"], plain, fast, cost, f"{row['difference']:.0e}", _memory(row, " / ")])
    return "\n".join([as_markdown([heads, *cells]), "", *_machines(found)])


def _denoise_results(results: Path) -> list[dict[str, Any]]:
    return [_read(path) for path in sorted(results.glob("denoise_*.json"))]


def _rows(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for result in found for row in result["rows"]]


def _machines(found: list[dict[str, Any]]) -> list[str]:
    return sorted({_machine(result) for result in found})


def round_table(results: Path = RESULTS) -> str:
    """``whole_round.json``."""
    found = _read(results / "whole_round.json")
    return f"{_rounds(found['rows'])}\n\n{_machine(found)}"


def upstream_round_table(results: Path = RESULTS) -> str:
    """``whole_round_upstream.json``, whose rows come from several environments."""
    rows = _read(results / "whole_round_upstream.json")["rows"]
    environments = sorted({f"{row['checkout']} {row['commit']}: torch {row['torch']}, {row['date']}" for row in rows})
    return f"{_rounds(rows)}\n\n({'; '.join(environments)})"


def _rounds(rows: list[dict[str, Any]]) -> str:
    heads = ("case", "path", "16 separate calls", "a batch of 16 rows", "in single calls")
    cells = []
    for row in rows:
        repeated = f"{row['repeated_ratio']:.1f}×" if "repeated_ratio" in row else "–"
        cells.append([row["case"], row["path"], f"{row['ratio']:.1f}×", repeated, f"{row['fast_over_single']:.1f}"])
    return as_markdown([heads, *cells])


def _read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text()))


def _machine(found: dict[str, Any]) -> str:
    machine = found["machine"]
    return f"({machine['cpu']}, one thread, Python {machine['python']}, torch {machine['torch']}, {machine['date']})"


def _memory(row: dict[str, Any], between: str) -> str:
    authors, fast = row["peak_mib"]["authors"], row["peak_mib"]["fast"]
    return "–" if authors is None else f"{authors:.0f}{between}{fast:.0f}"
