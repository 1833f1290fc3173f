"""Types into the search box of the built site in a Chromium and fails if it finds nothing; without one, says so.

``python scripts/docs_search.py build/site real-time`` (scripts/docs.sh).
"""

from __future__ import annotations

import sys
import tempfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "report"))
from browser import Browser, find_browser  # type: ignore[import-not-found]

BOX, FOUND = "input.md-search__input", "document.querySelectorAll('.md-search-result__item').length"


class Quiet(SimpleHTTPRequestHandler):
    """Without a line for each request."""

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


def search(site: Path, words: str, path: str) -> int:
    """How many pages the search box of the home page finds; fails after a minute without any."""
    with (
        ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=site)) as server,
        tempfile.TemporaryDirectory() as own,
    ):
        Thread(target=server.serve_forever, daemon=True).start()
        browser = Browser(path, Path(own))
        try:
            browser.resize(1280, 900)
            browser.call("Page.navigate", url=f"http://127.0.0.1:{server.server_port}/index.html")
            browser.until(f"document.readyState == 'complete' && !!document.querySelector('{BOX}')")
            browser.click(BOX)
            browser.call("Input.insertText", text=words)
            browser.until(f"{FOUND} > 0")
            return int(browser.js(FOUND))
        finally:
            browser.close()
            server.shutdown()


if __name__ == "__main__":
    site, words = sys.argv[1:]
    if path := find_browser():
        sys.stdout.write(f"the search box finds {search(Path(site), words, path)} pages for {words!r}\n")
    else:
        sys.stderr.write("no Chromium or Chrome was found: the search box was not tried\n")
