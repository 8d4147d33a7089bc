"""A real Chromium, and pages in it that keep what they asked for and what they complained about.

``conftest.py`` makes the fixtures ``browser`` and ``visit`` of this. Without playwright or a Chromium, tests that need
them are skipped.
"""

import os
import shutil
from contextlib import contextmanager

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
SERIOUS = ("serious", "critical")


def executable():
    """REGARD_CHROMIUM, or a Chromium on the path."""
    return os.environ.get("REGARD_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def chromium():
    """A browser; skips where there is none."""
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    path = executable()
    if path is None:
        pytest.skip("needs Chromium: install it, or name one in REGARD_CHROMIUM")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


class Visit:
    """A page of its own, what it requested and what it complained about."""

    def __init__(self, browser, **options):
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        self.requests, self.complaints = [], []
        self.page = self.context.new_page()
        self.page.set_default_timeout(30_000)
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", self._said)

    def _said(self, message):
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    @property
    def fetched(self):
        """Requests that leave the page: not what is inside it."""
        return [url for url in self.requests[1:] if not url.startswith(("data:", "blob:"))]

    def close(self):
        self.context.close()


def barriers(page, within=None):
    """What axe finds that keeps people out: serious and critical violations."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-playwright-python")
    found = axe.Axe().run(page, context=within).response["violations"]
    return [f"{v['id']}: {v['help']}: {v['nodes'][0]['html'][:200]}" for v in found if v["impact"] in SERIOUS]
