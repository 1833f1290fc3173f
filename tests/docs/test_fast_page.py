"""The tables of docs/fast.md are those of the results beside it."""

from pathlib import Path

from benchmarks.fast_tables import filled

PAGE = Path(__file__).parents[2] / "docs" / "fast.md"


def test_tables_are_current() -> None:
    assert filled(PAGE.read_text()) == PAGE.read_text(), "python -m benchmarks.fast_tables"
