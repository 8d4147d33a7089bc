"""The Long view in a real browser: a text of thousands of tokens, whole and from near, in its own numbers."""

import pytest
import torch
from browsing import accessible, opened, picture
from serving import serving

import regard
from regard.explorer import page as pages
from regard.explorer.files import open_traces as traces_of
from regard.explorer.models import Models
from regard.mask import Causal

pytestmark = pytest.mark.slow

LENGTH = 3000


@pytest.fixture(scope="module")
def long():
    """A text of 3,000 words whose words look at themselves, at what is 400 before, and at the first."""
    torch.manual_seed(0)
    at = torch.arange(LENGTH)
    waves = [torch.cos(2 * torch.pi * at / 400 * f) for f in (1, 2, 3)] + [
        torch.sin(2 * torch.pi * at / 400 * f) for f in (1, 2, 3)
    ]
    q = torch.stack(waves, -1) * 3
    q = torch.cat((q, torch.randn(LENGTH, 10) * 0.3), -1)[None, None]
    trace = regard.Trace.of(q, q, torch.randn(1, 1, LENGTH, 4), mask=Causal())
    trace.label([f"word{i}" if i != 1234 else "needle" for i in range(LENGTH)])
    return trace


@pytest.fixture(scope="module")
def address(long, tmp_path_factory):
    path = tmp_path_factory.mktemp("traces") / "long.safetensors"
    long.save(path)
    with serving(Models([]), files=pages.files(), given=traces_of([path])) as client:
        yield f"http://127.0.0.1:{client.port}/"


def test_a_long_text_is_seen_whole_and_from_near(browser, address, long, tmp_path):
    with opened(browser, f"{address}#/long?trace=long", viewport={"width": 1440, "height": 1000}) as page:
        page.get_by_test_id("long-canvas").wait_for()
        page.get_by_test_id("long-strongest").wait_for()
        page.wait_for_function("() => document.querySelectorAll('[data-testid=long-value]').length > 3", timeout=60_000)
        picture(page, "explorer-long", tmp_path)
        page.get_by_test_id("long-search").fill("needle")
        page.get_by_test_id("long-match").first.wait_for()
        assert page.get_by_test_id("long-match").first.get_attribute("data-index") == "1234"
        page.goto(f"{address}#/long?trace=long&x=1000&y=1400&z=-3")
        page.reload()
        canvas = page.get_by_test_id("long-canvas")
        canvas.wait_for()
        page.wait_for_function(
            "() => document.querySelector('[data-testid=long-level]')?.dataset.cell === '1'", timeout=60_000
        )
        box = canvas.bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        readout = page.locator("[data-testid=long-readout][data-value]")
        readout.wait_for()
        row, column = int(readout.get_attribute("data-row")), int(readout.get_attribute("data-column"))
        assert abs(row - 1400) < 60 and abs(column - 1000) < 60
        assert float(readout.get_attribute("data-value")) == pytest.approx(
            float(long.weights(0, 0, row)[column]), abs=1e-6
        )
        values = page.get_by_test_id("long-value").evaluate_all(
            "all => all.map(v => [v.dataset.rows, v.dataset.columns, +v.dataset.value, v.dataset.exact])"
        )
        for rows, columns, value, _ in values:
            r, c = int(rows.split(":")[0]), int(columns.split(":")[0])
            assert value == pytest.approx(float(long.weights(0, 0, r)[c]), abs=1e-6)


def test_without_a_model_there_is_only_this_view(browser, address):
    with opened(browser, address) as page:  # no complaint: nothing is asked that cannot be answered
        page.get_by_test_id("long-canvas").wait_for()
        assert page.locator("[data-testid^=tab-]").count() == 1
        page.wait_for_timeout(500)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(browser, address, scheme):
    with opened(browser, f"{address}#/long?trace=long", color_scheme=scheme, reduced_motion="reduce") as page:
        page.locator("[data-testid^=chart-]").first.wait_for()
        page.wait_for_timeout(500)
        assert accessible(page) == []


def test_a_telephone_needs_no_sideways_scrolling(browser, address):
    with opened(browser, f"{address}#/long?trace=long", viewport={"width": 360, "height": 740}) as page:
        page.locator("[data-testid^=chart-]").first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
