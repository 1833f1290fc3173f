"""Writes the table in docs/upstream.md from the recorded runs: python scripts/upstream_table.py."""

import json
import runpy
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE, RESULTS = ROOT / "docs" / "upstream.md", ROOT / "upstream" / "results.json"
BEGIN, END = "<!-- upstream:begin -->\n", "<!-- upstream:end -->\n"
COMMANDS_BEGIN, COMMANDS_END = "<!-- commands:begin -->\n", "<!-- commands:end -->\n"


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


def commands() -> str:
    """From nothing to a row of the table, for each checkout."""
    found = runpy.run_path(str(ROOT / "upstream" / "checkouts.py"))
    lines = []
    for name, run in json.loads(RESULTS.read_text()).items():
        repository, commit = found["CHECKOUTS"][name]
        lines += [
            f"{name}:",
            "",
            f"    git clone {repository} checkouts/{name} && git -C checkouts/{name} checkout {commit}",
            f"    python3.12 -m venv env-{name} && env-{name}/bin/pip install -e . pytest \\",
            f"        {found['PACKAGES'][name]}",
            f"    KEYSTONE_UPSTREAM=checkouts make test-upstream UPSTREAM_PYTHON=env-{name}/bin/python TESTS={run['tests']}",
            "",
        ]
    return "\n".join(lines)


def result(run: dict[str, Any]) -> str:
    """How many tests passed, and failed if any did."""
    return f"{run['passed']} passed" + (f", {run['failed']} failed" if run["failed"] else "")


def differences(run: dict[str, Any]) -> str:
    """Every measured difference with its name."""
    return ", ".join(f"{what} {value:.1e}" for what, value in run["largest_difference"].items())


def page() -> str:
    """The page with the regenerated table and commands."""
    text = PAGE.read_text()
    for begin, end, made in ((BEGIN, END, table()), (COMMANDS_BEGIN, COMMANDS_END, commands())):
        before, rest = text.split(begin)
        text = before + begin + made + end + rest.split(end)[1]
    return text


if __name__ == "__main__":
    PAGE.write_text(page())
