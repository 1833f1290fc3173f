"""Writes the table in docs/upstream.md from the recorded runs: python scripts/upstream_table.py."""

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE, RESULTS = ROOT / "docs" / "upstream.md", ROOT / "upstream" / "results.json"
BEGIN, END = "<!-- upstream:begin -->\n", "<!-- upstream:end -->\n"


def table() -> str:
    """One row per tested checkout."""
    lines = [
        "| checkout | commit | date | result | largest difference to single calls | with | repeat |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, run in json.loads(RESULTS.read_text()).items():
        lines.append(
            f"| {name} | {run['commit']} | {run['date']} | {result(run)} | {differences(run)} | {run['versions']} "
            f"| `TESTS={run['tests']}` |"
        )
    return "\n".join(lines) + "\n"


def result(run: dict[str, Any]) -> str:
    """How many tests passed, and failed if any did."""
    return f"{run['passed']} passed" + (f", {run['failed']} failed" if run["failed"] else "")


def differences(run: dict[str, Any]) -> str:
    """Every measured difference with its name."""
    return ", ".join(f"{what} {value:.1e}" for what, value in run["largest_difference"].items())


def page() -> str:
    """The page with the regenerated table."""
    before, rest = PAGE.read_text().split(BEGIN)
    return before + BEGIN + table() + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(page())
