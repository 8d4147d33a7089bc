"""Summary and Answer in a real browser: what is typed, pointed at and pressed shows the models' own numbers."""

import json
import re
import urllib.parse

import asked
import chats
import pytest
from browsing import accessible, opened, picture
from serving import save_models, serving

import regard
from regard.explorer import page as pages

pytestmark = pytest.mark.slow

CHAT, SUMMARY = (text.replace("\r", "") for text in chats.chats(1, 5)[0])
CONTEXT = "Ana has the hat . Bo has the egg. Cy has the oar . Dee has the lamp ."
QUESTION = "What does Bo have ?"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A summarizer and a reader that learned their toy tasks, and a translator that knows nothing."""
    path = tmp_path_factory.mktemp("models")
    chats.train(path)
    (path / "model").rename(path / "chats")
    reader, _ = asked.trained(path, out="reader", none=0.3, count=2000, training={"updates": 220})
    return [str(path / "chats"), str(reader), save_models(path)[0]]


@pytest.fixture(scope="module")
def summary(folders):
    return regard.load(folders[0], device="cpu").summarize(CHAT, no_repeat=3)


@pytest.fixture(scope="module")
def answer(folders):
    return regard.load(folders[1], device="cpu").answer(CONTEXT, QUESTION, n_best=5, attention=True)


def summary_at(address, **selection):
    return f"{address}#/summary?{urllib.parse.urlencode({'document': CHAT, **selection})}"


def answer_at(address, **selection):
    return f"{address}#/answer?{urllib.parse.urlencode({'context': CONTEXT, 'question': QUESTION, **selection})}"


def shown(page, testid):
    """The number behind each word."""
    found = page.get_by_test_id(testid).evaluate_all("all => all.map(w => [+w.dataset.index, +w.dataset.value])")
    return dict(found)


def marked(page, mark):
    """The characters that are marked."""
    return "".join(page.locator(f"[data-marks~={mark}]").all_text_contents())


def told(page, testid, word):
    """Waits until what is told is about a word; None is all of them."""
    attribute = "" if word is None else f"[data-word='{word}']"
    none = ":not([data-word])" if word is None else ""
    page.locator(f"[data-testid={testid}]{attribute}{none}").wait_for()


def same(found, row):
    assert found == {i: pytest.approx(float(value), abs=2e-6) for i, value in enumerate(row)}


# --- Summary ---


def test_a_summary_and_where_its_words_came_from(browser, address, summary, tmp_path):
    assert summary.text == SUMMARY
    with opened(browser, f"{address}#/summary") as page:
        page.get_by_test_id("summary-word").first.wait_for()  # of the text that the page opens with
        page.get_by_test_id("document").fill(CHAT)
        page.get_by_test_id("summary").get_by_text(SUMMARY).wait_for()
        assert page.get_by_test_id("source-words").text_content() == CHAT
        told(page, "summary-told", None)
        same(shown(page, "source-word"), summary.attention.mean(0))
        words = page.get_by_test_id("summary-word")
        for word, (probability, position) in enumerate(summary.copied):
            words.nth(word).hover()
            told(page, "summary-told", word)
            same(shown(page, "source-word"), summary.attention[word])
            said = page.get_by_test_id("summary-told")
            assert float(said.get_attribute("data-probability")) == pytest.approx(probability, abs=1e-5)
            note = "generated" if probability < 0.005 else f"copied {round(100 * probability)} %"
            assert note in words.nth(word).inner_text()
            assert marked(page, "copied") == ("" if probability < 0.005 else summary.source[position].text)
            row = page.get_by_test_id("copied").nth(word)
            assert float(row.get_attribute("data-value")) == pytest.approx(probability, abs=1e-5)
        words.nth(2).click()
        page.mouse.move(0, 0)
        told(page, "summary-told", 2)  # stays
        assert "word=2" in page.url
        strongest = max(shown(page, "source-word").items(), key=lambda item: item[1])[0]
        assert SUMMARY.split()[2] in summary.source[strongest].text
        picture(page, "explorer-summary", tmp_path, full_page=True)
        page.get_by_test_id("table-summary").click()
        same(shown(page, "summary-value"), summary.attention[2])
        words = page.get_by_test_id("copied-table").locator("tbody th").all_text_contents()
        assert words == SUMMARY.split()


def test_a_length_is_asked_for(browser, address, folders):
    wanted = regard.load(folders[0], device="cpu").summarize(CHAT, length=2, no_repeat=3).text
    with opened(browser, summary_at(address)) as page:
        page.get_by_test_id("summary").get_by_text(SUMMARY).wait_for()
        page.get_by_test_id("length").fill("2")
        page.keyboard.press("Enter")
        page.wait_for_function(
            "want => document.querySelector('[data-testid=summary]').textContent === want", arg=wanted
        )
        assert wanted != SUMMARY and "length=2" in page.url


# --- Answer ---


def test_an_answer_in_its_context(browser, address, answer, tmp_path):
    assert answer.text == "egg"
    with opened(browser, f"{address}#/answer") as page:
        page.get_by_test_id("question-word").first.wait_for()
        page.get_by_test_id("context").fill(CONTEXT)
        page.get_by_test_id("question").fill(QUESTION)
        found = page.locator(f"[data-testid=answer][data-start='{answer.start}']")
        found.get_by_text("egg", exact=True).wait_for()
        assert page.get_by_test_id("context-words").text_content() == CONTEXT
        assert marked(page, "answer") == "egg"  # and not the full stop behind it
        assert int(found.get_attribute("data-end")) == answer.end
        assert float(found.get_attribute("data-value")) == pytest.approx(answer.score, abs=1e-6)
        none = page.get_by_test_id("no-answer-score")
        assert float(none.get_attribute("data-value")) == pytest.approx(answer.no_answer, abs=1e-6)
        told(page, "answer-told", None)
        same(shown(page, "context-word"), answer.attention.mean(0))
        page.get_by_test_id("question-word").nth(2).click()
        told(page, "answer-told", 2)
        same(shown(page, "context-word"), answer.attention[2])
        values = shown(page, "context-word")
        assert max(values, key=values.get) == CONTEXT.split().index("Bo")
        rows = page.get_by_test_id("candidate").evaluate_all(
            "all => all.map(r => [+r.dataset.start, +r.dataset.end, +r.dataset.value])"
        )
        assert rows == [[c.start, c.end, pytest.approx(c.score, abs=1e-6)] for c in answer.candidates]
        page.get_by_test_id("candidate-1").click()
        page.mouse.move(0, 0)
        assert marked(page, "candidate") == answer.candidates[1].text and marked(page, "answer") == "egg"
        picture(page, "explorer-answer", tmp_path, full_page=True)
        page.get_by_test_id("table-answer").click()
        same(shown(page, "answer-value"), answer.attention[2])


def test_the_place_is_exact_behind_characters_of_two_units(browser, address, folders):
    text = "🐈 Ana has the 𝒽at .\nBo has the egg, Cy the oar ."
    found = regard.load(folders[1], device="cpu").answer(text, QUESTION, abstain=False)
    with opened(browser, answer_at(address, context=text)) as page:
        page.get_by_test_id("candidate-0").click()
        assert page.get_by_test_id("context-words").text_content() == text
        assert found.text == text[found.start : found.end]
        assert found.text in (marked(page, "answer"), marked(page, "candidate"))


def test_no_answer_is_told(browser, address):
    with opened(browser, answer_at(address, question="What does Pia have ?")) as page:
        page.get_by_test_id("no-answer").wait_for()
        assert float(page.get_by_test_id("no-answer-score").get_attribute("data-value")) > 0.5
        assert marked(page, "answer") == "" and page.get_by_test_id("candidate").count() == 5


def test_a_long_context_is_read_in_windows(browser, address):
    text = " ".join(f"{name} has the nut ." for name in asked.NAMES[3:14] * 16) + " Pia has the pen ."
    with opened(browser, answer_at(address, context=text, question="What does Pia have ?")) as page:
        page.get_by_test_id("note").get_by_text("windows").wait_for()
        assert page.get_by_test_id("context-words").text_content() == text
        assert page.get_by_test_id("chart-answer").is_visible()


# --- everywhere ---


def test_the_views_are_those_of_the_models(browser, address, folders):
    def tabs(page):
        page.locator("[data-testid^=chart-]").first.wait_for()
        found = page.locator("[data-testid^=tab-]").evaluate_all("all => all.map(tab => tab.dataset.testid)")
        return [name.removeprefix("tab-") for name in found]

    with opened(browser, address) as page:
        assert tabs(page) == ["sentence", "steps", "align", "heads", "compare", "long", "summary", "answer"]
        assert page.get_by_test_id("model").input_value() == "transformer"
        page.keyboard.press("8")
        page.get_by_test_id("answer").wait_for()
        assert page.get_by_test_id("model").input_value() == "reader"
        page.get_by_test_id("tab-summary").click()
        page.get_by_test_id("summary-word").first.wait_for()
        assert page.get_by_test_id("model").input_value() == "chats"
    with serving(folders[1:2], files=pages.files()) as client:
        url = f"http://127.0.0.1:{client.port}/"
        with opened(browser, url) as page:
            assert tabs(page) == ["answer"]


def test_shared_addresses_show_the_same(browser, address, summary, answer):
    with opened(browser, summary_at(address, word=2)) as page:
        told(page, "summary-told", 2)
        same(shown(page, "source-word"), summary.attention[2])
        page.goto(answer_at(address, asked=2, candidate=1))
        told(page, "answer-told", 2)
        assert marked(page, "candidate") == answer.candidates[1].text
        page.reload()
        told(page, "answer-told", 2)
        same(shown(page, "context-word"), answer.attention[2])
        page.get_by_test_id("question-word").nth(0).click()
        told(page, "answer-told", 0)
        page.mouse.move(0, 0)
        page.go_back()
        told(page, "answer-told", 2)


def test_by_keyboard_alone(browser, address, summary, answer):
    def to(page, testid):
        for _ in range(60):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.dataset.testid") == testid:
                return
        raise AssertionError(f"no way to {testid}")

    with opened(browser, f"{address}#/summary") as page:
        page.get_by_test_id("summary-word").first.wait_for()
        to(page, "document")
        page.keyboard.press("Control+A")
        page.keyboard.insert_text(CHAT)
        to(page, "summary-word")  # leaving the field sends it
        page.get_by_test_id("summary").get_by_text(SUMMARY).wait_for()
        told(page, "summary-told", 0)  # the focus shows it
        page.keyboard.press("ArrowRight")
        told(page, "summary-told", 1)
        same(shown(page, "source-word"), summary.attention[1])
        page.goto(answer_at(address))
        page.get_by_test_id("answer").wait_for()
        page.keyboard.press("ArrowRight")  # nothing has the focus: the page moves the word
        told(page, "answer-told", 0)
        same(shown(page, "context-word"), answer.attention[0])
        to(page, "candidate-1")
        assert marked(page, "candidate") == answer.candidates[1].text
        page.keyboard.press("Enter")
        page.wait_for_function("() => location.hash.includes('candidate=1')")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", ["summary", "answer"])
def test_axe_finds_nothing_serious(browser, address, view, scheme):
    url = summary_at(address, word=1) if view == "summary" else answer_at(address, asked=1, candidate=1)
    with opened(browser, url, color_scheme=scheme, reduced_motion="reduce") as page:
        told(page, f"{view}-told", 1)
        assert accessible(page) == []
        page.get_by_test_id(f"table-{view}").click()
        assert accessible(page) == []


@pytest.mark.parametrize("view", ["summary", "answer"])
def test_a_telephone_needs_no_sideways_scrolling(browser, address, view):
    url = summary_at(address) if view == "summary" else answer_at(address)
    with opened(browser, url, viewport={"width": 360, "height": 740}) as page:
        told(page, f"{view}-told", None)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_text_is_never_markup(browser, address):
    hostile = "<img src=x onerror=alert(1)> <b>Bo</b> has the &amp; egg .<script>alert(2)</script>"
    with opened(browser, summary_at(address, document=hostile)) as page:
        page.get_by_test_id("source-words").get_by_text("onerror").wait_for()
        assert page.locator("main img, main script, main b").count() == 0
        page.goto(answer_at(address, context=hostile, question=f"{hostile} ?"))
        page.get_by_test_id("context-words").get_by_text("onerror").wait_for()
        assert page.get_by_test_id("context-words").text_content() == hostile
        assert page.locator("main img, main script, main b").count() == 0


def test_what_cannot_be_read_is_told_and_left_behind(browser, address):
    with opened(browser, answer_at(address, question="What " * 90), refused="422") as page:
        page.get_by_test_id("status-error").get_by_text("the question has").wait_for()
        page.get_by_test_id("question").fill(QUESTION)
        page.get_by_test_id("answer").wait_for()
        page.get_by_test_id("status-error").wait_for(state="detached")
        page.get_by_test_id("context").fill("")
        page.get_by_test_id("empty").wait_for()


@pytest.mark.parametrize("view", ["summary", "answer"])
def test_pictures_and_python(browser, address, folders, view, tmp_path):
    url = summary_at(address, word=2) if view == "summary" else answer_at(address, asked=2, candidate=1)
    with opened(browser, url, permissions=["clipboard-read", "clipboard-write"]) as page:
        told(page, f"{view}-told", 2)
        for kind, start in (("svg", b"<"), ("png", b"\x89PNG")):
            with page.expect_download() as waiting:
                page.get_by_test_id(f"{kind}-{view}").click()
            path = tmp_path / f"a.{kind}"
            waiting.value.save_as(path)
            assert path.read_bytes().startswith(start)
        page.get_by_test_id(f"code-{view}").click()
        code = page.get_by_test_id(f"python-text-{view}").inner_text()
        values = shown(page, "source-word" if view == "summary" else "context-word")
    svg = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert all(word in svg for word in (CHAT if view == "summary" else CONTEXT).split()[:6])
    folder = folders[0 if view == "summary" else 1]
    space: dict = {}
    exec(compile(re.sub(r"regard\.load\([^)]*\)", f"regard.load({json.dumps(folder)})", code), "copied", "exec"), space)
    same(values, space["values"])
