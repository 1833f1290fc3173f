"""A self-contained HTML page with embedded images."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from pathlib import Path

_STYLE = """
body { font: 16px/1.55 system-ui, sans-serif; color: #222; background: #fff; max-width: 62rem; margin: 2.5rem auto;
  padding: 0 1.2rem }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 .4rem } h2 { font-size: 1.15rem; margin: 2.2rem 0 .5rem }
table { border-collapse: collapse; font-variant-numeric: tabular-nums } th, td { padding: .35rem .9rem; text-align: right }
th:first-child, td:first-child { text-align: left; padding-left: 0 } th { border-bottom: 2px solid #222; font-weight: 600 }
td { border-bottom: 1px solid #ddd } img { max-width: 100%; height: auto } p { max-width: 46rem } .quiet { color: #6a6a6a }
pre { background: #f4f4f4; padding: .8rem 1rem; overflow-x: auto; font-size: .88rem } .wide { overflow-x: auto }
"""


class Page:
    """An HTML page, built section by section.

    >>> page = Page("Does it help?")
    >>> page.text("It <does>.")
    >>> "It &lt;does&gt;." in page.html()
    True
    """

    def __init__(self, title: str) -> None:
        self.title = title
        self._parts: list[str] = []

    def heading(self, text: str) -> None:
        self._parts.append(f"<h2>{html.escape(text)}</h2>")

    def text(self, text: str, quiet: bool = False) -> None:
        self._parts.append(f"<p{' class=quiet' if quiet else ''}>{html.escape(text)}</p>")

    def code(self, text: str) -> None:
        self._parts.append(f"<pre>{html.escape(text)}</pre>")

    def table(self, lines: Sequence[Sequence[str]]) -> None:
        """Rows of text, heading first."""
        heading, *rows = [[html.escape(cell) for cell in line] for line in lines]
        head = "".join(f"<th>{cell}</th>" for cell in heading)
        body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
        self._parts.append(f"<div class=wide><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>")

    def image(self, path: Path, description: str) -> None:
        """Embed a PNG or GIF."""
        data = base64.b64encode(path.read_bytes()).decode()
        kind = path.suffix.removeprefix(".")
        self._parts.append(f'<img src="data:image/{kind};base64,{data}" alt="{html.escape(description, quote=True)}">')

    def html(self) -> str:
        title = html.escape(self.title)
        return (
            f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<style>{_STYLE}</style></head><body>\n<h1>{title}</h1>\n" + "\n".join(self._parts) + "\n</body></html>\n"
        )
