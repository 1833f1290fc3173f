"""``python -m benchmarks.report_page [--quick]``: how large the page of `keystone report` is, and how long it takes to open.

Writes report_page.json to benchmarks/results. The runs are synthetic: two arms, K = 16, chunks of 16 steps × 7 dimensions,
20 kept rounds an episode. ``open_ms`` is the wall-clock time in a real Chromium, from the request of the
file to the end of its load event, by which everything is drawn: the least of nine, since others may use the cores; ``ratio``
is that over the time of a page with 20 episodes and no rounds, opened in turn; ``episodes_with_rounds`` how many of the
stored ones the page holds.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import harness
from keystone_robotics.report.page.data import page_data
from keystone_robotics.report.page.read import read_runs
from keystone_robotics.report.page.write import write_page

#: Name, episodes of each task and arm, K of both arms (None: no rounds are kept). Two arms, five tasks.
CASES = (
    ("20 episodes without rounds", 2, None),
    ("500 episodes with rounds", 50, 16),
    ("10,000 episodes without rounds", 1000, None),
)
TASKS = tuple(f"task-{number}" for number in range(5))


def rows(quick: bool) -> Iterator[dict[str, Any]]:
    """One row for each run but the smallest, which is what the others are compared with."""
    sys.path.insert(0, str(harness.ROOT / "tests" / "report"))
    from browser import chromium
    from runs_with_rounds import write_run_with_rounds

    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        pages: dict[str, Path] = {}
        data: dict[str, Any] = {}
        for place, (name, episodes, k) in enumerate(CASES):
            arms = {"first:k=16": (0.5, k), "core-mean:k=16,steps=2": (0.7, k)}
            run = write_run_with_rounds(
                Path(folder) / f"run{place}", arms, TASKS, episodes, error=None, rounds=20, dims=7
            )
            pages[name], data[name] = Path(folder) / f"{place}.html", page_data(read_runs([run]))
            write_page(pages[name], data[name])
        tab = browser.new_page(viewport={"width": 1280, "height": 900})
        for page in pages.values():
            tab.goto(page.as_uri())  # the first of each reads the file from the disk
        times: dict[str, list[float]] = {name: [] for name in pages}
        for _ in range(3 if quick else 9):
            for name, page in pages.items():
                tab.goto(page.as_uri())
                times[name].append(tab.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd"))
        smallest, *others = pages
        for name in others:
            opened = min(times[name])
            yield {
                "case": name,
                "ratio": opened / min(times[smallest]),
                "better": "lower",
                "open_ms": opened,
                "bytes": pages[name].stat().st_size,
                "stored_with_rounds": data[name]["stored"]["episodes"],
                "episodes_with_rounds": len(data[name]["rounds"]),
            }


def main(quick: bool) -> None:
    """Measure and write."""
    harness.run("report_page", rows, quick)


if __name__ == "__main__":
    main(harness.parse_quick("report_page", __doc__))
