"""A trace with NaN in it is shown: over HTTP in JSON that has no such number, and on the page as what it is."""

import math

import numpy as np
import pytest
import torch
from browsing import opened
from serving import save_models, serving

import regard
from regard.explorer import page as pages
from regard.explorer.files import open_traces as traces_of
from regard.explorer.models import Models
from regard.mask import Causal
from regard.score import Bias

BROKEN = 2  # the key whose vector is NaN, in head 1


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    q, k, v = torch.randn(3, 1, 2, 6, 4)
    k[0, 1, BROKEN] = math.nan
    trace = regard.Trace.of(q, k, v, mask=Causal())
    trace.label(["this", "is", "NaN", "and", "Infinity", "."])
    path = tmp_path_factory.mktemp("nan") / "broken.safetensors"
    trace.save(path)
    with serving(Models([]), files=pages.files(), given=traces_of([path])) as client:
        yield client


def test_answers_have_it(service):
    def ask(what, **values):
        query = "&".join(f"{name}={value}" for name, value in values.items())
        answer = service.get(f"/api/trace/broken/{what}?{query}")
        assert answer.status == 200, answer.body
        return answer.json if what != "tile" else np.frombuffer(answer.body, "<f4")

    fine, broken = ask("row", head=1, query=1), ask("row", head=1, query=4)
    assert sum(fine["values"]) == pytest.approx(1) and isinstance(fine["entropy"], float)
    assert broken["values"] == ["NaN"] * 6 and broken["entropy"] == "NaN"
    assert ask("row", head="mean", query=4)["values"] == ["NaN"] * 6
    assert "NaN" not in str(ask("row", head=0, query=4))
    steps = ask("steps", head=1, query=4, key=BROKEN)
    assert steps["weights"] == ["NaN"] * 6 and steps["masked"][5] is None and steps["k"][BROKEN] == ["NaN"] * 4
    assert steps["difference"] in ("NaN", None) and steps["context"] == ["NaN"] * 4
    assert ask("steps", head=1, query=4, score="additive")["weights"][0] == "NaN"
    assert ask("heads")["entropy"][0][1] == "NaN" and isinstance(ask("heads")["entropy"][0][0], float)
    assert np.isnan(ask("tile", head=1)).any() and ask("row", head=1, query=4, measure="rollout")["values"]
    assert ask("tokens", side="rows")["tokens"][BROKEN] == "NaN" and ask("search", text="NaN")["matches"] == [BROKEN]


def test_a_translator_that_is_broken_is_traced_with_a_given_target(tmp_path):
    """What it translates itself has no probabilities, but what it looks at can be seen."""
    broken = regard.load(save_models(tmp_path)[0], device="cpu")
    torch.nn.init.constant_(broken.model.decoder[0].cross_attention.v_proj.weight, math.nan)
    with serving(Models([broken])) as client:
        answer = client.post("/api/trace", {"text": "the dog", "target": "le chien"})
        assert answer.status == 200 and answer.json["alignment"]["weights"] == [["NaN"] * 2] * 2
        path = f"/api/trace/{answer.json['id']}"
        assert client.get(f"{path}/align?layer=1&head=0").json["weights"] == [["NaN"] * 2] * 2
        assert client.get(f"{path}/effects?kind=cross&layer=0").json["base"] == "NaN"


def test_biases_alone_have_no_vectors():
    trace = regard.Trace.of(*torch.randn(3, 1, 1, 4, 2), score=Bias(torch.full((4, 4), math.inf).triu(1)))
    trace.recorded[0].q = None
    from regard.explorer.answers import Answers

    steps = Answers(trace, name="x").steps(kind="self", layer=0, head="0", query=0)
    assert steps["scaled"] == [0.0, "Infinity", "Infinity", "Infinity"] and steps["scale"] is None


@pytest.mark.slow
def test_the_page_writes_it(browser, service):
    """Where it is largest weights that are told, it stands before them."""
    with opened(browser, f"http://127.0.0.1:{service.port}/#/long?trace=broken&head=1&query=4") as page:
        row = page.get_by_test_id("long-strongest").locator("tbody tr").first
        row.locator("td", has_text="NaN").last.wait_for()
        assert row.inner_text().split() == [str(BROKEN), "NaN", "0", "this", "NaN"]
        page.goto(f"http://127.0.0.1:{service.port}/#/long?trace=broken&head=0&query=4")
        row.locator("td", has_text="1.000").wait_for()
