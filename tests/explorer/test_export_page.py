"""Exported pages in a real browser, opened from disk: right numbers, no requests, nothing that breaks or keeps out."""

import time

import exported
import numpy as np
import pytest
import torch
from browsing import accessible, opened, picture
from exported import HOSTILE, WORDS, encoder, page, traced

import regard
from regard.explorer import export

pytestmark = pytest.mark.slow

VIEWS = ("align", "sentence", "steps", "heads", "compare")


@pytest.fixture(scope="module")
def trace():
    """Words, some of which would like to be something else."""
    torch.manual_seed(2)
    words = [*WORDS[:8], *(word for word in HOSTILE if word.strip("\u2028\u2029"))]
    return traced(encoder(), torch.randn(1, len(words), 32), labels=words, mask=regard.mask.Causal())


@pytest.fixture(scope="module")
def told(translator, tmp_path_factory):
    """The page of a translation, and what it is of."""
    source, path = "the red cat sees a big dog .", tmp_path_factory.mktemp("told") / "page.html"
    (output,) = translator.outputs([source], attention=True)
    assert export.translation(path, translator, source, output)
    return path, source, output.text


@pytest.fixture
def look(browser):
    """Opens a page from disk; that it asked for nothing is seen when it is closed."""
    contexts = []

    def enter(path, address="", **options):
        fetched = []
        context = opened(browser, path.as_uri() + address, fetched=fetched, **options)
        contexts.append((context, fetched))
        return context.__enter__()

    yield enter
    for context, fetched in contexts:
        context.__exit__(None, None, None)
        assert fetched == []


def values(page, selector, count):
    """Numbers in full by their index, once there are as many."""
    query = "([selector, count]) => document.querySelectorAll(selector).length === count"
    page.wait_for_function(query, arg=[selector, count])
    found = page.eval_on_selector_all(selector, "all => all.map(one => [+one.dataset.index, +one.dataset.value])")
    return np.array([value for _, value in sorted(found)])


def eventually(read, right, error):
    """The page has drawn what was asked for when every number is within the error."""
    deadline = time.monotonic() + 60
    while (worst := np.abs(read() - right).max()) > error:
        assert time.monotonic() < deadline, f"off by {worst}, {error} were stated"
        time.sleep(0.05)


def test_numbers_are_those_of_the_trace_within_the_stated_error(look, trace, tmp_path):
    path = page(trace, tmp_path)
    shown, stated = look(path), exported.document(path)["stored"]["weights"]["error"]
    assert stated < 1e-5
    shown.get_by_test_id("table-sentence").click()
    count = len(trace.labels()[0])
    for layer, head, query in ((0, 0, 3), (1, 2, count - 1), (1, 3, 0)):
        address = f"#/sentence?layer={layer}&head={head}&query={query}&top=0"
        shown.evaluate("address => { location.hash = address }", address)
        right = trace.weights(layer, head, query).double().numpy()
        eventually(lambda: values(shown, "[data-testid=table-value]", count), right, stated)


def test_steps_are_those_of_the_trace(look, trace, tmp_path):
    shown = look(page(trace, tmp_path, view="steps", layer=1, head=2, query=5))
    right = trace.steps(1, 2, 5)
    for name in ("q", "context", "recorded"):
        found = values(shown, f"[data-step={name}]", 8)
        np.testing.assert_allclose(found, getattr(right, name).numpy(), atol=3e-4)
    found = values(shown, "[data-step=weights]", len(right.weights))
    np.testing.assert_allclose(found, right.weights.numpy(), atol=1e-4)
    assert (found[6:] == 0).all()  # the mask travelled too


def test_hostile_tokens_are_shown_as_text(look, trace, tmp_path):
    shown = look(page(trace, tmp_path, title="</title><script>alert(1)</script>"))
    shown.get_by_test_id("token").first.wait_for()
    words = shown.get_by_test_id("token").all_inner_texts()
    assert any("</script><img src=x onerror=alert(1)>" in text for text in words)
    for tab in ("steps", "heads", "compare"):
        shown.get_by_test_id(f"tab-{tab}").click()
        shown.wait_for_timeout(200)
        assert shown.locator("img[src=x]").count() == 0  # a dialog would be a complaint


def test_the_page_says_how_exact_it_is(look, trace, tmp_path):
    note = look(page(trace, tmp_path, bits=8)).get_by_test_id("measure-note").first.inner_text()
    assert "8 bits" in note and "largest error" in note


def test_two_towers_are_two_kinds_with_layers_and_words_of_their_own(look, tmp_path):
    class Towers(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.text_model, self.vision_model = encoder(layers=3), encoder(layers=2)

        def forward(self, text, image):
            return self.text_model(text), self.vision_model(image)

    trace = traced(Towers().eval(), torch.randn(1, 4, 32), torch.randn(1, 6, 32))
    trace.label(WORDS[:4], kind="text_model self")
    shown = look(page(trace, tmp_path))
    kind, layers = shown.get_by_test_id("kind"), shown.get_by_test_id("layer")
    options = ["Text_model self-attention", "Vision_model self-attention"]
    for name, numbers, words in zip(options, (["0", "1", "2"], ["0", "1"]), (WORDS[:4], list("012345")), strict=True):
        assert [text.strip() for text in kind.get_by_role("radio").all_inner_texts()] == options
        kind.get_by_text(name).click()
        shown.wait_for_function("n => document.querySelectorAll('[data-testid=token]').length === n", arg=len(words))
        assert [text.strip() for text in layers.get_by_role("radio").all_inner_texts()] == numbers
        assert [text.split()[0] for text in shown.get_by_test_id("token").all_inner_texts()] == words


def test_every_head_has_its_picture(look, trace, tmp_path):
    shown = look(page(trace, tmp_path, view="heads"))
    shown.get_by_test_id("thumb").nth(7).wait_for()
    assert shown.get_by_test_id("thumb").count() == 8
    assert shown.get_by_test_id("effects").count() == 0  # there is no model to run again


@pytest.mark.parametrize("chosen", [{}, {"layer": 0, "head": 3}], ids=["own", "chosen"])
def test_links_of_a_translation(look, told, translator, chosen):
    path, source, target = told
    shown = look(path, "#/align?kind=cross&layer=0&head=3" if chosen else "")
    shown.locator(f'[data-testid=place-first][data-layer="{chosen.get("layer", 1)}"]').wait_for()
    shown.get_by_test_id("align-cell").first.wait_for()
    cells = shown.get_by_test_id("align-cell").evaluate_all(
        "all => all.map(one => [+one.dataset.target, +one.dataset.source, +one.dataset.value, one.matches('.link')])"
    )
    right = translator.align([(source, target)], **chosen)[0]
    assert {(i, j) for j, i, _, linked in cells if linked} == set(right)
    (output,) = translator.forced([(source, target)], attention=True)
    weights = translator.word_weights(output.translations[0], **chosen).numpy()
    assert len(cells) == weights.size
    for j, i, value, _ in cells:
        assert value == pytest.approx(weights[j, i], abs=5e-5)
    assert shown.get_by_test_id("translation").inner_text() == target


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_view_keeps_people_out(look, told, scheme, tmp_path):
    shown = look(told[0], color_scheme=scheme)
    for tab in VIEWS:
        shown.get_by_test_id(f"tab-{tab}").click()
        shown.wait_for_timeout(300)
        assert accessible(shown) == [], tab
        if (tab, scheme) == ("align", "light"):
            picture(shown, "export-align", tmp_path)


def test_a_narrow_screen_is_wide_enough(look, told):
    shown = look(told[0], viewport={"width": 360, "height": 700})
    for tab in VIEWS:
        shown.get_by_test_id(f"tab-{tab}").click()
        shown.wait_for_timeout(300)
        assert shown.evaluate("document.documentElement.scrollWidth") <= 360, tab
