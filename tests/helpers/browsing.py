"""A real browser for the tests that need one: Chromium, driven by Playwright."""

import os
import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest

ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PICTURES = os.environ.get("REGARD_PICTURES")  # where the pictures of the docs are written, if they are to be


@contextmanager
def chromium():
    """A browser; skips where there is none."""
    sync = pytest.importorskip("playwright.sync_api", exc_type=ImportError)
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("needs Chromium: on Debian, apt install chromium")
    with sync.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(browser, url, *, refused="nothing", fetched=None, about=("",), **options):
    """A page in a fresh profile; whatever it complains of, the test fails for, but that a request was ``refused``.

    ``fetched``, a list, gets every address that is asked for but the page's own and what is inside the page. In a page
    of somebody else's, only complaints ``about`` something of ours count: those that mention one of these.
    """
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
    page = context.new_page()
    complaints = []

    def heard(said):
        if said.type in ("error", "warning") and "GPU stall due to ReadPixels" not in said.text:  # taking pictures does
            complaints.append(f"{said.text} ({said.location.get('url', '')})")

    page.on("console", heard)
    page.on("pageerror", lambda error: complaints.append(f"{error}\n{getattr(error, 'stack', '')}"))
    page.on("dialog", lambda dialog: (complaints.append(f"a dialog: {dialog.message}"), dialog.dismiss()))
    if fetched is not None:
        page.on("request", lambda request: _asked(request.url, url, fetched))
    page.set_default_timeout(60_000)  # the first additive score may compile its kernel
    page.goto(url)
    try:
        yield page
    finally:
        context.close()
    wrong = [each for each in complaints if refused not in each and any(part in each for part in about)]
    assert not wrong, wrong


def _asked(address, own, fetched):
    if address != own.split("#")[0] and not address.startswith(("data:", "blob:")):
        fetched.append(address)


def accessible(page, within=None):
    """What axe finds that is serious, in the page or in what a selector finds."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", exc_type=ImportError)
    found = axe.Axe().run(page, context=within).response["violations"]
    return [
        (each["id"], [node["html"][:120] for node in each["nodes"]])
        for each in found
        if each["impact"] in ("serious", "critical")
    ]


def picture(page, name, tmp_path, **options):
    """A picture of the page for the docs, or only to see that one can be taken."""
    folder = Path(PICTURES) if PICTURES else tmp_path
    path = folder / f"{name}.png"
    page.screenshot(path=path, animations="disabled", **options)
    assert path.stat().st_size > 5000
    if PICTURES:
        from PIL import Image

        Image.open(path).convert("RGB").quantize(128, dither=Image.Dither.NONE).save(path, optimize=True)


def arcs(page):
    """Weight and width of each arc, by where it goes."""
    found = page.get_by_test_id("arc").evaluate_all(
        "all => all.map(a => [+a.dataset.to, +a.dataset.weight, parseFloat(a.getAttribute('stroke-width'))])"
    )
    return {to: (weight, width) for to, weight, width in found}


def arcs_of(page, weights):
    """The same, once those of this row of weights are there."""
    page.wait_for_function(
        "want => Math.max(...[...document.querySelectorAll('[data-testid=arc]')]"
        ".map(a => +a.dataset.weight)).toFixed(5) === want",
        arg=f"{weights.max():.5f}",
    )
    return arcs(page)
