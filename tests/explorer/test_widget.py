"""The explorer in notebooks: its answers are those of the trace, and real notebooks show them."""

import re
import sys
import time

import notebooks
import numpy as np
import pytest
import torch
from browsing import accessible, opened, picture

import regard
from regard.explorer.answers import Answers
from regard.explorer.view import record
from regard.explorer.widget import Desk, show

pytest.importorskip("anywidget")


@pytest.fixture(scope="module")
def trace():
    """The one that ``notebooks.CODE`` makes."""
    known = {}
    exec(notebooks.CODE, known)
    return known["trace"]


@pytest.fixture(scope="module")
def desk(trace):
    return Desk(Answers(trace, name="cat"))


@pytest.fixture(scope="module")
def translated(translator):
    return Desk(record(translator, "the red cat sees a dog .", "le chat rouge voit un chien ."))


def asked(desk, method, **params):
    content, buffers = desk.ask({"id": 5, "method": method, "params": params})
    assert content["id"] == 5 and set(content) == {"id", "ok"}, content
    return (content["ok"], buffers) if buffers else content["ok"]


def refused(desk, question):
    content, buffers = desk.ask(question)
    assert set(content) == {"id", "error", "status"} and not buffers
    return content["error"], content["status"]


# --- answers ---


def test_rows_are_those_of_the_trace(desk, trace):
    at = {"trace": "0", "kind": "self", "layer": 0}
    assert asked(desk, "row", **at, head=1, query=2)["values"] == trace.weights(0, 1, 2).tolist()
    mean = asked(desk, "row", **at, head="mean", query=2)["values"]
    assert mean == pytest.approx(trace.weights(0, None, 2).mean(0).tolist(), rel=1e-6)
    assert asked(desk, "row", **at, head=1, query=2, measure="norms")["values"] == trace.norms(0, 1, 2).tolist()
    assert asked(desk, "row", **at, head=1, query=2, measure="rollout")["values"] == trace.rollout(2).tolist()


def test_tiles_are_bytes_beside_the_answer(desk, trace):
    told, (content,) = asked(desk, "tile", kind="self", layer=0, head=3)
    assert told == {"shape": [6, 6], "exact": "exact"}
    values = np.frombuffer(content, "<f4").reshape(told["shape"])
    assert (values == trace.weights(0, 3).numpy()).all()
    told, (content,) = asked(desk, "tile", kind="self", layer=0, head=3, rows="0:4", cols="2:6", height=2, width=2)
    right = trace.tile(0, 3, (0, 4), (2, 6), (2, 2)).numpy()
    assert (np.frombuffer(content, "<f4").reshape(told["shape"]) == right).all()
    told, _ = asked(desk, "tile", kind="self", layer=0, head=3, height=1, width=1, samples=2)
    assert told == {"shape": [1, 1], "exact": "sampled"}


def test_steps_heads_and_tokens(desk, trace):
    found = asked(desk, "steps", kind="self", layer=0, head=1, query=2, key=3, score="trained")
    assert found["context"] == trace.steps(0, 1, 2).context.tolist() and found["formula"] == "q·k / √d"
    assert asked(desk, "steps", kind="self", layer=0, head=1, query=2, score="additive")["counterfactual"]
    assert asked(desk, "heads", kind="self")["entropy"][0] == pytest.approx(trace.entropy(0).mean(-1).tolist())
    tokens = asked(desk, "tokens", **{"kind": "self", "side": "rows", "from": 1, "to": 3})
    assert tokens == {"tokens": ["cat", "sat"], "from": 1, "count": 6}
    assert asked(desk, "search", kind="self", side="columns", text="the")["matches"] == [0, 4]


def test_what_there_is(desk):
    told = asked(desk, "described", trace="0")
    assert [token["text"] for token in told["source"]["tokens"]] == ["the", "cat", "sat", "on", "the", "mat"]
    assert (told["id"], told["model"], told["alignment"]) == ("0", "cat", None)
    (model,) = asked(desk, "models")["models"]
    assert model["kinds"][0]["heads"] == 4
    assert asked(desk, "models")["measures"] == ["weights", "norms", "rollout"]
    assert asked(desk, "traces")["traces"][0]["id"] == "0"
    assert desk.can() == {
        "translate": False,
        "knockout": False,
        "effects": False,
        "views": ["sentence", "steps", "heads", "compare", "long"],
        "rollout": True,
    }
    q = torch.randn(1, 1, 4097, 2)
    assert Desk(Answers(regard.Trace.of(q, q, q))).can()["views"] == ["long"]


def test_measures_are_what_was_recorded():
    q = torch.randn(1, 1, 3, 4)
    assert Desk(Answers(regard.Trace.of(q, q, q))).measures() == ["weights", "rollout"]
    model = regard.nn.EncoderLayer(8, 2).eval()
    with regard.record(model, gradients=True) as trace:
        model(torch.randn(1, 3, 8)).sum().backward()
    assert Desk(Answers(trace)).measures() == ["weights", "norms", "rollout", "gradient"]


def test_a_translation_has_links_and_can_miss_heads(translated, translator):
    links = asked(translated, "align", layer=1, shift=0, gold="")["links"]
    pair = ("the red cat sees a dog .", "le chat rouge voit un chien .")
    assert links == sorted(map(list, translator.align([pair], layer=1, shift=False)[0]))
    effects = asked(translated, "effects", kind="cross")
    assert effects["base"] == pytest.approx(translator.score([pair])[0], abs=1e-3)
    out = asked(translated, "knockout", heads=[{"kind": "cross", "layer": 1, "head": 2}])
    assert out["change"] == pytest.approx(effects["change"][1][2], abs=1e-5)
    assert translated.can()["knockout"] and "align" in translated.can()["views"]


@pytest.mark.parametrize(
    ("method", "params", "text", "status"),
    [
        ("row", {"head": 9}, "head: there are 4, from 0; got 9", 422),
        ("row", {"query": 6}, "rows: there are 6 queries", 422),
        ("row", {"layer": "first"}, "layer: expected an integer", 422),
        ("row", {"odd": 1}, "row: unknown parameter 'odd'", 422),
        ("row", {"measure": "gradient"}, "no gradient has reached this call", 422),
        ("row", {"trace": "another"}, "trace: a widget has one", 422),
        ("tile", {"rows": "5:2"}, "rows: expected first:end", 422),
        ("align", {}, "not of a translation", 409),
        ("knockout", {"heads": []}, "model", 409),
        ("knockout", {"heads": 3}, "heads: expected an array", 422),
        ("__init__", {}, "method: expected one of models,", 422),
        ("described", [], "expected a question", 422),
    ],
)
def test_mistakes_are_answered_in_words(desk, method, params, text, status):
    error, found = refused(desk, {"id": 1, "method": method, "params": params})
    assert text in error and found == status


def test_nonsense_and_failures_are_answered_too(desk, monkeypatch, caplog):
    assert refused(desk, "hello")[1] == 422

    def broken(**_):
        raise RuntimeError("out of luck")

    monkeypatch.setattr(desk.answers, "row", broken)
    error, status = refused(desk, {"id": 1, "method": "row", "params": {}})
    assert status == 500 and "out of luck" in error and "Traceback" in caplog.text


# --- the widget ---


def test_the_widget_answers_over_its_channel(trace, monkeypatch):
    sent = []
    widget = regard.show(trace, name="cat")
    monkeypatch.setattr(widget, "send", lambda content, buffers=None: sent.append((content, buffers)))
    widget._handle_custom_msg({"id": 3, "method": "tile", "params": {"kind": "self"}}, [])
    ((content, buffers),) = sent
    assert content == {"id": 3, "ok": {"shape": [6, 6], "exact": "exact"}} and len(buffers[0]) == 4 * 36
    state = widget.get_state()
    assert state["trace"] == "0" and state["can"]["views"][0] == "sentence"
    assert "export default" in state["_esm"] or re.search(r"export\s*\{", state["_esm"])


def test_without_anywidget_it_says_what_to_install(trace, monkeypatch):
    monkeypatch.setitem(sys.modules, "anywidget", None)
    with pytest.raises(ImportError, match=r'pip install "regard\[notebook\]"'):
        regard.show(trace)


def test_only_a_trace_can_be_shown():
    with pytest.raises(TypeError, match=r"expected a trace, as regard\.record gives it, got list"):
        show([1, 2])
    with pytest.raises(ValueError, match="the trace is empty"):
        show(regard.Trace())


def test_what_it_opens_with_can_be_chosen(trace):
    assert regard.show(trace, view="steps", head=2, query=1).start == "#/steps?head=2&query=1"
    with pytest.raises(ValueError, match="head: there are 4"):
        regard.show(trace, head=4)


# --- real notebooks ---


def shows(page, trace):
    """Compares rows of the Sentence view with the trace, and then a step."""
    page.get_by_test_id("table-sentence").wait_for(timeout=1000 * notebooks.WAIT)
    page.get_by_test_id("top-0").click()
    for head, query in ((2, 1), (0, 5)):
        page.get_by_test_id(f"head-{head}").click()
        page.locator(f'[data-testid=token][data-token="{query}"]').click()
        page.get_by_test_id("table-sentence").click()
        eventually(lambda: numbers(page, "[data-testid=table-value]"), trace.weights(0, head, query))
        page.get_by_test_id("table-sentence").click()
    page.get_by_test_id("tab-steps").click()
    eventually(lambda: numbers(page, "[data-step=context]"), trace.steps(0, 0, 5).context)
    page.get_by_test_id("tab-heads").click()
    page.get_by_test_id("thumb").nth(3).wait_for()  # pictures come as bytes
    page.get_by_test_id("tab-sentence").click()


def numbers(page, selector):
    """Numbers in full by their index; a locator also looks into shadow roots."""
    found = page.locator(selector).evaluate_all("all => all.map(one => [+one.dataset.index, +one.dataset.value])")
    return [value for _, value in sorted(found)]


def eventually(read, right):
    deadline = time.monotonic() + 60
    while (found := read()) != pytest.approx(right.tolist(), abs=1e-6):
        assert time.monotonic() < deadline, f"{found} is not {right.tolist()}"
        time.sleep(0.1)


def local(addresses):
    return all(re.match(r"(http|ws)://(127\.0\.0\.1|localhost):", address) for address in addresses)


OURS = ("blob:", "anywidget", "regard")  # where a notebook has the widget's code from


@pytest.mark.slow
def test_jupyterlab_shows_the_numbers_of_the_trace(browser, trace, tmp_path):
    pytest.importorskip("jupyterlab")
    fetched = []
    with (
        notebooks.jupyterlab(tmp_path, notebooks.CODE, "regard.show(trace)") as url,
        opened(browser, url, fetched=fetched, about=OURS, viewport={"width": 1280, "height": 1250}) as page,
    ):
        notebooks.run_cells(page, 2)
        shows(page, trace)
        assert accessible(page, ".regard") == []
        picture(page, "widget-jupyterlab", tmp_path)
    assert local(fetched)


@pytest.mark.slow
def test_marimo_shows_the_numbers_of_the_trace(browser, trace, tmp_path):
    pytest.importorskip("marimo")
    fetched = []
    with (
        notebooks.marimo(tmp_path, notebooks.CODE, "regard.show(trace)") as url,
        opened(browser, url, fetched=fetched, about=OURS) as page,
    ):
        shows(page, trace)
    assert local(fetched)
