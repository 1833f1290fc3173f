"""docs/policies.md lists the adapters that exist."""

import runpy
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "policies_table.py"


def test_table_matches_the_adapters():
    script = runpy.run_path(str(SCRIPT))
    assert script["PAGE"].read_text() == script["page"](), "run: python scripts/policies_table.py"
