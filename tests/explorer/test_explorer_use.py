"""The page in use: what is asked for can be read, says when it is done, stays chosen, and fits a telephone."""

import urllib.parse

import pytest
from browsing import accessible, opened
from test_explorer import recorded

import regard
from regard.explorer.scores import counterfactual

pytestmark = pytest.mark.slow

TEXT, TARGET = "the red dog sees a big cat .", "le chien rouge voit un chat grand ."
TELEPHONE = {"width": 390, "height": 844}

OVERLAPS = """() => {
  const boxes = [...document.querySelectorAll('.tokens .value:not(.none)')].map(v => v.getBoundingClientRect());
  const meet = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
  return boxes.flatMap((a, i) => boxes.slice(i + 1).filter(b => meet(a, b))).length;
}"""
SIDEWAYS = """() => [...document.querySelectorAll('main .scroll, main .content')]
  .filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.closest('[data-testid]').dataset.testid)"""
CROSSED = """() => {
  const labels = [...document.querySelectorAll('.tokens .value:not(.none)')].map(v => v.getBoundingClientRect());
  const stage = document.querySelector('[data-testid=arcs] svg').getBoundingClientRect();
  let crossed = 0;
  for (const path of document.querySelectorAll('[data-testid=arc]')) {
    for (let at = 0; at <= path.getTotalLength(); at += 2) {
      const {x, y} = path.getPointAtLength(at);
      crossed += labels.some(b => x + stage.left > b.left && x + stage.left < b.right
                                  && y + stage.top > b.top && y + stage.top < b.bottom);
    }
  }
  return crossed;
}"""


@pytest.fixture(scope="module")
def translator(folders):
    return regard.load(folders[0], device="cpu")


def at(address, view="sentence", **selection):
    return f"{address}#/{view}?{urllib.parse.urlencode({'text': TEXT, 'target': TARGET, **selection})}"


def chosen(page, name):
    return page.get_by_test_id(name).get_attribute("data-value")


def query(page):
    """The token that looks."""
    return int(page.locator("[data-testid=token][aria-pressed=true]").first.get_attribute("data-token"))


@pytest.mark.parametrize("size", [{"width": 1280, "height": 800}, TELEPHONE], ids=["desktop", "telephone"])
def test_help_can_be_read(browser, address, size):
    with opened(browser, at(address), viewport=size) as page:
        page.get_by_test_id("arc").first.wait_for()
        page.keyboard.press("?")
        measure = "d => [d.scrollWidth <= d.clientWidth, getComputedStyle(d).overflowY]"
        fits = page.get_by_test_id("help").evaluate(measure)
        assert fits == [True, "auto"]
        page.keyboard.press("Escape")
        assert not page.get_by_test_id("help").is_visible()


@pytest.mark.parametrize("kind", ["self", "cross"])
def test_small_weights_are_told_as_small(browser, address, kind):
    def sharp(route):
        answer = route.fetch()
        row = answer.json()
        row["values"] = [0.99, *(0.01 / 3**i for i in range(1, len(row["values"])))]
        route.fulfill(response=answer, json=row)

    with opened(browser, "about:blank") as page:
        page.route("**/row?*", sharp)
        page.goto(at(address, top=0, kind=kind, query=2))
        page.locator(".value", has_text="0.99").wait_for()
        shown = page.locator(".value:not(.none)").all_inner_texts()
        assert set(shown) == {"0.99", "<0.01"}
        assert page.evaluate(OVERLAPS) == 0


def test_effects_say_how_far_they_are_and_are_shown(browser, address):
    with opened(browser, at(address, "heads", kind="cross")) as page:
        page.get_by_test_id("thumb").first.wait_for()
        page.evaluate(
            """() => {
              window.told = [];
              new MutationObserver(() => {
                const now = document.querySelector('[data-testid=effects-progress]');
                if (now) window.told.push(+now.dataset.value);
              }).observe(document.body, {subtree: true, childList: true, attributes: true, characterData: true});
            }"""
        )
        page.get_by_test_id("effects").click()
        page.get_by_test_id("effects-done").wait_for()
        assert set(page.evaluate("window.told")) == {0, 1, 2}  # layers of three that were done
        assert chosen(page, "sort") == "effect"
        assert "12 heads computed; largest: layer" in page.get_by_test_id("effects-done").inner_text()
        assert page.locator("[data-testid=thumb][data-effect]").count() == 12
        sizes = [abs(float(one.get_attribute("data-effect"))) for one in page.get_by_test_id("thumb").all()]
        assert sizes == sorted(sizes, reverse=True)
        page.get_by_test_id("kind-self").click()  # and they are kept
        page.get_by_test_id("effects").wait_for()
        page.get_by_test_id("kind-cross").click()
        page.get_by_test_id("effects-done").wait_for()
        assert accessible(page) == []


@pytest.mark.parametrize("size", [{"width": 1280, "height": 800}, TELEPHONE], ids=["desktop", "telephone"])
def test_what_a_knockout_changes_is_on_the_screen(browser, address, size):
    with opened(browser, at(address, "heads", kind="cross"), viewport=size) as page:
        page.get_by_test_id("thumb").first.wait_for()
        button = page.get_by_test_id("knock-2-3")
        button.scroll_into_view_if_needed()
        button.focus()
        page.keyboard.press("Enter")
        line = page.get_by_test_id("knockout-line")
        line.get_by_text("log p of the translation").wait_for()
        box = line.bounding_box()
        assert box["y"] >= 0 and box["y"] + box["height"] <= size["height"]
        change = float(page.get_by_test_id("knockout-change").get_attribute("data-value"))
        assert f"{abs(change):.3f}" in line.inner_text() and "likely" in line.inner_text()
        assert accessible(page) == []
        page.get_by_test_id("knockout-show").focus()
        page.keyboard.press("Enter")
        line.wait_for(state="detached")  # its chart is there
        assert 0 <= page.get_by_test_id("knockout-change").bounding_box()["y"] < size["height"]


def test_another_kind_keeps_layer_head_and_word(browser, address, translator):
    links = translator.align([(TEXT, TARGET)])[0]
    source, target = (translator.subwords.encode(text).words for text in (TEXT, TARGET))
    word = next(s for s, _ in sorted(links) if s > 1)
    with opened(browser, at(address, layer=1, head=3, query=source.index(word))) as page:
        page.get_by_test_id("arc").first.wait_for()
        page.get_by_test_id("kind-cross").click()
        page.get_by_test_id("key").first.wait_for()
        assert (chosen(page, "layer"), chosen(page, "head")) == ("1", "3")
        found = {target.index(t) + 1 for s, t in links if s == word}  # after <s>
        assert query(page) in found
        page.get_by_test_id("kind-decoder").click()  # the same words
        assert query(page) in found and chosen(page, "head") == "3"
        page.get_by_test_id("kind-self").click()
        page.get_by_test_id("key").first.wait_for(state="detached")
        assert query(page) == source.index(word)  # what was left
        page.get_by_test_id("head-mean").click()
        page.get_by_test_id("tab-heads").click()
        page.get_by_test_id("kind-cross").click()
        page.get_by_test_id("tab-sentence").click()
        page.get_by_test_id("key").first.wait_for()
        assert (chosen(page, "layer"), chosen(page, "head")) == ("1", "mean")


def test_long_shows_the_sentence_where_there_is_nothing_longer(browser, address, translator):
    trace = recorded(translator, TEXT, TARGET)
    with opened(browser, at(address, "long", layer=1, head=2)) as page:
        page.get_by_test_id("long-canvas").wait_for()
        page.locator("[data-testid=long-exact][data-value='1']").wait_for()
        values = (
            page.get_by_test_id("long-strongest")
            .locator("[data-value]")
            .evaluate_all("all => all.map(v => [v.dataset.rows, v.dataset.columns, +v.dataset.value])")
        )
        weights = trace.weights(1, 2)
        for rows, columns, value in values:
            assert value == pytest.approx(float(weights[int(rows.split(":")[0]), int(columns.split(":")[0])]), abs=1e-6)
        assert "regard explore --trace" in page.get_by_test_id("long-none").inner_text()  # the way on
        assert "100,000" not in page.locator("main").inner_text()
        page.get_by_test_id("text").fill("the dog sees a cat .")
        page.get_by_role("heading", name="× 7 tokens").wait_for()
        assert accessible(page) == []


def test_pieces_of_a_character_are_told_apart(browser, address, translator):
    text = "the dog \N{GRINNING FACE} ."
    pieces = translator.subwords.encode(text).words.count(2)
    assert pieces >= 4
    with opened(browser, at(address, text=text)) as page:
        page.get_by_test_id("arc").first.wait_for()
        shown = page.get_by_test_id("token").all_inner_texts()
        numbered = [each.split("\n")[0] for each in shown if "\N{GRINNING FACE}" in each]
        assert numbered[-1] == "\N{GRINNING FACE} 4/4" and len(set(numbered)) == 4
        joined = "\N{ZERO WIDTH JOINER}"
        page.get_by_test_id("text").fill(f"the dog{joined} .")
        page.get_by_test_id("token").filter(has_text="U+200D").first.wait_for()
        invisible = [each.split("\n")[0] for each in page.get_by_test_id("token").all_inner_texts() if "U+200D" in each]
        count = len(invisible)
        assert count > 1 and invisible == [f"U+200D {i + 1}/{count}" for i in range(count)]
        page.get_by_test_id("text").fill(text)
        page.get_by_test_id("words-words").click()
        page.wait_for_function("() => document.querySelectorAll('[data-testid=token]').length == 5")
        assert page.get_by_test_id("token").nth(2).inner_text().split("\n")[0] == "\N{GRINNING FACE}"


def test_steps_need_no_sideways_scrolling(browser, address):
    with opened(browser, at(address, "steps", kind="cross", query=3), viewport=TELEPHONE) as page:
        page.locator("[data-step=weights]").first.wait_for()
        assert page.evaluate(SIDEWAYS) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= TELEPHONE["width"]
        cell = page.locator("[data-step=v]").first
        cell.focus()
        page.keyboard.press("ArrowRight")
        assert page.evaluate("document.activeElement.dataset.dim") == "1"
        assert accessible(page) == []


@pytest.mark.parametrize("size", [{"width": 700, "height": 800}, TELEPHONE], ids=["narrow", "telephone"])
def test_arcs_cross_no_numbers(browser, address, size):
    """Where a line breaks there is little room: the words stand in two columns then."""
    text = "the red dog sees a big cat . the red dog sees a big cat . the cat sees the dog ."
    with opened(browser, at(address, text=text, target="", top=0, query=3), viewport=size) as page:
        page.get_by_test_id("arc").first.wait_for()
        page.wait_for_function("() => document.querySelector('.value:not(.none)')")
        page.wait_for_timeout(300)
        assert page.evaluate(OVERLAPS) == 0
        if size == TELEPHONE:
            assert page.evaluate(CROSSED) == 0
            page.get_by_test_id("token").nth(3).focus()
            page.keyboard.press("ArrowRight")
            page.wait_for_function("() => location.hash.includes('query=4')")
            assert accessible(page) == []


def test_steps_say_what_their_numbers_are(browser, address, translator):
    trace = recorded(translator, TEXT, TARGET)
    with opened(browser, at(address, "steps", layer=1, head=1, query=2, key=4, score="rotary")) as page:
        page.wait_for_function(
            "() => document.querySelector('[data-testid=score-label]')?.dataset.counterfactual === 'true'"
        )
        shown = trace.steps(1, 1, 2, score=counterfactual("rotary", 8))
        chart = page.get_by_test_id("chart-products")
        said = chart.locator(".caption").inner_text()
        assert "R(i) q · R(j) k" in said and "√d" not in said
        terms = chart.locator("[data-step=products]").evaluate_all("all => all.map(c => +c.dataset.value)")
        total = float(chart.get_by_test_id("products-sum").get_attribute("data-value"))
        assert sum(terms) == pytest.approx(total, abs=1e-5) == float(shown.similarity[4])
        assert total != pytest.approx(float(shown.scaled[4]))  # the score divides it
        chart.locator("[data-step=products]").first.hover()
        assert "√d" not in page.get_by_test_id("explanation").inner_text()
