"""The docs site lists every page, and links of the pages lead somewhere. `make docs` checks anchors and references, too."""

import re
import runpy
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
#: Made while the site is built (scripts/docs_site.py).
GENERATED = {"index.md", "reference/cli.md"}
PAGES = [*sorted(DOCS.rglob("*.md")), *sorted(ROOT.glob("*.md"))]


def listed(entries):
    for entry in entries:
        for value in entry.values():
            yield from [value] if isinstance(value, str) else listed(value)


def test_the_navigation_lists_every_page():
    names = list(listed(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    assert len(names) == len(set(names))
    assert set(names) == GENERATED | {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_to_files_lead_somewhere(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)\s#]+)", text):
        assert re.match(r"[a-z]+:", target) or (page.parent / target).exists(), target  # on GitHub, too


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_lines_end_at_120_characters(page):
    """Except tables, images, what is generated or has an address, and what a command printed (```text)."""
    text = re.sub(r"^<!-- ([\w-]+):begin.*?^<!-- \1:end", _blank, page.read_text(), flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^```text$.*?^```$", _blank, text, flags=re.DOTALL | re.MULTILINE)
    long = [
        number
        for number, line in enumerate(text.splitlines(), 1)
        if len(line) > 120 and not re.match(r"\s*\||!\[|.*https?://", line)
    ]
    assert not long, f"{page}: lines {long}"


def _blank(found):
    return "\n" * found[0].count("\n")


def test_an_issue_says_what_the_self_check_said():
    issue_text = runpy.run_path(str(ROOT / "scripts" / "issue_text.py"))["issue_text"]
    refused = "E       keystone_robotics.errors.KeystoneError: self-check failed: candidate 3 differs by 0.2"
    log = (
        f"lerobot 0.7.0\n..F.\n{refused}\n{refused}\nFAILED tests/a.py::b - KeystoneError\n1 failed, 3 passed in 2 s\n"
    )
    title, _, body = issue_text(log, "newest LeRobot").partition("\n\n")
    assert title == "newest LeRobot: KeyStone's self-check refuses it"
    assert body.count("candidate 3 differs by 0.2") == 1
    for part in ("lerobot 0.7.0", "FAILED tests/a.py::b", "1 failed, 3 passed"):
        assert part in body
    other = issue_text("FAILED tests/a.py::b - AssertionError\n1 failed", "newest openpi")
    assert other.startswith("newest openpi: tests fail with the newest version\n")
    assert issue_text("", "x").startswith("x: tests fail")
