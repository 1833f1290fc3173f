"""A real browser by Playwright: an installed Chromium or Chrome, else the one that ``playwright install chromium`` brought."""

import contextlib
import shutil

from playwright.sync_api import sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome-headless-shell")


@contextlib.contextmanager
def chromium():
    """Playwright's `Browser`. Raises playwright's Error if there is none that starts."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path)
        try:
            yield browser
        finally:
            browser.close()
