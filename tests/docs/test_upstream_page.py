"""docs/upstream.md shows the runs that were recorded."""

import runpy
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "upstream_table.py"


def test_table_matches_the_recorded_runs():
    script = runpy.run_path(str(SCRIPT))
    assert script["PAGE"].read_text() == script["page"](), "run: python scripts/upstream_table.py"
