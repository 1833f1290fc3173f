"""Types into the search box of the built site in a Chromium and fails if it finds nothing; without one, says so.

``python scripts/docs_search.py build/site real-time`` (scripts/docs.sh).
"""

from __future__ import annotations

import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "report"))
from browser import chromium  # type: ignore[import-not-found]
from playwright.sync_api import Error

BOX, FOUND = "input.md-search__input", ".md-search-result__item"


class Quiet(SimpleHTTPRequestHandler):
    """Without a line for each request."""

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


def search(site: Path, words: str) -> int:
    """How many pages the search box of the home page finds; fails after a minute without any."""
    with (
        ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=site)) as server,
        chromium() as browser,
    ):
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            page.goto(f"http://127.0.0.1:{server.server_port}/index.html")
            page.locator(BOX).fill(words)
            page.locator(FOUND).first.wait_for(timeout=60_000)
            return int(page.locator(FOUND).count())
        finally:
            server.shutdown()


if __name__ == "__main__":
    site, words = sys.argv[1:]
    try:
        sys.stdout.write(f"the search box finds {search(Path(site), words)} pages for {words!r}\n")
    except Error as error:
        if "launch" not in error.message:
            raise
        sys.stderr.write("no Chromium or Chrome was found: the search box was not tried\n")
