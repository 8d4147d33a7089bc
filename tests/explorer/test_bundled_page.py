"""`regard explore`, as somebody types it who has just installed the package: English in, French and its links out."""

import os
import re
import signal
import subprocess
import sys

import pytest
from browsing import accessible, arcs_of, opened, picture
from commands import ROOT
from test_explorer import recorded
from test_explorer_use import SIDEWAYS

import regard

pytestmark = pytest.mark.slow

TEXT = "The animal did not cross the street because it was too tired."


@pytest.fixture(scope="module")
def address():
    """Of a server that the command itself starts, on a port that is free."""
    pytest.importorskip("uvicorn")
    settings = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "regard", "explore", "--no-browser", "--port", "0"]
    with subprocess.Popen(command, env=settings, stderr=subprocess.PIPE, text=True) as server:
        try:
            said = server.stderr.readline()
            yield re.search(r"http://\S+/", said)[0]
        finally:
            server.send_signal(signal.SIGINT)
            server.stderr.read()
    assert server.returncode == 0


def test_it_looks_where_the_weight_is_largest(browser, address):
    """In every layer, by the weights of the model itself, recorded here."""
    translator = regard.load("en-fr-small", device="cpu")
    trace = recorded(translator, TEXT, translator.translate(TEXT))
    it = translator.subwords.encode(TEXT).words.index(TEXT.split().index("it"))
    with opened(browser, address) as page:
        page.get_by_test_id("text").fill(TEXT)
        page.get_by_test_id("translation").get_by_text("animal").wait_for()
        page.get_by_test_id("top-0").click()
        page.get_by_test_id("head-2").click()
        for layer in range(trace.kinds["self"]):
            page.get_by_test_id(f"layer-{layer}").click()
            page.get_by_test_id("token").nth(it).click()
            weights = trace.weights(layer, 2, it)
            shown = arcs_of(page, weights)
            assert max(shown, key=lambda to: shown[to][1]) == int(weights.argmax())


def test_typed_translated_and_aligned(browser, address, tmp_path):
    with opened(browser, address) as page:
        page.get_by_test_id("text").fill("Where is the dog?")
        page.get_by_test_id("translation").get_by_text("chien").wait_for()
        page.get_by_test_id("text").fill(TEXT)
        page.get_by_test_id("translation").get_by_text("animal").wait_for()
        french = page.get_by_test_id("translation").inner_text()
        assert "rue" in french and "fatigué" in french
        page.goto(f"{page.url.replace('#/sentence', '#/align')}")
        page.get_by_test_id("align-cell").first.wait_for()
        cells = page.locator("[data-testid=align-cell].link").evaluate_all(
            "all => all.map(c => [+c.dataset.source, +c.dataset.target])"
        )
        words = TEXT.split(), french.split()
        found = {(words[0][i], words[1][j]) for i, j in cells}
        assert ("street", "rue") in found and ("tired.", "fatigué.") in found
        assert accessible(page) == []
        picture(page, "explorer-bundled", tmp_path, full_page=True)


@pytest.mark.parametrize("width", [375, 360, 320])
def test_steps_fit_telephones(browser, address, width):
    """With vectors of hundreds of numbers, and long words."""
    start = f"{address}#/steps?text=The committee decided after an interminable debate.&kind=cross&query=4"
    with opened(browser, start, viewport={"width": width, "height": 800}) as page:
        page.locator("[data-step=weights]").first.wait_for()
        page.locator("[data-step=output]").first.wait_for()
        assert page.evaluate(SIDEWAYS) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_long_shows_the_layer_that_the_other_views_show(browser, address):
    with opened(browser, f"{address}#/sentence?text={TEXT}&kind=cross") as page:
        page.get_by_test_id("key").first.wait_for()
        shown = [page.get_by_test_id(name).get_attribute("data-value") for name in ("layer", "head")]
        assert shown != ["0", "0"]  # those that align words
        page.get_by_test_id("tab-long").click()
        page.locator("[data-testid=long-exact][data-value='1']").wait_for()
        assert [page.get_by_test_id(name).get_attribute("data-value") for name in ("layer", "head")] == shown
