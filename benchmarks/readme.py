"""Writes the tables of the README from ``benchmarks/results``: ``python -m benchmarks.readme`` (part of ``make bench``)."""

from __future__ import annotations

import json
import re
from pathlib import Path

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


def closed_loop_table() -> str:
    """Success of every shipped policy and arm, from ``closed_loop.json``."""
    results = json.loads((ROOT / "benchmarks/results/closed_loop.json").read_text())
    lines = [
        "| policy | arm | n | success | ± repeats | Δ to K = 1 [95 %] | time of a round |",
        "|---|---|---|---|---|---|---|",
    ]
    for outcome in results["outcomes"]:
        for arm in outcome["arms"]:
            difference = "–"
            spread = "–" if arm["repeats_std"] is None else f"{100 * arm['repeats_std']:.1f}"
            if arm["difference"] is not None:
                low, high = (100 * bound for bound in arm["difference_interval"])
                difference = f"{100 * arm['difference']:+.1f} [{low:+.1f}, {high:+.1f}]"
            lines.append(
                f"| `{outcome['policy']}` | `{arm['arm']}` | {arm['episodes']} | {100 * arm['rate']:.1f} % "
                f"| {spread} | {difference} | {arm['latency_ms'] / outcome['arms'][0]['latency_ms']:.2f}× |"
            )
    rates = {(row["arm"], row["processes"]): row["per_second"] for row in results["throughput"]}
    one, many = (
        f"{rates[arm, 1]:.1f} with one process, {rates[arm, 2]:.1f} with two" for arm in ("first", "keystone:k=16")
    )
    machine = results["machine"]
    lines.append("")
    lines.append(
        f"Episodes per second, set-up included: {one} at K = 1; {many} at K = 16. "
        f"({machine['cpu']}, Python {machine['python']}, torch {machine['torch']}, {machine['date']})"
    )
    return "\n".join(lines)


def denoise_table() -> str:
    """How much faster the shared-context paths are, from every ``denoise_*.json`` that is there."""
    lines = ["| case | speed-up | K candidates cost, before → now | peak MiB, before → now |", "|---|---|---|---|"]
    machine: dict[str, str] = {}
    for path in sorted((ROOT / "benchmarks/results").glob("denoise_*.json")):
        found = json.loads(path.read_text())
        machine = found["machine"]
        for row in found["rows"]:
            cost = f"{row['authors_over_single']:.2f}× → {row['fast_over_single']:.2f}×"
            memory = [row["peak_mib"][name] for name in ("authors", "fast")]
            peaks = "–" if None in memory else " → ".join(f"{value:.0f}" for value in memory)
            lines.append(f"| {row['case']} | {row['ratio']:.2f}× | {cost} | {peaks} |")
    if not machine:
        return "(not measured yet: `make bench`)"
    lines += ["", f"({machine['cpu']}, Python {machine['python']}, torch {machine['torch']}, {machine['date']})"]
    return "\n".join(lines)


TABLES = {"select": select_table, "closed-loop": closed_loop_table, "denoise": denoise_table}


def filled(page: str) -> str:
    """The README with every table between its markers replaced by the current one."""
    for name, make in TABLES.items():
        table = make()
        pattern = re.compile(f"(<!-- {name}:begin -->\n).*?(<!-- {name}:end -->)", re.DOTALL)
        page, count = pattern.subn(lambda found, table=table: f"{found[1]}{table}\n{found[2]}", page)
        if count != 1:
            raise SystemExit(f"README.md: expected the markers of the table {name!r} once, found them {count} times")
    return page


def write() -> None:
    """Bring the README up to date."""
    readme = ROOT / "README.md"
    readme.write_text(filled(readme.read_text()))


if __name__ == "__main__":
    write()
