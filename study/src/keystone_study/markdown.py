"""Markdown tables."""

from __future__ import annotations

from collections.abc import Sequence


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """A table whose first row is the header.

    >>> print(markdown_table([["K", "ms"], ["16", "3.2"]]), end="")
    | K | ms |
    | --- | --- |
    | 16 | 3.2 |
    """
    header, *body = rows
    return "".join("| " + " | ".join(row) + " |\n" for row in (header, ["---"] * len(header), *body))
