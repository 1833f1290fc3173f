"""Tables from rows of text, heading first: Markdown, aligned plain text, or a rich table for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

Rows = Sequence[Sequence[str]]


def printable(text: str) -> str:
    r"""Text for one line of a terminal. What does not print is written as an escape: a name in a file must not
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


def as_rich(rows: Rows, caption: str | None = None) -> RenderableType:
    """For a terminal. Where it is too narrow, a row becomes its name, never split, and a list of the rest.

    >>> from rich.console import Console
    >>> narrow = as_rich([["arm", "success", "ms"], ["core-mean:k=16,steps=2", "79.7 %", "2.5"]])
    >>> Console(width=20).print(narrow, crop=False)  # with crop, rich would cut the name
    core-mean:k=16,steps=2
      success 79.7 %
      ms 2.5
    """
    from rich.box import SIMPLE_HEAD
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    heading, *body = [list(map(printable, row)) for row in rows]
    # Text, because rich looks for markup in a str.
    below = [Text(printable(line), style="table.caption") for line in (caption or "").splitlines()]
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for number, name in enumerate(heading):
        table.add_column(Text(name), justify="left" if number == 0 else "right", no_wrap=True)
    for row in body:
        table.add_row(*map(Text, row))

    class Fitting:
        """The table if it fits, else the list."""

        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            if table.__rich_measure__(console, options.update(max_width=10_000)).maximum <= options.max_width:
                yield Group(table, *below)
                return
            for name, *cells in body:
                lines = [name, *_filled(heading[1:], cells, options.max_width)]
                yield Text("\n".join(lines), no_wrap=True, overflow="ignore")
            yield Group(*below)

    return Fitting()


def _filled(titles: Sequence[str], cells: Sequence[str], width: int) -> list[str]:
    """Lines of "title cell", as many on a line as fit."""
    lines: list[str] = []
    for entry in (f"{title} {cell}" for title, cell in zip(titles, cells) if cell):
        if lines and len(lines[-1]) + len(entry) + 3 <= width:
            lines[-1] += f" · {entry}"
        else:
            lines.append(f"  {entry}")
    return lines


def counted(number: int, noun: str) -> str:
    """A number of things.

    >>> counted(1, "task"), counted(6, "task")
    ('1 task', '6 tasks')
    """
    return f"{number} {noun}{'s' * (number != 1)}"


def percent_bounds(interval: tuple[float, float], form: str) -> str:
    """An interval of fractions in percent.

    >>> percent_bounds((0.25, 0.5), ".1f")
    '[25.0, 50.0]'
    """
    return "[" + ", ".join(format(100 * bound, form) for bound in interval) + "]"
