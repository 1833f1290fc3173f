"""Writes the tables in docs/upstream.md from the recorded runs and upstream/checkouts.py: python scripts/upstream_table.py."""

import json
import runpy
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE, RESULTS = ROOT / "docs" / "upstream.md", ROOT / "upstream" / "results.json"
BEGIN, END = "<!-- upstream:begin -->\n", "<!-- upstream:end -->\n"
PACKAGES_BEGIN, PACKAGES_END = "<!-- packages:begin -->\n", "<!-- packages:end -->\n"


def table() -> str:
    """One row per tested checkout."""
    lines = [
        "| checkout | commit | date | KeyStone | result | largest difference to single calls | with |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, run in json.loads(RESULTS.read_text()).items():
        lines.append(
            f"| {name} | {run['commit']} | {run['date']} | {run.get('keystone', '')} | {result(run)} | {differences(run)} "
            f"| {run['versions']} |"
        )
    return "\n".join(lines) + "\n"


def packages() -> str:
    """What the tests of each checkout need."""
    lines = ["| checkout | repository | packages |", "|---|---|---|"]
    checkouts = runpy.run_path(str(ROOT / "upstream" / "checkouts.py"))["CHECKOUTS"]
    for name, one in sorted(checkouts.items()):
        lines.append(f"| {name} | {one.repository.removeprefix('https://')} | {one.packages} |")
    return "\n".join(lines) + "\n"


def result(run: dict[str, Any]) -> str:
    """How many tests passed, and failed if any did."""
    return f"{run['passed']} passed" + (f", {run['failed']} failed" if run["failed"] else "")


def differences(run: dict[str, Any]) -> str:
    """Every measured difference with its name."""
    return ", ".join(f"{what} {value:.1e}" for what, value in run["largest_difference"].items())


def page() -> str:
    """The page with the regenerated tables."""
    text = PAGE.read_text()
    for begin, end, made in ((BEGIN, END, table()), (PACKAGES_BEGIN, PACKAGES_END, packages())):
        before, rest = text.split(begin)
        text = before + begin + made + end + rest.split(end)[1]
    return text


if __name__ == "__main__":
    PAGE.write_text(page())
