"""Tables from rows of text, heading first: Markdown, aligned plain text, or a rich table for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

Rows = Sequence[Sequence[str]]


def printable(text: str) -> str:
    r"""Text for one line of a terminal. What does not print is written as an escape: a name in somebody else's file must not
    move the cursor, hide a line or turn the reading direction.

    >>> print(printable("push \x1b[2J\n\u202e"), printable("Δ 5 °"))
    push \x1b[2J\n\u202e Δ 5 °
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def from_columns(columns: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """Rows from columns by their heading; columns without any entry are dropped.

    >>> from_columns({"arm": ["first", "medoid"], "errors": ["", ""], "n": ["4", "4"]})
    [['arm', 'n'], ['first', '4'], ['medoid', '4']]
    """
    kept = {heading: values for heading, values in columns.items() if any(values)}
    return [list(kept), *(list(map(printable, row)) for row in zip(*kept.values(), strict=True))]


def as_markdown(rows: Rows) -> str:
    """A Markdown table, one line per row.

    >>> print(as_markdown([["K", "ms"], ["1", "2.5"]]))
    | K | ms |
    | --- | --- |
    | 1 | 2.5 |
    """
    heading, *body = rows
    return "\n".join("| " + " | ".join(row) + " |" for row in (heading, ["---"] * len(heading), *body))


def as_text(rows: Rows) -> str:
    """Aligned columns, the first to the left, the others to the right; never wrapped, so that logs keep whole lines.

    >>> print(as_text([["task", "n"], ["push", "120"]]))
    task    n
    push  120
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))])
        for row in rows
    )


def as_rich(rows: Rows, caption: str | None = None) -> Table:
    """For a terminal: the first column folds where the terminal is too narrow."""
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table
    from rich.text import Text

    heading, *body = rows
    # Not as markup, which rich looks for in a str.
    below = None if caption is None else escape("\n".join(map(printable, caption.splitlines())))
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), caption=below)
    for number, name in enumerate(heading):
        table.add_column(name, justify="left" if number == 0 else "right", no_wrap=number > 0, overflow="fold")
    for row in body:
        table.add_row(*(Text(printable(cell)) for cell in row))
    return table


def percent_bounds(interval: tuple[float, float], form: str) -> str:
    """An interval of fractions in percent.

    >>> percent_bounds((0.25, 0.5), ".1f")
    '[25.0, 50.0]'
    """
    return "[" + ", ".join(format(100 * bound, form) for bound in interval) + "]"
