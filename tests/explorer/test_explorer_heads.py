"""Heads and Compare in a real browser: pictures of every head, heads knocked out, and two of anything subtracted."""

import urllib.parse

import pytest
from browsing import accessible, opened
from test_explorer import recorded

import regard

pytestmark = pytest.mark.slow

TEXT, TARGET = "the red dog sees a big cat .", "le chien rouge voit un chat grand ."
EXACT = 1e-6


@pytest.fixture(scope="module")
def translator(folders):
    return regard.load(folders[0], device="cpu")


@pytest.fixture(scope="module")
def trace(translator):
    return recorded(translator, TEXT, TARGET)


@pytest.fixture(scope="module")
def log_probs(translator, trace):
    """log p of each token of the target and of its end, without some heads."""
    ids = [*translator.subwords.encode(TARGET).ids, translator.model.eos_id]
    return lambda out: trace.ablate(out)[0].double().log_softmax(-1)[range(len(ids)), ids]


def at(address, view, **selection):
    return f"{address}#/{view}?{urllib.parse.urlencode({'text': TEXT, 'target': TARGET, **selection})}"


def number(locator, name="value"):
    return float(locator.get_attribute(f"data-{name}"))


def test_every_head_is_drawn_and_measured(browser, address, trace):
    with opened(browser, at(address, "heads", kind="cross")) as page:
        thumbs = page.get_by_test_id("thumb")
        thumbs.first.wait_for()
        assert thumbs.count() == 12
        thumbs.last.scroll_into_view_if_needed()  # they are drawn when they can be seen
        page.locator("canvas[data-drawn=true]").nth(11).wait_for()
        for thumb in thumbs.all():
            layer, head = int(number(thumb, "layer")), int(number(thumb, "head"))
            for name in ("entropy", "sink", "distance"):
                own = getattr(trace, name)(layer, head, kind="cross").mean().item()
                assert number(thumb, name) == pytest.approx(own, abs=EXACT), (layer, head, name)
        page.get_by_role("button", name="layer 2, head 3: entropy").wait_for()
        assert accessible(page) == []


def test_heads_are_ordered_and_open_in_the_sentence(browser, address):
    with opened(browser, at(address, "heads", kind="decoder", sort="sink")) as page:
        page.get_by_test_id("thumb").first.wait_for()
        sinks = [number(thumb, "sink") for thumb in page.get_by_test_id("thumb").all()]
        assert sinks == sorted(sinks, reverse=True)
        first = page.get_by_test_id("thumb").first
        layer, head = first.get_attribute("data-layer"), first.get_attribute("data-head")
        first.click()
        page.get_by_test_id("arc").first.wait_for()
        assert f"layer={layer}&head={head}" in page.url
        assert "#/sentence" in page.url


def test_effects_and_knockouts_are_those_of_ablate(browser, address, log_probs):
    base = log_probs({})
    with opened(browser, at(address, "heads", kind="cross")) as page:
        page.get_by_test_id("effects").click()
        page.locator("[data-testid=thumb][data-effect]").first.wait_for()
        for thumb in page.get_by_test_id("thumb").all():
            layer, head = int(number(thumb, "layer")), int(number(thumb, "head"))
            own = (log_probs({("cross", layer): [head]}) - base).sum().item()
            assert number(thumb, "effect") == pytest.approx(own, abs=EXACT)
        page.get_by_test_id("knock-1-2").click()
        page.get_by_test_id("kind-self").click()
        page.get_by_test_id("knock-0-3").click()
        page.locator("[data-testid=out] >> nth=1").wait_for()
        assert "out=cross.1.2%2Cself.0.3" in page.url
        page.locator("[data-testid=knockout-status][data-busy=false]").wait_for(state="attached")
        own = log_probs({("cross", 1): [2], ("self", 0): [3]}) - base
        assert number(page.get_by_test_id("knockout-change")) == pytest.approx(own.sum().item(), abs=EXACT)
        shown = [number(one) for one in page.get_by_test_id("knockout-token").all()]
        assert shown == pytest.approx(own.tolist(), abs=EXACT)
        assert accessible(page) == []


@pytest.mark.parametrize("beside", ["decoder.1.2", "decoder.0.mean.norms", "decoder.0.1.weights.dot"])
def test_a_difference_is_what_the_trace_says(browser, address, trace, beside):
    kind, layer, head, *more = beside.split(".")
    first = trace.weights(0, 1, kind=kind)
    second = trace.weights(int(layer), None if head == "mean" else int(head), kind=kind)
    if more == ["norms"]:
        second = trace.norms(0, None, kind=kind).mean(0)
        second = second / second.sum(-1, keepdim=True)
    url = at(address, "compare", kind=kind, layer=0, head=1, mode="difference", **{"with": beside})
    with opened(browser, url) as page:
        cells = page.get_by_test_id("difference-cell")
        cells.first.wait_for()
        found = cells.evaluate_all("all => all.map(one => Number(one.dataset.value))")
        assert found == pytest.approx((first - second).flatten().tolist(), abs=EXACT)


def test_two_models_are_compared_by_words_with_one_scale(browser, address):
    with opened(browser, at(address, "compare", kind="cross", other="rnn")) as page:
        page.get_by_test_id("second-cell").first.wait_for()
        assert page.get_by_test_id("words").get_attribute("data-value") == "words"
        cells = page.locator("[data-testid=first-cell], [data-testid=second-cell]")
        most = max(cells.evaluate_all("all => all.map(one => Number(one.dataset.value))"))
        assert number(page.get_by_test_id("scale"), "top") == pytest.approx(most)
        pair = page.locator("[data-testid=pair]").first
        assert number(pair, "first") == pytest.approx(
            number(page.locator("[data-testid=first-cell][data-index='1'][data-dim='0']"))
        )
        cell = page.locator("[data-testid=first-cell][data-index='2'][data-dim='1']")
        cell.hover()
        page.locator("[data-testid=second-cell][data-index='2'][data-dim='1'].lit").wait_for()
        assert accessible(page) == []


def test_what_cannot_be_subtracted_says_why(browser, address):
    with opened(browser, at(address, "compare", kind="self", mode="difference", **{"with": "cross.0.0"})) as page:
        page.get_by_test_id("mismatch").get_by_text("different words").wait_for()
        assert page.get_by_test_id("difference-cell").count() == 0
