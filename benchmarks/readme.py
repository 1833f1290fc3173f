"""Writes the tables of the README from ``benchmarks/results``: ``python -m benchmarks.readme`` (part of ``make bench``)."""

from __future__ import annotations

import json
import re
from pathlib import Path

from keystone.reproduce.tables import markdown

ROOT = Path(__file__).parents[1]
BRANCHES = {"one way": "guard: one group", "two ways": "clustering: two modes", "isotropic": "clustering: no structure"}


def select_table() -> str:
    """Speed-ups at K = 16 as a Markdown table, from ``select.json``."""
    results = json.loads((ROOT / "benchmarks/results/select.json").read_text())
    lines = ["| K = 16 | rounds per call | with numba | without |", "|---|---|---|---|"]
    for row in results["speedups"]:
        if row["k"] == 16:
            ratios = (f"{row[name]['median']:.2g}×" for name in ("compiled", "early exit"))
            lines.append(f"| {BRANCHES[row['cloud']]} | {row['batch']} | {' | '.join(ratios)} |")
    machine = results["machine"]
    lines.append("")
    lines.append(f"({machine['cpu']}, Python {machine['python']}, torch {machine['torch']}, numba {machine['numba']})")
    return "\n".join(lines)


def main_table() -> str:
    """Success on every workload, from ``main.json``, which ``keystone reproduce main`` wrote."""
    results = json.loads((ROOT / "benchmarks/results/main.json").read_text())
    return markdown(results["overview"]) + "\n" + results["legend"]


def throughput_line() -> str:
    """Episodes per second, from ``closed_loop.json``."""
    results = json.loads((ROOT / "benchmarks/results/closed_loop.json").read_text())
    rates = {(row["arm"], row["processes"]): row["per_second"] for row in results["throughput"]}
    one, many = (
        f"{rates[arm, 1]:.1f} with one process, {rates[arm, 2]:.1f} with two" for arm in ("first", "keystone:k=16")
    )
    machine = results["machine"]
    return (
        f"Episodes per second of Meta-World, set-up included: {one} at K = 1; {many} at K = 16. "
        f"({machine['cpu']}, Python {machine['python']}, torch {machine['torch']}, {machine['date']})"
    )


TABLES = {"select": select_table, "main": main_table, "throughput": throughput_line}


def filled(page: str) -> str:
    """The README with every table between its markers replaced by the current one."""
    for name, make in TABLES.items():
        table = make()
        pattern = re.compile(f"(<!-- {name}:begin -->\n).*?(<!-- {name}:end -->)", re.DOTALL)
        page, count = pattern.subn(lambda found, table=table: f"{found[1]}{table}\n{found[2]}", page)
        if count != 1:
            raise SystemExit(f"README.md: expected the markers of the table {name!r} once, found them {count} times")
    return page


if __name__ == "__main__":
    readme = ROOT / "README.md"
    readme.write_text(filled(readme.read_text()))
