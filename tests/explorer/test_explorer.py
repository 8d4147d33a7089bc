"""The explorer's service over real connections: every endpoint, what it refuses, and who may ask."""

import json
import math
import os
import random
import re
import socket
from urllib.parse import quote

import numpy as np
import pytest
import torch
from serving import serving

import regard
from regard.align import links, parse, quality
from regard.explorer import page
from regard.explorer.answers import Answers
from regard.explorer.http import api, shapes
from regard.explorer.http.limits import ServiceLimits
from regard.explorer.http.schema import ANNOTATIONS, CHECKED, Invalid, check_value, from_text
from regard.explorer.http.security import POLICY
from regard.explorer.scores import counterfactual, formula, terms

TEXT = "the red dog sees a cat ."
TARGET = "le chien rouge voit un chat ."
LIMITS = ServiceLimits()


@pytest.fixture(scope="module")
def client(folders, tmp_path_factory):
    pages = tmp_path_factory.mktemp("page")
    (pages / "assets").mkdir()
    (pages / "index.html").write_text("<!doctype html><title>regard</title>")
    (pages / "assets" / "app-1a2b.js").write_text("export {};")
    (pages / ".secret").write_text("no")
    with serving(folders, files=page.files(pages), given={"given": given()}) as client:
        yield client


def given():
    """A trace that was recorded elsewhere."""
    torch.manual_seed(4)
    trace = regard.Trace.of(*torch.randn(3, 1, 2, 7, 8), mask=regard.mask.Causal())
    trace.label(["[CLS]", "the", "dog", "##house", "'s", "door", "[SEP]"])
    return Answers(trace, name="given.safetensors")


@pytest.fixture(scope="module")
def translator(folders):
    return regard.load(folders[0], device="cpu")


@pytest.fixture(scope="module")
def traced(client):
    """An answer of /api/trace for each model."""
    asked = {name: {"text": TEXT, "target": TARGET, "model": name} for name in ("transformer", "rnn")}
    return {name: good(client.post("/api/trace", body), "Trace") for name, body in asked.items()}


def good(answer, schema=None):
    """The JSON of an answer that keeps to the description."""
    assert answer.status == 200, answer
    known = shapes.schemas(LIMITS)
    return answer.json if schema is None else check_value(answer.json, known[schema], known=known)


def recorded(translator, text=TEXT, target=TARGET):
    """The same trace, made here."""
    source, wanted = (translator.subwords.encode(side).ids for side in (text, target))
    with torch.no_grad(), regard.record(translator.model) as trace:
        translator.model(torch.tensor([[*source, 2]]), torch.tensor([[1, *wanted]]))
    return trace


# --- every endpoint ---


def test_health_metrics_and_description(client):
    assert good(client.get("/api/health"), "Health") == {"status": "ok"}
    described = good(client.get("/api/openapi.json"))
    assert described["openapi"] == "3.1.0" and described["info"]["version"] == regard.__version__
    assert set(described["paths"]["/api/trace/{id}/row"]["get"]["responses"]) >= {"200", "404", "422", "429"}
    metrics = client.get("/api/metrics")
    assert metrics.headers["content-type"].startswith("text/plain")
    for line in metrics.body.decode().splitlines():
        assert re.fullmatch(r"# TYPE regard_\w+ (counter|gauge|histogram)|regard_\w+(\{[^}]*\})? [0-9.e+-]+", line)
    before = client.metric('regard_requests_total{route="health",status="200"}')
    client.get("/api/health")
    assert client.metric('regard_requests_total{route="health",status="200"}') == before + 1


def test_models(client):
    answer = good(client.get("/api/models"), "Models")
    assert [(m["name"], m["architecture"], m["default"], m["limit"]) for m in answer["models"]] == [
        ("transformer", "Transformer", True, 64),
        ("rnn", "RNNSeq2Seq", False, 64),
    ]
    kinds = [
        [(k["kind"], k["layers"], k["heads"], k["rows"], k["columns"]) for k in m["kinds"]] for m in answer["models"]
    ]
    assert kinds[0] == [
        ("self", 2, 4, "source", "source"),
        ("decoder", 3, 4, "target", "target"),
        ("cross", 3, 4, "target", "source"),
    ]
    assert kinds[1] == [("cross", 1, 2, "target", "source")]
    assert answer["scores"] == list(shapes.SCORES) and answer["measures"] == ["weights", "norms"]


def test_translate(client, translator):
    answer = good(client.post("/api/translate", {"text": TEXT, "beam": 2}), "Translation")
    (output,) = translator.outputs([TEXT], beam=2, attention=True)
    assert answer["translation"] == output.text and answer["model"] == "transformer" and answer["note"] == ""
    weights = translator.word_weights(output.translations[0])
    np.testing.assert_allclose(answer["alignment"]["weights"], weights, atol=1e-6)
    assert {tuple(link) for link in answer["alignment"]["links"]} == links(weights)
    assert (answer["alignment"]["layer"], answer["alignment"]["head"], answer["alignment"]["shift"]) == (1, None, True)


def test_sides_cover_their_texts(client):
    answer = good(client.post("/api/translate", {"text": " the  red 🐈 dog's", "beam": 1}), "Translation")
    for side in (answer["source"], answer["target"]):
        assert [word["text"] for word in side["words"]] == side["text"].split()
        for each in [*side["tokens"], *side["words"]]:
            assert each["text"] in ("<s>", "</s>") or each["text"] == side["text"][each["start"] : each["end"]]
        for token in side["tokens"]:
            word = side["words"][token["word"]] if token["word"] >= 0 else None
            assert word is None or token["end"] <= word["end"]
            assert word is None or not token["text"].strip() or word["start"] <= token["start"]
    assert answer["source"]["tokens"][-1]["text"] == "</s>" and answer["source"]["tokens"][-1]["word"] == -1
    assert answer["target"]["tokens"][0]["text"] == "<s>" and answer["target"]["tokens"][0]["word"] == -1


@pytest.mark.parametrize("text", ["", "  ", "\n"])
def test_an_empty_text_is_a_bad_request(client, text):
    for path in ("/api/translate", "/api/trace"):
        answer = client.post(path, {"text": text})
        assert answer.status == 400 and answer.error == "text: it is empty; send some text"
    answer = client.post("/api/trace", {"text": "a", "target": text})
    assert answer.status == 400 and answer.error.startswith("target: it is empty")


@pytest.mark.parametrize("end", [". ", "。"])
def test_a_text_of_many_sentences_keeps_its_words(client, end):
    text = f"the dog sees a cat{end}" * 20
    answer = good(client.post("/api/translate", {"text": text, "beam": 1}), "Translation")
    assert "translated as 20 sentences" in answer["note"]
    rows = answer["alignment"]["weights"]
    assert len(rows) == len(answer["target"]["words"])
    assert all(len(row) == len(answer["source"]["words"]) for row in rows)
    assert answer["source"]["words"][5]["start"] >= len(f"the dog sees a cat{end}".rstrip())
    for side in (answer["source"], answer["target"]):
        starts = [token["start"] for token in side["tokens"]]
        assert starts == sorted(starts)
        for each in [*side["words"], *side["tokens"]]:
            assert each["text"] in ("<s>", "</s>", side["text"][each["start"] : each["end"]])


def test_text_comes_back_as_text(client):
    evil = "<img src=x onerror=alert(1)> \"&' </script>"
    answer = client.post("/api/translate", {"text": evil, "beam": 1})
    assert (
        answer.headers["content-type"] == "application/json" and answer.headers["x-content-type-options"] == "nosniff"
    )
    assert good(answer, "Translation")["source"]["text"] == evil
    assert "".join(word["text"] for word in answer.json["source"]["words"]) == evil.replace(" ", "")
    traced = good(client.post("/api/trace", {"text": evil, "target": evil}), "Trace")
    assert traced["target"]["text"] == evil


@pytest.mark.parametrize("name", ["transformer", "rnn"])
def test_trace_describes_both_sides(traced, name):
    answer = traced[name]
    assert answer["translation"] == TARGET and answer["model"] == name
    assert len(answer["source"]["words"]) == len(answer["target"]["words"]) == 7
    assert np.shape(answer["alignment"]["weights"]) == (7, 7)
    assert [k["kind"] for k in answer["kinds"]] == (
        ["self", "decoder", "cross"] if name == "transformer" else ["cross"]
    )


def test_trace_translates_without_a_target(client, translator):
    answer = good(client.post("/api/trace", {"text": TEXT, "beam": 3}), "Trace")
    assert answer["translation"] == translator.translate(TEXT, beam=3)


def test_a_translation_of_its_own_may_be_longer_than_a_given_one(client):
    answer = good(client.post("/api/trace", {"text": "the dog sees a cat " * 10, "beam": 1}), "Trace")
    assert len(answer["target"]["tokens"]) > 65
    assert "; the maximum" in client.post("/api/trace", {"text": "a", "target": answer["translation"]}).error


@pytest.mark.parametrize("kind", ["self", "decoder", "cross"])
@pytest.mark.parametrize("measure", ["weights", "norms"])
def test_rows_are_those_of_a_trace(client, translator, traced, kind, measure):
    trace, answer = recorded(translator), traced["transformer"]
    read = getattr(trace, measure)
    path = f"/api/trace/{answer['id']}/row?kind={kind}&layer=1&query=2&measure={measure}"
    for head, right in (("3", read(1, 3, 2, kind=kind)), ("mean", read(1, None, 2, kind=kind).mean(0))):
        row = good(client.get(f"{path}&head={head}"), "Row")
        np.testing.assert_allclose(row["values"], right, rtol=1e-5, atol=1e-7)
    assert (row["kind"], row["layer"], row["head"], row["query"]) == (kind, 1, "mean", 2)
    sides = {"self": "source", "decoder": "target", "cross": "source"}
    assert len(row["values"]) == len(answer[sides[kind]]["tokens"])
    row = good(client.get(f"{path}&head=3"), "Row")
    assert math.isclose(row["entropy"], trace.entropy(1, 3, kind=kind)[2].item(), abs_tol=1e-5)


def test_a_recurrent_decoder_has_a_row_per_step(client, folders, traced):
    trace, answer = recorded(regard.load(folders[1], device="cpu")), traced["rnn"]
    right = trace.weights(0, 1, kind="cross", call=None)
    assert len(right) == len(answer["target"]["tokens"])
    for query in (0, len(right) - 1):
        row = good(client.get(f"/api/trace/{answer['id']}/row?kind=cross&head=1&query={query}"), "Row")
        np.testing.assert_allclose(row["values"], right[query], rtol=1e-5, atol=1e-7)


def tile(client, path):
    answer = client.get(path)
    assert answer.status == 200, answer
    assert answer.headers["content-type"] == "application/octet-stream"
    shape = tuple(map(int, answer.headers["x-regard-shape"].split(",")))
    return np.frombuffer(answer.body, "<f4").reshape(shape)


@pytest.mark.parametrize("kind", ["self", "decoder", "cross"])
def test_tiles_are_those_of_a_trace(client, translator, traced, kind):
    trace, path = recorded(translator), f"/api/trace/{traced['transformer']['id']}/tile?kind={kind}&layer=1"
    np.testing.assert_allclose(tile(client, f"{path}&head=2"), trace.weights(1, 2, kind=kind), rtol=1e-5, atol=1e-7)
    mean = trace.weights(1, None, kind=kind).mean(0)
    np.testing.assert_allclose(tile(client, f"{path}&head=mean"), mean, rtol=1e-5, atol=1e-7)
    for pool in ("max", "sum"):
        some = tile(client, f"{path}&head=2&rows=1:7&cols=2:7&height=4&width=2&pool={pool}")
        right = trace.tile(1, 2, (1, 7), (2, 7), (4, 2), pool, kind=kind)
        np.testing.assert_allclose(some, right, rtol=1e-5, atol=1e-7)


def test_tiles_of_a_mean_and_of_a_recurrent_decoder_are_cut_alike(client, folders, traced):
    answer = traced["rnn"]
    whole = recorded(regard.load(folders[1], device="cpu")).weights(0, None, kind="cross", call=None).mean(0)
    path = f"/api/trace/{answer['id']}/tile?kind=cross&head=mean&height=5&width=3&pool=sum"
    small = tile(client, path)
    cells = [-(-n // count) for n, count in zip(whole.shape, (5, 3), strict=True)]
    right = [[c.sum() for c in r.split(cells[1], dim=1)] for r in whole.split(cells[0])]
    np.testing.assert_allclose(small, right, rtol=1e-5)


@pytest.mark.parametrize("kind", ["self", "decoder", "cross"])
def test_steps_are_those_of_the_model(client, translator, traced, kind):
    path = f"/api/trace/{traced['transformer']['id']}/steps?kind={kind}&layer=1&head=2&query=3"
    steps = good(client.get(path), "Steps")
    right = recorded(translator).steps(1, 2, 3, kind=kind)
    for name in ("q", "k", "v", "products", "similarity", "scaled", "weights", "weighted", "context", "output"):
        np.testing.assert_allclose(steps[name], getattr(right, name), rtol=1e-5, atol=1e-6, err_msg=name)
    assert [m is None for m in steps["masked"]] == right.masked.isinf().tolist()
    assert kind != "decoder" or None in steps["masked"]
    assert steps["difference"] < 1e-5 and not steps["counterfactual"]
    assert steps["formula"] == "q·k / √d" and steps["scale"] == 8**-0.5
    assert steps["key_input"] is None
    keyed = good(client.get(f"{path}&key=1"), "Steps")
    np.testing.assert_allclose(keyed["key_input"], right.key_inputs[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("score", shapes.SCORES[1:])
def test_other_scores_are_counterfactual_and_equal_regard_steps(client, translator, traced, score):
    path = f"/api/trace/{traced['transformer']['id']}/steps?kind=self&layer=0&head=1&query=4"
    trained = good(client.get(path), "Steps")
    steps = good(client.get(f"{path}&score={score}"), "Steps")
    assert steps["counterfactual"] and steps["recorded"] is steps["difference"] is None
    trace = recorded(translator)
    q = torch.stack([trace.steps(0, 1, i).q for i in range(len(trained["k"]))])[None]
    k, v = torch.tensor(trained["k"])[None], torch.tensor(trained["v"])[None]
    right = regard.steps(q, k, v, score=counterfactual(score, 8))
    for name in ("scaled", "weights", "context"):
        np.testing.assert_allclose(steps[name], getattr(right, name)[0, 4].detach(), rtol=1e-4, atol=1e-6)
    again = good(client.get(f"{path}&score={score}"), "Steps")
    assert again == steps


@pytest.mark.parametrize("score", ["trained", "dot", "additive"])
def test_steps_of_a_recurrent_decoder(client, folders, traced, score):
    answer = traced["rnn"]
    last = len(answer["target"]["tokens"]) - 1
    path = f"/api/trace/{answer['id']}/steps?kind=cross&head=1&query={last}&score={score}"
    steps = good(client.get(path), "Steps")
    assert steps["k"] == steps["v"] and len(steps["k"]) == len(answer["source"]["tokens"])
    q, k = torch.tensor(steps["q"]), torch.tensor(steps["k"])
    if score == "trained":
        assert steps["formula"] == "vᵀ tanh(W q + U k)" and steps["difference"] < 1e-5
        right = regard.load(folders[1], device="cpu").model.score(q.expand(1, 2, 1, -1), k.expand(1, 2, -1, -1))[
            0, 1, 0
        ]
    else:
        assert steps["counterfactual"]
        right = counterfactual(score, len(q))(q[None, None], k[None])[0, 0]
    np.testing.assert_allclose(steps["scaled"], right.detach(), rtol=1e-4, atol=1e-6)


def test_what_a_recurrent_decoder_has_not(client, traced):
    answer = client.get(f"/api/trace/{traced['rnn']['id']}/row?kind=cross&measure=norms")
    assert answer.status == 422 and "output projection" in answer.error
    assert client.get(f"/api/trace/{traced['rnn']['id']}/row?kind=self").status == 422


def test_align(client, translator, traced):
    answer = traced["transformer"]
    path = f"/api/trace/{answer['id']}/align"
    assert good(client.get(path), "Alignment") == answer["alignment"]
    (output,) = translator.forced([(TEXT, TARGET)], attention=True)
    for look in ({"layer": 0, "head": 2, "shift": False}, {"layer": 2, "head": 0, "shift": True}):
        asked = "&".join(f"{name}={int(value)}" for name, value in look.items())
        found = good(client.get(f"{path}?{asked}"), "Alignment")
        right = translator.word_weights(output.translations[0], **look)
        np.testing.assert_allclose(found["weights"], right, rtol=1e-4, atol=1e-6)
        assert {name: found[name] for name in look} == look and found["aer"] is None
    gold = "0-0 1-2 2p1 6-6"
    for written in (gold, "0-0 1-2 2-1p 6-6"):
        found = good(client.get(f"{path}?gold={written.replace(' ', '%20')}"), "Alignment")
        linked = {tuple(link) for link in found["links"]}
        assert found["aer"] == quality([linked], [parse(gold)]).aer
    assert "source word 7" in client.get(f"{path}?gold=7-0").error
    assert "expected links" in client.get(f"{path}?gold=what").error


# --- what is refused ---


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        (b"", 400, "not JSON"),
        (b"{", 400, "not JSON"),
        (b'{"text": "a"} x', 400, "not JSON"),
        (b'{"text": "\xff"}', 400, "not JSON"),
        ('{"text": "a"}'.encode("utf-16"), 400, "not JSON"),
        (b'{"text": "a", "beam": NaN}', 400, "NaN is not a JSON number"),
        (b'{"text": "a", "beam": -Infinity}', 400, "-Infinity"),
        (b'{"text": "a", "beam": ' + b"9" * 5000 + b"}", 400, "not JSON"),
        (b'{"text": "a", "beam": 1e999}', 422, "beam: expected an integer"),
        (b"[" * 30_000, 400, "not"),
        (b'{"text":' * 7_000 + b"1" + b"}" * 7_000, 400, "not"),
        (b"null", 422, "body: expected an object"),
        (b"[]", 422, "body: expected an object"),
        (b"{}", 422, "text is missing"),
        (b'{"text": 5}', 422, "text: expected a string, got 5"),
        (b'{"text": null}', 422, "text: expected a string, got null"),
        (b'{"text": "a", "beam": 0}', 422, "beam: expected 1 to 8, got 0"),
        (b'{"text": "a", "beam": 9}', 422, "beam: expected 1 to 8, got 9"),
        (b'{"text": "a", "beam": true}', 422, "beam: expected an integer"),
        (b'{"text": "a", "beam": 1.5}', 422, "beam: expected an integer"),
        (b'{"text": "a", "x": 1}', 422, 'unknown field "x"'),
        (b'{"text": "a\\ud800"}', 422, "lone surrogate at character 1"),
        (b'{"text": "a", "model": "nope"}', 422, "there is no 'nope'; there are transformer, rnn"),
        (b'{"text": "a", "model": "../transformer"}', 422, "there is no"),
        (b'{"text": "' + b"a" * 2_001 + b'"}', 422, "2,001 characters; the maximum is 2,000"),
        (b'{"text": "' + b"a " * 301 + b'"}', 422, "301 words; the maximum is 300"),
        (b'{"text": "' + b"a" * 70_000 + b'"}', 413, "too large"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_bad_bodies(client, body, status, reason):
    answer = client.post("/api/translate", body)
    assert (answer.status, reason in answer.error) == (status, True), answer


def test_a_whole_number_may_be_written_with_a_point(client):
    assert client.post("/api/translate", b'{"text": "a", "beam": 2.0}').status == 200


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"text": "the dog. " * 40, "target": "a"}, "text: 121 subwords; the maximum in a trace is 64"),
        ({"text": "a", "target": "xyz " * 40}, "target: "),
        ({"text": "a", "target": 1}, "target: expected a string"),
        ({"text": "a", "target": "b\udfff"}, "target: not Unicode text: a lone surrogate at character 1"),
    ],
)
def test_what_cannot_be_traced(client, body, reason):
    answer = client.post("/api/trace", body)
    assert answer.status == 422 and reason in answer.error


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded", "application/jsonx"])
def test_only_json_is_posted(client, kind):
    headers = {} if kind is None else {"Content-Type": kind}
    answer = client.ask("POST", "/api/translate", b'{"text": "a"}', headers)
    assert answer.status == 415 and "application/json" in answer.error


def test_a_large_body_without_a_length_is_cut_off(client):
    connection = client.connect()
    connection.request(
        "POST",
        "/api/translate",
        iter([b" " * 10_000] * 20),
        {"Content-Type": "application/json"},
        encode_chunked=True,
    )
    assert connection.getresponse().status == 413
    connection.close()


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("row?kind=x", "kind: expected one of self, decoder, cross"),
        ("row?layer=2", "layer: there are 2 of kind 'self', from 0; got 2"),
        ("row?layer=-1", "layer: expected 0 to"),
        ("row?layer=1.0", "layer: expected an integer"),
        ("row?layer=" + "9" * 400, "layer: expected an integer"),
        ("row?head=4", "head: there are 4"),
        ("row?head=x", "head: expected the number of a head, or mean"),
        ("row?query=99", "there are 8 queries"),
        ("row?measure=magic", "measure: expected one of weights, norms, rollout, gradient"),
        ("row?nix=1", 'unknown parameter "nix"'),
        ("tile?rows=3:1", "rows: expected first:end within 0:8"),
        ("tile?cols=0:99", "cols: expected first:end"),
        ("tile?rows=a:b", "rows: expected first:end"),
        ("tile?height=0", "height: expected 1 to 512"),
        ("tile?pool=mean", "pool: expected one of max, sum"),
        ("steps?head=mean", "head: the steps are those of one head"),
        ("steps?score=magic", "score: expected one of trained, dot"),
        ("steps?key=99", "key: there are 8, from 0; got 99"),
        ("align?shift=2", "shift: expected one of 0, 1"),
        ("align?layer=9", "layer: there are 3"),
        ("align?head=9", "head of cross-attention: expected one of 4"),
    ],
)
def test_bad_questions(client, traced, query, reason):
    answer = client.get(f"/api/trace/{traced['transformer']['id']}/{query}")
    assert answer.status == 422 and reason in answer.error, answer


@pytest.mark.parametrize("name", ["row", "tile", "steps", "align", "tokens", "search", "heads", "effects"])
def test_unknown_traces(client, name):
    for id in ("AAAAAAAAAAAAAAAA", "x" * 60, "%00", "..%2f..%2fetc%2fpasswd"):
        answer = client.get(f"/api/trace/{id}/{name}")
        assert answer.status == 404 and ("expired" in answer.error or "nothing here" in answer.error)


def test_old_traces_go(folders):
    with serving(folders[:1], traces=2) as client:
        ids = [client.post("/api/trace", {"text": "a", "target": "b"}).json["id"] for _ in range(3)]
        assert len(set(ids)) == 3
        assert [client.get(f"/api/trace/{id}/row").status for id in ids] == [404, 200, 200]
        assert client.get(f"/api/trace/{ids[1]}/row").status == 200  # used last, so the other goes first
        client.post("/api/trace", {"text": "a", "target": "b"})
        assert [client.get(f"/api/trace/{id}/row").status for id in ids] == [404, 200, 404]
        assert client.get(f"/api/trace/{ids[0]}/row").error == "this trace has expired: send the sentence again"
        assert client.metric("regard_traces ") == 2 and client.metric("regard_trace_bytes ") > 1000
    with serving(folders[:1], trace_bytes=1) as client:
        ids = [client.post("/api/trace", {"text": "a", "target": "b"}).json["id"] for _ in range(2)]
        assert [client.get(f"/api/trace/{id}/row").status for id in ids] == [404, 200]


def test_wrong_methods_and_addresses(client):
    assert client.get("/api/translate").status == 405
    assert client.ask("DELETE", "/api/health").status == 405
    assert client.get("/api").status == client.get("/api/health/").status == 404
    assert "nothing here" in client.get("/api/nope").error


# --- who may ask, and the page ---


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:8000", "[::1]:8000", "localhost."])
def test_names_of_this_machine(client, host):
    assert client.get("/api/health", Host=host).status == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost@evil", "10.0.0.1", "", "localhost:x", "[::1", "a b"]
)
@pytest.mark.parametrize("path", ["/api/health", "/", "/nope"])
def test_dns_rebinding(client, host, path):
    answer = client.get(path, Host=host)
    assert answer.status in (400, 403) and b"dog" not in answer.body


def test_two_hosts_or_none(client):
    for lines in (b"Host: localhost\r\nHost: evil.example\r\n", b""):
        with socket.create_connection(("127.0.0.1", client.port), 10) as connection:
            connection.sendall(b"GET /api/health HTTP/1.1\r\n" + lines + b"Connection: close\r\n\r\n")
            assert connection.makefile("rb").readline().split()[1] in (b"400", b"403")


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"},
    ],
)
def test_other_sites_may_not_ask(client, headers):
    for answer in (client.get("/api/models", **headers), client.post("/api/translate", {"text": "a"}, **headers)):
        assert answer.status == 403 and "only the explorer's own page" in answer.error
    preflight = client.ask("OPTIONS", "/api/translate", headers={**headers, "Access-Control-Request-Method": "POST"})
    assert preflight.status == 403 and not [name for name in preflight.headers if name.startswith("access-control")]


def test_the_own_page_may_ask(client):
    own = {"Origin": f"http://127.0.0.1:{client.port}", "Sec-Fetch-Site": "same-origin"}
    assert client.post("/api/translate", {"text": "a"}, **own).status == 200
    linked = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert client.get("/", **linked).status == 200  # a link to a shared selection


def test_every_answer_has_the_headers(client):
    answers = [client.get(path) for path in ("/", "/api/health", "/nope", "/assets/app-1a2b.js")]
    for answer in [*answers, client.get("/", Host="evil.example"), client.post("/api/translate", b"{")]:
        assert answer.headers["content-security-policy"] == POLICY and "unsafe" not in POLICY
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cross-origin-resource-policy"] == answer.headers["cross-origin-opener-policy"]
        assert "server" not in answer.headers
    assert answers[1].headers["cache-control"] == "no-store"


def test_the_page(client):
    index, asset = client.get("/"), client.get("/assets/app-1a2b.js")
    assert index.headers["content-type"] == "text/html; charset=utf-8" and index.headers["cache-control"] == "no-cache"
    assert asset.body == b"export {};" and "immutable" in asset.headers["cache-control"]
    assert asset.headers["content-type"].startswith("text/javascript")


@pytest.mark.parametrize(
    "path",
    [
        "/.secret",
        "/index.html",
        "/assets/",
        "/assets/../.secret",
        "/../../etc/passwd",
        "/assets/..%2f.secret",
        "//etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/assets/app-1a2b.js%00",
        "/page/index.html",
        "/etc/passwd",
    ],
)
def test_only_listed_files_are_served(client, path):
    assert client.get(path).status in (400, 404)


def test_without_a_page(folders, tmp_path):
    with serving(folders[:1]) as client:
        assert client.get("/").status == 404
    missing = page.files(tmp_path / "nowhere")
    assert list(missing) == ["/"] and b"not there" in missing["/"].content


def test_an_address_of_the_network_answers_to_addresses_and_given_names(folders):
    with serving(folders[:1], host="0.0.0.0", extra=["box.lan"]) as client:
        statuses = {
            host: client.get("/api/health", Host=host).status for host in ("10.1.2.3:80", "box.lan", "other.lan")
        }
    assert statuses == {"10.1.2.3:80": 200, "box.lan": 200, "other.lan": 403}


# --- fuzz ---


def test_the_description_uses_only_what_is_checked():
    def keywords(schema):
        yield from schema
        for inner in [*schema.get("properties", {}).values(), *([schema["items"]] if "items" in schema else [])]:
            yield from keywords(inner)

    every = [*shapes.schemas(LIMITS).values(), *(s for o in api.operations(LIMITS) for s in o.parameters.values())]
    assert {word for schema in every for word in keywords(schema)} <= CHECKED | ANNOTATIONS


ODD = [None, True, False, -1, 0, 1, 7, 2**63, 1.5, -1e300, "", " ", "a", "<s>", "\0", "\u202e", "😀", "é" * 300, [], {}]
ODD += [[[]], {"a": {}}, "9" * 30, "mean", "0:1", "1:0", "%", "../", "self", "cross", "\n\n", "a. " * 40, "\ud800"]


def like(draw, schema, known):
    """A value that keeps to a schema, most of the time."""
    if draw.random() < 0.15:
        return draw.choice(ODD)
    if "$ref" in schema:
        schema = known[schema["$ref"].rsplit("/", 1)[1]]
    if "enum" in schema:
        return draw.choice(schema["enum"])
    if schema["type"] == "integer":
        return draw.randint(schema.get("minimum", -3), min(schema.get("maximum", 9), schema.get("minimum", 0) + 5))
    if schema["type"] == "string":
        words = ["the", "dog", ".", "0", "1:3", "mean", "0-0", "transformer", "rnn", "<img onerror=x>"]
        words += ["self", "decoder", "cross", "tower self"]
        written = [" ".join(draw.choices(words, k=draw.randint(1, 6))), *words]
        return draw.choice([text for text in written if re.search(schema.get("pattern", ""), text)])
    if schema["type"] == "array":
        return [like(draw, schema["items"], known) for _ in range(draw.randint(0, 3))]
    fields = {name: s for name, s in schema["properties"].items() if name in schema["required"] or draw.random() < 0.5}
    return {name: like(draw, s, known) for name, s in fields.items() if draw.random() < 0.95}


@pytest.mark.slow
def test_fuzz_from_the_description(client, traced):
    """Whatever is sent, the answer is one that the description tells of, and never a failure of the service."""
    draw = random.Random(0 if "CI" in os.environ else None)
    described = good(client.get("/api/openapi.json"))
    known, statuses = described["components"]["schemas"], {}
    ids = [*(answer["id"] for answer in traced.values()), "given"]
    for _ in range(600):
        path, methods = draw.choice(list(described["paths"].items()))
        method, operation = next(iter(methods.items()))
        query = []
        for parameter in operation.get("parameters", ()):
            value = like(draw, parameter["schema"], known)
            text = quote(str(value), safe="", errors="surrogatepass")
            if parameter["in"] == "path":
                path = path.replace("{id}", draw.choice(ids) if draw.random() < 0.9 else text or "x")
            elif draw.random() < 0.5:
                query.append(f"{parameter['name']}={text}")
        address = f"{path}?{'&'.join(query)}" if query else path
        if method == "post":
            schema = operation["requestBody"]["content"]["application/json"]["schema"]
            answer = client.post(address, json.dumps(like(draw, schema, known)))
        else:
            answer = client.get(address)
        statuses.setdefault(operation["operationId"], set()).add(answer.status)
        assert str(answer.status) in operation["responses"] and answer.status < 500, (address, answer)
        if answer.status != 200:
            assert answer.error
    assert statuses.keys() == {operation.name for operation in api.operations(LIMITS)}
    for name in ("translate", "trace", "row", "tile", "steps", "align", "tokens", "search", "heads"):
        assert {200, 422} <= statuses[name], (name, statuses)


# --- the checker ---


@pytest.mark.parametrize(
    ("value", "schema", "reason"),
    [
        (
            {"a": [1, "x"]},
            {"properties": {"a": {"items": {"type": "integer"}}}},
            'value.a[1]: expected an integer, got "x"',
        ),
        (3, {"type": ["string", "null"]}, "value: expected a string or null, got 3"),
        ("ab", {"type": "string", "pattern": "^a$"}, "expected ^a$"),
        (0, {"minimum": 1}, "expected at least 1, got 0"),
        ("a" * 100, {"enum": ["x"]}, "..."),
    ],
)
def test_checker(value, schema, reason):
    with pytest.raises(Invalid, match=re.escape(reason)):
        check_value(value, schema)


@pytest.mark.parametrize(
    ("score", "written"),
    [
        ("Dot()", "q·k / √d"),
        ("Rotary(Dot())", "R(i) q · R(j) k / √d"),
        ("Softcap(Dot())", "c · tanh((q·k / √d) / c)"),
        ("Dot() + Location() + Own()", "q·k / √d + q · r(j − i) + Own()"),
        ("Own(Dot())", "Own(Dot())"),
    ],
)
def test_formulas(score, written):
    assert formula(score) == written


@pytest.mark.parametrize(
    ("score", "summed"),
    [
        ("Dot()", "q·k"),
        ("Dot() + ALiBi()", "q·k"),
        ("Relative()", "q·k"),
        ("Rotary(Dot())", "R(i) q · R(j) k"),
        ("Rotary(General())", "qᵀ W k, q and k rotated by position"),
        ("Softcap(Rotary(Dot()))", "R(i) q · R(j) k"),
        ("Dot() + Additive()", "q·k + vᵀ tanh(W q + U k)"),
        ("Location()", ""),
        ("Dot() + Own()", ""),
    ],
)
def test_terms_are_what_is_summed_before_it_is_scaled(score, summed):
    assert terms(score) == summed


def test_parameters_are_numbers_only_if_they_look_so():
    for text in ("", "٣", "1_0", " 1", "0x1", "1e3", "--1"):
        with pytest.raises(Invalid):
            from_text(text, {"type": "integer"}, where="layer")
    assert from_text("-12", {"type": "integer"}, where="layer") == -12
