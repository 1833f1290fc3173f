"""The text of an issue from the output of a failed test run: ``python scripts/issue_text.py out/newest.log WHAT``.

Prints a title, an empty line, and Markdown: what was tested, which tests failed, and what the self-check said.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

REFUSED = re.compile(r"self-check|differ from the policy's own|cannot be attached|KeystoneError", re.IGNORECASE)
LONGEST = 40


def issue_text(log: str, what: str) -> str:
    """Title, an empty line, body."""
    lines = log.rstrip().splitlines() or ["no output"]
    versions = [line for line in lines[:10] if re.match(r"[A-Za-z][\w.-]* +\w+[\w.]*$", line)]
    said = list(dict.fromkeys(line[1:].strip() for line in lines if line.startswith("E ") and REFUSED.search(line)))
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    title = f"{what}: KeyStone's self-check refuses it" if said else f"{what}: tests fail with the newest version"
    parts = [title, f"The weekly test against the newest version failed: {lines[-1].strip('= ')}", _block(versions)]
    if said:
        parts += ["**What the self-check said**", _block(said)]
    if failed:
        parts += ["**Failed tests**", _block(failed)]
    return "\n\n".join(part for part in parts if part)


def _block(lines: Sequence[str]) -> str:
    more = [f"… and {len(lines) - LONGEST} more"] if len(lines) > LONGEST else []
    return "\n".join(["```text", *lines[:LONGEST], *more, "```"]) if lines else ""


if __name__ == "__main__":
    sys.stdout.write(issue_text(Path(sys.argv[1]).read_text(errors="replace"), sys.argv[2]) + "\n")
