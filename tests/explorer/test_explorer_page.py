"""The explorer in a real browser: what is typed, clicked and pressed shows the model's own numbers."""

import json
import re
import urllib.parse

import pytest
import torch
import toy
from browsing import accessible, arcs, arcs_of, opened, picture
from serving import save_models
from test_explorer import recorded

import regard
from regard.align import parse, quality
from regard.explorer.scores import counterfactual

pytestmark = pytest.mark.slow

TEXT, FRENCH = "the red dog sees a big cat .", "le chien rouge voit un chat grand ."
SCORES = ["dot", "additive", "general", "bilinear", "location", "relative", "rotary"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    path = tmp_path_factory.mktemp("models")
    toy.train(path / "toy", updates=250)
    return [str(path / "toy"), save_models(path)[1]]


@pytest.fixture(scope="module")
def translator(folders):
    return regard.load(folders[0], device="cpu")


@pytest.fixture(scope="module")
def trace(translator):
    """What the page shows, recorded here."""
    return recorded(translator, TEXT, FRENCH)


def at(address, view="sentence", **selection):
    return f"{address}#/{view}?{urllib.parse.urlencode({'text': TEXT, **selection})}"


def value(locator):
    return float(locator.get_attribute("data-value"))


def ready(page):
    """Waits until the sentence has been read."""
    page.get_by_test_id("translation").get_by_text(FRENCH).wait_for()
    page.wait_for_function("() => document.querySelector('[data-testid=status]')?.dataset.busy !== 'true'")


# --- Sentence ---


def test_typed_translated_and_looked_at(browser, address, trace, tmp_path):
    with opened(browser, address) as page:
        page.get_by_test_id("text").fill(TEXT)
        ready(page)
        page.get_by_test_id("top-0").click()
        page.get_by_test_id("token").nth(2).click()  # dog
        for layer, head, kind in ((0, 3, "self"), (1, 5, "decoder"), (1, 0, "cross")):
            page.get_by_test_id(f"kind-{kind}").click()
            page.get_by_test_id(f"layer-{layer}").click()
            page.get_by_test_id(f"head-{head}").click()
            page.get_by_test_id("token").nth(2).click()
            weights = trace.weights(layer, head, 2, kind=kind)
            shown = arcs_of(page, weights)
            for to, (weight, _) in shown.items():
                assert weight == pytest.approx(float(weights[to]), abs=1e-6)
            thickest = max(shown, key=lambda to: shown[to][1])
            assert thickest == int(weights.argmax())
            thinnest = min(width for _, width in shown.values())  # very light ones are as wide as can be seen
            ratios = [width / weight for weight, width in shown.values() if width > thinnest]
            assert ratios == pytest.approx([ratios[0]] * len(ratios), rel=1e-3)
        page.get_by_test_id("kind-self").click()
        page.get_by_test_id("top-5").click()
        picture(page, "explorer-sentence", tmp_path)


def test_it_looks_where_the_weight_is_largest(browser, address, translator):
    """The sentence that the page opens with, and the word that everybody asks about."""
    with opened(browser, address) as page:
        page.get_by_test_id("token").first.wait_for()
        text = page.get_by_test_id("text").input_value()
        french = translator.translate(text)
        at_it = translator.subwords.encode(text).words.index(text.split().index("it"))
        page.get_by_test_id("top-0").click()
        page.get_by_test_id("head-4").click()
        page.get_by_test_id("token").nth(at_it).click()
        weights = recorded(translator, text, french).weights(0, 4, at_it)
        shown = arcs_of(page, weights)
        assert max(shown, key=lambda to: shown[to][1]) == int(weights.argmax())


def test_what_is_not_shown_is_told(browser, address, trace):
    with opened(browser, at(address, head=1, query=3, top=3)) as page:
        ready(page)
        page.wait_for_function("() => document.querySelectorAll('[data-testid=arc]').length === 3")
        top = trace.topk(0, 1, 3, 3)
        assert value(page.get_by_test_id("rest")) == pytest.approx(top.rest, abs=1e-6)
        assert value(page.get_by_test_id("shown")) == pytest.approx(float(top.values.sum()), abs=1e-6)
        page.get_by_test_id("hide-special").check()
        page.get_by_test_id("top-0").click()
        hidden = float(trace.weights(0, 1, 3)[-1])  # </s>
        page.wait_for_function("() => document.querySelector('[data-testid=hidden]').dataset.value > 0")
        assert value(page.get_by_test_id("hidden")) == pytest.approx(hidden, abs=1e-6)
        assert value(page.get_by_test_id("shown")) == pytest.approx(1 - hidden, abs=1e-5)


def test_several_words_are_summed_and_a_table_stands_behind(browser, address, trace):
    with opened(browser, at(address, head=2, query="1,4", top=0)) as page:
        ready(page)
        page.get_by_test_id("token").nth(6).click(modifiers=["Shift"])
        assert "query=1%2C4%2C6" in page.url or "query=1,4,6" in page.url
        page.get_by_test_id("table-sentence").click()
        expected = trace.weights(0, 2, [1, 4, 6]).sum(0)
        page.wait_for_function(
            "want => [...document.querySelectorAll('[data-testid=table-value]')]"
            ".some(c => (+c.dataset.value).toFixed(5) === want)",
            arg=f"{expected[0]:.5f}",
        )
        for index, number in enumerate(expected.tolist()):
            cell = page.locator(f"[data-testid=table-value][data-index='{index}']").first
            assert value(cell) == pytest.approx(number, abs=1e-5)


def test_words_are_folded_subwords(browser, address, translator):
    text = "the redbird sees a dogcat ."  # words of several subwords
    with opened(browser, at(address, text=text, head=0, query=0, top=0, words=1)) as page:
        page.get_by_test_id("arc").first.wait_for()
        encoded = translator.subwords.encode(text)
        assert max(encoded.words) + 1 < len(encoded.ids)  # there is something to fold
        shown = page.get_by_test_id("token").all_inner_texts()
        assert [word.split("\n")[0] for word in shown][:6] == text.split()
        total = sum(weight for weight, _ in arcs(page).values())
        assert total == pytest.approx(1.0, abs=1e-4)


# --- Steps ---


def test_steps_are_the_models(browser, address, trace, tmp_path):
    with opened(browser, at(address, "steps", kind="cross", layer=1, head=4, query=3, key=2)) as page:
        ready(page)
        page.locator("[data-step=weights]").first.wait_for()
        shown = trace.steps(1, 4, 3, kind="cross")
        for name in ("q", "similarity", "scaled", "masked", "weights", "context", "recorded", "output"):
            expected = getattr(shown, name)
            cells = page.locator(f"[data-step={name}]")
            numbers = cells.evaluate_all("all => all.map(c => [+c.dataset.index, +c.dataset.value])")
            assert len(numbers) == len(expected), name
            for index, number in numbers:
                assert number == pytest.approx(float(expected[index]), abs=1e-6), name
        for name in ("k", "v", "weighted"):
            cells = page.locator(f"[data-step={name}]")
            found = cells.evaluate_all("all => all.map(c => [+c.dataset.index, +c.dataset.dim, +c.dataset.value])")
            assert len(found) == getattr(shown, name).numel()
            for index, dim, number in found:
                assert number == pytest.approx(float(getattr(shown, name)[index, dim]), abs=1e-6)
        products = page.locator("[data-step=products]").evaluate_all("all => all.map(c => +c.dataset.value)")
        assert products == pytest.approx(shown.products[2].tolist(), abs=1e-6)
        assert value(page.get_by_test_id("difference")) == pytest.approx(shown.difference, abs=1e-7)
        page.locator("[data-step=products]").nth(1).hover()
        assert page.locator(".lit").count() >= 3  # its operands
        picture(page, "explorer-steps", tmp_path, full_page=True)


def test_the_score_can_be_switched(browser, address, trace):
    with opened(browser, at(address, "steps", head=1, query=2)) as page:
        ready(page)
        label = page.get_by_test_id("score-label")
        assert label.get_attribute("data-counterfactual") == "false"
        for name in SCORES:
            page.get_by_test_id("score").select_option(name)
            score = counterfactual(name, 8)
            expected = trace.steps(0, 1, 2, score=score).weights
            page.wait_for_function(
                "want => [...document.querySelectorAll('[data-step=weights]')]"
                ".map(c => (+c.dataset.value).toFixed(4)).join() === want",
                arg=",".join(f"{x:.4f}" for x in expected.tolist()),
            )
            page.wait_for_function(  # where the weights are those of before, what was shown before is waited for too
                "() => document.querySelector('[data-testid=score-label]').dataset.counterfactual === 'true'"
            )
            assert "counterfactual" in label.inner_text()
        page.get_by_test_id("score").select_option("trained")
        page.wait_for_function(
            "() => document.querySelector('[data-testid=score-label]').dataset.counterfactual === 'false'"
        )


# --- Align ---


def test_alignment_with_gold_links(browser, address, translator, tmp_path):
    gold = "0-0 2-1 1-2 3-3 4-4 6-5 5p6 7-7"
    with opened(browser, at(address, "align", gold=gold)) as page:
        ready(page)
        page.get_by_test_id("align-cell").first.wait_for()
        output = translator.forced([(TEXT, FRENCH)], attention=True)[0].translations[0]
        weights = translator.word_weights(output)
        cells = page.get_by_test_id("align-cell").evaluate_all(
            "all => all.map(c => [+c.dataset.target, +c.dataset.source, +c.dataset.value])"
        )
        assert len(cells) == weights.numel()
        for target, source, number in cells:
            assert number == pytest.approx(float(weights[target, source]), abs=1e-6)
        found = translator.align([(TEXT, FRENCH)])[0]
        linked = page.locator("[data-testid=align-cell].link").evaluate_all(
            "all => all.map(c => [+c.dataset.source, +c.dataset.target])"
        )
        assert {tuple(link) for link in linked} == found
        expected = quality([found], [parse(gold)]).aer
        assert value(page.get_by_test_id("aer-first")) == pytest.approx(expected, abs=1e-6)
        page.get_by_test_id("shift-input").click()
        other = translator.word_weights(output, shift=True)
        page.wait_for_function(
            "want => (+document.querySelector('[data-testid=align-cell]').dataset.value).toFixed(4) === want",
            arg=f"{other[0, 0]:.4f}",
        )
        picture(page, "explorer-align", tmp_path, full_page=True)


def test_two_models_side_by_side(browser, address):
    with opened(browser, at(address, "align")) as page:
        ready(page)
        page.get_by_test_id("second").select_option("rnn")
        page.get_by_test_id("panel-second").get_by_test_id("align-cell").first.wait_for()
        assert page.get_by_test_id("panel-first").get_by_test_id("align-cell").count() > 0


# --- Heads and Compare, which test_explorer_heads.py tries, of a model that has learned something ---


def test_heads_that_learned_differ(browser, address, trace, tmp_path):
    with opened(browser, at(address, "heads", kind="cross", sort="entropy", out="cross.1.3")) as page:
        ready(page)
        page.get_by_test_id("knockout-token").first.wait_for()
        drawn = "[data-testid=thumb] canvas[data-drawn]"
        page.wait_for_function(f"() => document.querySelectorAll('{drawn}').length == 16")
        shown = page.get_by_test_id("thumb").evaluate_all("all => all.map(t => +t.dataset.entropy)")
        expected = [float(trace.entropy(layer, kind="cross").mean(-1)[head]) for layer in range(2) for head in range(8)]
        assert sorted(shown) == pytest.approx(sorted(expected), abs=1e-4)
        assert max(shown) > 2 * min(shown)
        picture(page, "explorer-heads", tmp_path, full_page=True)
    with opened(browser, at(address, "compare", kind="cross", layer=0, head=1, **{"with": "cross.1.3"})) as page:
        ready(page)
        page.get_by_test_id("second-cell").first.wait_for()
        picture(page, "explorer-compare", tmp_path, full_page=True)


# --- everywhere ---


def test_a_shared_address_shows_the_same(browser, address):
    url = at(address, kind="cross", layer=1, head=6, query=4, measure="norms", top=3)
    with opened(browser, url) as page:
        ready(page)
        page.get_by_test_id("arc").first.wait_for()
        before = arcs(page)
        page.reload()
        page.get_by_test_id("arc").first.wait_for()
        assert arcs(page) == before
        assert page.get_by_test_id("head").get_attribute("data-value") == "6"
        page.get_by_test_id("tab-steps").click()
        page.go_back()
        page.get_by_test_id("arc").first.wait_for()
        assert arcs(page) == before


def test_by_keyboard_alone(browser, address, trace):
    with opened(browser, address) as page:
        for _ in range(12):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.dataset.testid") == "text":
                break
        page.keyboard.press("Control+A")
        page.keyboard.type(TEXT)
        page.keyboard.press("Enter")
        ready(page)
        for _ in range(60):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.dataset.testid") == "token":
                break
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        page.wait_for_function("() => location.hash.includes('query=2') || location.hash.includes('query=3')")
        query = int(re.search(r"query=(\d+)", page.url)[1])
        page.wait_for_function(
            "want => Math.max(...[...document.querySelectorAll('[data-testid=arc]')]"
            ".map(a => +a.dataset.weight)).toFixed(5) === want",
            arg=f"{trace.weights(0, 0, query).max():.5f}",
        )


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", ["sentence", "steps", "align"])
def test_axe_finds_nothing_serious(browser, address, view, scheme):
    with opened(browser, at(address, view, query=2), color_scheme=scheme, reduced_motion="reduce") as page:
        ready(page)
        page.locator("[data-testid^=chart-]").first.wait_for()
        assert accessible(page) == []


@pytest.mark.parametrize("view", ["sentence", "steps", "align"])
def test_a_telephone_needs_no_sideways_scrolling(browser, address, view):
    with opened(browser, at(address, view, query=2), viewport={"width": 360, "height": 740}) as page:
        ready(page)
        page.locator("[data-testid^=chart-]").first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_text_is_never_markup(browser, address):
    hostile = "<img src=x onerror=alert(1)> <b>dog</b> &amp; ${7*7} .<script>alert(2)</script>"
    with opened(browser, address) as page:
        page.get_by_test_id("text").fill(hostile)
        page.wait_for_function(
            "() => [...document.querySelectorAll('[data-testid=token]')].some(t => t.textContent.includes('<'))"
        )
        assert page.locator("main img, main script, main b").count() == 0
        for view in ("steps", "align"):
            page.get_by_test_id(f"tab-{view}").click()
            page.locator("[data-testid^=chart-]").first.wait_for()
            assert page.locator("main img, main script, main b").count() == 0


def test_what_cannot_be_read_is_told_and_left_behind(browser, address):
    with opened(browser, at(address, model="rnn", text="dog " * 400), refused="422") as page:
        error = page.get_by_test_id("status-error")
        error.wait_for()
        assert "subwords" in error.inner_text() or "characters" in error.inner_text() or "words" in error.inner_text()
        page.get_by_test_id("text").fill(TEXT)
        page.get_by_test_id("token").first.wait_for()
        error.wait_for(state="detached")


def test_pictures_and_python(browser, address, folders, tmp_path):
    with opened(browser, at(address, head=1, query=2), permissions=["clipboard-read", "clipboard-write"]) as page:
        ready(page)
        page.get_by_test_id("arc").first.wait_for()
        for kind, start in (("svg", b"<"), ("png", b"\x89PNG")):
            with page.expect_download() as waiting:
                page.get_by_test_id(f"{kind}-sentence").click()
            path = tmp_path / f"a.{kind}"
            waiting.value.save_as(path)
            assert path.read_bytes().startswith(start)
        page.get_by_test_id("code-sentence").click()
        code = page.get_by_test_id("python-text-sentence").inner_text()
        shown = arcs(page)
    code = re.sub(r"regard\.load\([^)]*\)", f"regard.load({json.dumps(folders[0])})", code)
    space: dict = {}
    exec(compile(code, "copied", "exec"), space)
    numbers = [x for x in space.values() if isinstance(x, torch.Tensor) and x.ndim == 1 and len(x) == 9]
    assert any(
        all(float(x[to]) == pytest.approx(weight, abs=1e-5) for to, (weight, _) in shown.items()) for x in numbers
    )
