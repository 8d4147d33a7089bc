"""Traces over HTTP: from files and of any model, their tokens and heads, missing heads, and tiles of long texts."""

import copy
import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from serving import serving
from test_explorer import TARGET, TEXT, good, recorded, tile
from test_explorer_load import soon, start

import regard
from regard import Trace, cli
from regard.explorer.answers import MAX_MATCHES, MAX_TOKENS, SAMPLED_QUERIES, Answers
from regard.explorer.files import open_traces
from regard.explorer.labels import Labels
from regard.explorer.models import Models
from regard.mask import Causal
from regard.score import Additive, Dot, Relative
from regard.trace import Stopped
from regard.trace._stop import check

NONE = Models([])
WORDS = ["[CLS]", "un", "##believ", "##able", "The", "cat", "the", "[SEP]"]


def random_trace(queries=8, heads=2, dim=8, keys=None, score=None, mask=None, seed=0):
    torch.manual_seed(seed)
    q, k, v = (torch.randn(1, heads, n, dim) for n in (queries, keys or queries, keys or queries))
    return Trace.of(q, k, v, score=score, mask=mask)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Traces in files: one labelled, one with as many queries as it has not keys, one long."""
    folder = tmp_path_factory.mktemp("traces")
    labelled = random_trace(mask=Causal())
    labelled.label(WORDS)
    kept = {"labelled": labelled, "a wide one": random_trace(5, keys=7), "long": random_trace(MAX_TOKENS + 1, 1, 4)}
    for name, trace in kept.items():
        trace.save(folder / f"{name}.safetensors")
    return [folder / f"{name}.safetensors" for name in kept]


@pytest.fixture(scope="module")
def shown(files):
    with serving(NONE, given=open_traces(files)) as client:
        yield client


@pytest.fixture(scope="module")
def client(folders):
    with serving(folders) as client:
        yield client


# --- what there is ---


def test_traces_without_a_model(shown):
    assert good(shown.get("/api/models"), "Models")["models"] == []
    for path in ("/api/translate", "/api/trace"):
        answer = shown.post(path, {"text": "a dog"})
        assert answer.status == 409 and "only recorded traces" in answer.error
    traces = good(shown.get("/api/traces"), "Traces")["traces"]
    assert [(t["id"], t["name"]) for t in traces] == [
        ("labelled", "labelled.safetensors"),
        ("a-wide-one", "a wide one.safetensors"),
        ("long", "long.safetensors"),
    ]
    assert [(k["queries"], k["keys"], k["rows"], k["columns"]) for t in traces for k in t["kinds"]] == [
        (8, 8, "source", "source"),
        (5, 7, "target", "source"),
        (MAX_TOKENS + 1, MAX_TOKENS + 1, "source", "source"),
    ]


def test_a_trace_is_described(shown):
    answer = good(shown.get("/api/trace/labelled"), "Trace")
    assert (answer["id"], answer["name"], answer["target"], answer["alignment"]) == (
        "labelled",
        "labelled.safetensors",
        None,
        None,
    )
    source = answer["source"]
    assert [word["text"] for word in source["words"]] == ["unbelievable", "The", "cat", "the"]
    assert [token["word"] for token in source["tokens"]] == [-1, 0, 0, 0, 1, 2, 3, -1]
    for each in [*source["tokens"], *source["words"]]:
        assert source["text"][each["start"] : each["end"]] == each["text"]
    wide = good(shown.get("/api/trace/a-wide-one"), "Trace")
    assert (len(wide["target"]["tokens"]), len(wide["source"]["tokens"])) == (5, 7)
    assert good(shown.get("/api/trace/long"), "Trace")["source"] is None
    assert shown.get("/api/trace/nix").status == 404


def test_a_translation_is_described_again(client):
    posted = good(client.post("/api/trace", {"text": TEXT, "target": TARGET, "model": "rnn"}), "Trace")
    assert good(client.get(f"/api/trace/{posted['id']}"), "Trace") == posted
    assert posted["name"] == TEXT and posted["model"] == "rnn" and posted["kinds"][0]["queries"] > 7


def test_what_needs_a_translation_is_told(shown):
    answers = [shown.get(f"/api/trace/labelled/{name}") for name in ("align", "effects")]
    for answer in [*answers, shown.post("/api/trace/labelled/knockout", {"heads": []})]:
        assert answer.status == 409 and answer.error


@pytest.mark.parametrize(
    ("tokens", "text", "words"),
    [
        (["play", "##ing", "[SEP]", "a"], "playing [SEP] a", [0, 0, -1, 1]),
        (["The", "Ġcat", "fish", "<|endoftext|>", "it"], "The catfish <|endoftext|> it", [0, 1, 1, -1, 2]),
        (["<s>", "▁", "été", "▁la", "</s>"], "<s> été la </s>", [-1, 0, 0, 1, -1]),
        (["a", "b", "##"], "a b ##", [0, 1, 2]),
        ([], "", []),
    ],
)
def test_tokens_make_words(tokens, text, words):
    labels = Labels.of(tokens)
    assert (labels.text, labels.words, labels.tokens) == (text, words, tokens)
    side = labels.side()
    assert [token["word"] for token in side["tokens"]] == words
    assert len(side["words"]) == len({word for word in words if word >= 0})
    assert all(token["text"] for token in side["tokens"])


def test_labels_that_are_too_few_or_too_many():
    trace = random_trace(4)
    trace.texts["self", 0] = ["a", "b"], ["a", "b"]  # as a file may have them
    assert Answers(trace).tokens(kind="self", side="rows")["tokens"] == ["a", "b", "2", "3"]
    trace.texts["self", 0] = list("abcdef"), list("abcdef")
    assert Answers(trace).tokens(kind="self", side="rows")["tokens"] == list("abcd")


def test_any_model(tmp_path):
    """Modules of torch.nn, called twice: rows of both calls, and what the file keeps of it."""
    torch.manual_seed(0)
    model = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    with torch.no_grad(), regard.record(model) as trace:
        model(torch.randn(2, 5, 16))
        model(torch.randn(2, 3, 16))
    trace.save(tmp_path / "model.safetensors")
    right = trace.weights(0, None, call=None, item=1)
    answers = Answers(regard.trace.load(tmp_path / "model.safetensors"), item=1)
    assert answers.kinds()[0]["queries"] == 8 and answers.kinds()[0]["keys"] == 5
    found = answers.tile(kind="self", layer=0, head="mean")
    np.testing.assert_allclose(found.values, right.mean(0), rtol=1e-5, atol=1e-7)
    pooled = answers.tile(kind="self", layer=0, head="1", rows="1:8", cols="1:5", height=3, width=2, pool="sum").values
    cells = [[c.sum() for c in r.split(2, 1)] for r in right[1, 1:8, 1:5].split(3)]
    np.testing.assert_allclose(pooled, cells, rtol=1e-5)
    row = answers.row(kind="self", layer=0, head="0", query=6, measure="weights")
    np.testing.assert_allclose(row["values"], right[0, 6], rtol=1e-5)


# --- tokens and searches ---


def test_tokens(shown):
    path = "/api/trace/labelled/tokens"
    assert good(shown.get(path), "Tokens") == {"tokens": WORDS, "from": 0, "count": 8}
    assert good(shown.get(f"{path}?side=rows&from=6&to=100"), "Tokens") == {
        "tokens": ["the", "[SEP]"],
        "from": 6,
        "count": 8,
    }
    assert good(shown.get(f"{path}?from=9"), "Tokens")["tokens"] == []
    path = "/api/trace/long/tokens"
    assert good(shown.get(path), "Tokens")["tokens"] == [str(i) for i in range(MAX_TOKENS)]
    assert good(shown.get(f"{path}?from={MAX_TOKENS}"), "Tokens")["tokens"] == [str(MAX_TOKENS)]
    assert "maximum per request is 4,096" in shown.get(f"{path}?from=0&to={MAX_TOKENS + 1}").error
    assert shown.get(f"{path}?kind=cross").status == 422


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("the", [4, 6]),
        ("THE%20%20cat", [4]),
        ("unbeliev", [1]),
        ("believable", [2]),
        ("ievabl", [2]),
        ("cat%20the", [5]),
        ("[sep]", [7]),
        (".", []),
        ("e%20c", [4]),
    ],
)
def test_search(shown, text, matches):
    found = good(shown.get(f"/api/trace/labelled/search?text={text}"), "Found")
    assert found == {"matches": matches, "more": False}


def test_searches_have_bounds(shown):
    found = good(shown.get("/api/trace/long/search?text=1"), "Found")
    assert len(found["matches"]) == MAX_MATCHES and found["more"]
    assert found["matches"][:4] == [1, 10, 11, 12]
    assert "nothing to search for" in shown.get("/api/trace/long/search?text=%20").error
    assert shown.get("/api/trace/long/search?text=" + "a" * 201).status == 422


def test_search_in_a_translation(client):
    id = client.post("/api/trace", {"text": TEXT, "target": TARGET}).json["id"]
    told = good(client.get(f"/api/trace/{id}/tokens?kind=cross&side=rows"), "Tokens")["tokens"]
    assert told[0] == "<s>"
    for text, side in (("<s>", "rows"), ("rouge voit", "rows"), ("red dog", "columns"), ("</s>", "columns")):
        path = f"/api/trace/{id}/search?kind=cross&side={side}&text={text.replace(' ', '%20')}"
        (at,) = good(client.get(path), "Found")["matches"]
        every = good(client.get(f"/api/trace/{id}/tokens?kind=cross&side={side}"), "Tokens")["tokens"]
        assert text.startswith(every[at])


# --- heads, and what is missing without them ---


@pytest.mark.parametrize("kind", ["self", "decoder", "cross"])
def test_heads(client, folders, kind):
    id = client.post("/api/trace", {"text": TEXT, "target": TARGET}).json["id"]
    trace = recorded(regard.load(folders[0], device="cpu"))
    found = good(client.get(f"/api/trace/{id}/heads?kind={kind}"), "Heads")
    assert (found["layers"], found["heads"], found["rows"]) == (trace.kinds[kind], 4, found["queries"])
    for name in ("entropy", "sink", "distance"):
        for layer, means in enumerate(found[name]):
            right = getattr(trace, name)(layer, kind=kind).mean(-1)
            np.testing.assert_allclose(means, right, rtol=1e-4, atol=1e-6)


def test_heads_of_a_long_text_are_measured_by_some_of_its_queries(shown):
    found = good(shown.get("/api/trace/long/heads"), "Heads")
    assert (found["rows"], found["queries"]) == (SAMPLED_QUERIES, MAX_TOKENS + 1)
    right = random_trace(MAX_TOKENS + 1, 1, 4).distance(0).mean()
    assert abs(found["distance"][0][0] - right) < 0.05 * right


def log_probs(translator, trace, heads):
    """log p of each token of the target and of its end, from :meth:`Trace.ablate`."""
    logits = trace.ablate(heads)[0].double().log_softmax(-1)
    ids = [*translator.subwords.encode(TARGET).ids, translator.model.eos_id]
    return logits[range(len(ids)), ids]


@pytest.mark.parametrize(
    ("model", "out"),
    [
        (0, [("self", 1, 2)]),
        (0, [("cross", 2, 0), ("cross", 2, 3), ("decoder", 0, 1)]),
        (0, []),
        (1, [("cross", 0, 1)]),
    ],
)
def test_knockout_is_ablate(client, folders, model, out):
    translator = regard.load(folders[model], device="cpu")
    trace, heads = recorded(translator), {}
    for kind, layer, head in out:
        heads.setdefault((kind, layer), []).append(head)
    base, right = log_probs(translator, trace, {}), log_probs(translator, trace, heads)
    id = client.post("/api/trace", {"text": TEXT, "target": TARGET, "model": translator.name}).json["id"]
    body = {"heads": [{"kind": kind, "layer": layer, "head": head} for kind, layer, head in out]}
    found = good(client.post(f"/api/trace/{id}/knockout", body), "Without")
    np.testing.assert_allclose(found["tokens"], right - base, rtol=1e-5, atol=1e-6)
    for name, value in (("base", base.sum()), ("log_prob", right.sum()), ("change", (right - base).sum())):
        assert math.isclose(found[name], value, rel_tol=1e-6, abs_tol=1e-5), name
    assert (found["change"] == 0) == (not out)
    assert math.isclose(found["base"], translator.forced([(TEXT, TARGET)])[0].translations[0].log_prob, rel_tol=1e-5)


def test_effects_are_those_of_each_head_alone(client, folders):
    translator = regard.load(folders[0], device="cpu")
    trace = recorded(translator)
    id = client.post("/api/trace", {"text": TEXT, "target": TARGET}).json["id"]
    found = good(client.get(f"/api/trace/{id}/effects?kind=cross"), "Effects")
    base = log_probs(translator, trace, {}).sum()
    right = [[log_probs(translator, trace, {("cross", i): [h]}).sum() - base for h in range(4)] for i in range(3)]
    np.testing.assert_allclose(found["change"], right, rtol=1e-5, atol=1e-5)
    assert math.isclose(found["base"], base, rel_tol=1e-6)


@pytest.mark.parametrize(
    ("heads", "reason"),
    [
        ([{"kind": "self", "layer": 9, "head": 0}], "layer: there are 2"),
        ([{"kind": "self", "layer": 0, "head": 4}], "head: there are 4"),
        ([{"kind": "nix", "layer": 0, "head": 0}], "heads[0].kind: expected one of"),
        ([{"kind": "self", "layer": -1, "head": 0}], "heads[0].layer: expected 0 to"),
        ([{"kind": "self", "layer": 0}], "head is missing"),
        ("all", "heads: expected an array"),
    ],
)
def test_bad_heads(client, heads, reason):
    id = client.post("/api/trace", {"text": "a", "target": "b"}).json["id"]
    answer = client.post(f"/api/trace/{id}/knockout", {"heads": heads})
    assert answer.status == 422 and reason in answer.error


# --- more measures ---


def test_rollout(client, folders):
    id = client.post("/api/trace", {"text": TEXT, "target": TARGET}).json["id"]
    trace = recorded(regard.load(folders[0], device="cpu"))
    for layer in (0, 1):
        row = good(client.get(f"/api/trace/{id}/row?layer={layer}&query=3&measure=rollout"), "Row")
        np.testing.assert_allclose(row["values"], trace.rollout(3, layer=layer), rtol=1e-4, atol=1e-7)
    answer = client.get(f"/api/trace/{id}/row?kind=cross&query=3&measure=rollout")
    assert answer.status == 422 and "layers of kind self" in answer.error
    answer = client.get(f"/api/trace/{id}/row?measure=gradient")
    assert answer.status == 422 and "gradients=True" in answer.error


def test_gradients_where_they_were_recorded(tmp_path):
    torch.manual_seed(0)
    model = regard.nn.EncoderLayer(16, 2)
    with regard.record(model, gradients=True) as trace:
        model(torch.randn(1, 5, 16)).square().sum().backward()
    trace.save(tmp_path / "with.safetensors")
    with serving(NONE, given=open_traces([tmp_path / "with.safetensors"])) as client:
        row = good(client.get("/api/trace/with/row?head=1&query=2&measure=gradient"), "Row")
        np.testing.assert_allclose(row["values"], trace.gradient(0, 1, 2).detach(), rtol=1e-4, atol=1e-7)
        row = good(client.get("/api/trace/with/row?head=mean&query=2&measure=rollout"), "Row")
        assert math.isclose(sum(row["values"]), 1.0, rel_tol=1e-5)


# --- tiles of long texts ---

SCORES = {"dot": Dot, "additive": lambda: Additive(16, 16, 8), "relative": lambda: Relative(16, 6)}


def long_text(name, count):
    """A causal head of so many tokens, some keys louder than others; and its score, queries and keys."""
    torch.manual_seed(1)
    score, q, k = SCORES[name](), torch.randn(1, 1, count, 16), torch.randn(1, 1, count, 16)
    k[:, :, ::97] *= 3
    if name == "additive":
        score.v.data *= 4
    return Trace.of(q, k, k, score=score, mask=Causal()), score, q, k


def dense(score, q, k, rows, dtype=torch.float64):
    """softmax(E) of some rows by the formula, all keys at once."""
    with torch.no_grad():
        e = copy.deepcopy(score).to(dtype)(q[:, :, rows[0] : rows[1]].to(dtype), k.to(dtype), rows[0])[0, 0]
    return e.masked_fill(torch.arange(k.shape[2]) > torch.arange(*rows)[:, None], -torch.inf).softmax(-1)


def asked(client, rows, cols, **more):
    asked = "&".join(f"{name}={value}" for name, value in more.items())
    return tile(client, f"/api/trace/x/tile?rows={rows[0]}:{rows[1]}&cols={cols[0]}:{cols[1]}&{asked}")


def check_tiles(client, score, q, k, count):
    """Native, pooled and sampled tiles against the dense computation, within what float32 can tell: twice its error."""
    half = count // 2
    rows, cols = (half, half + 64), (half - 90, half + 40)
    right, plain = (dense(score, q, k, rows, dtype) for dtype in (torch.float64, torch.float32))
    rtol = max(3e-5, 2 * ((plain - right).abs() / right)[right > 1e-30].max().item())
    np.testing.assert_allclose(asked(client, rows, cols), right[:, cols[0] : cols[1]], rtol=rtol, atol=1e-9)
    wide = right.split(16)
    for pool, how in (("max", torch.amax), ("sum", torch.sum)):
        cells = [[how(c, (0, 1)) for c in r.split(-(-count // 20), 1)] for r in wide]
        found = asked(client, rows, (0, count), height=4, width=20, pool=pool)
        np.testing.assert_allclose(found, cells, rtol=rtol, atol=1e-9)
    cell = -(-count // 16)
    few = asked(client, (0, count), (0, count), height=16, width=16, samples=1)
    for i in (0, 9, 14):
        row = dense(score, q, k, (i * cell + cell // 2, i * cell + cell // 2 + 1))[0]
        np.testing.assert_allclose(few[i], [c.amax() for c in row.split(cell)], rtol=rtol, atol=1e-9)


@pytest.mark.parametrize("name", SCORES)
def test_no_tile_is_wrong(name):
    trace, score, q, k = long_text(name, 3000)
    with serving(NONE, given={"x": Answers(trace)}) as client:
        check_tiles(client, score, q, k, 3000)


@pytest.mark.parametrize("name", SCORES)
def test_what_is_not_finite_is_shown_so(name):
    torch.manual_seed(2)
    score, (q, k) = SCORES[name](), torch.randn(2, 1, 1, 40, 16)
    k[..., 30, 0], q[..., 7, 1] = math.nan, math.inf
    trace = Trace.of(q, k, torch.ones_like(k), score=score, mask=Causal())
    right = regard.steps(q, k, torch.ones_like(k), score=score, mask=Causal()).weights[0, 0].detach()
    assert right.isnan().any(-1).nonzero()[:, 0].tolist() == [7, *range(30, 40)]
    for cols in ((0, 40), (0, 20), (20, 40)):
        found = trace.tile(0, 0, (0, 40), cols)
        np.testing.assert_allclose(found, right[:, cols[0] : cols[1]], rtol=1e-5, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCORES)
def test_no_tile_of_100_000_tokens_is_wrong(name):
    trace, score, q, k = long_text(name, 100_000)
    with serving(NONE, given={"x": Answers(trace)}) as client:
        check_tiles(client, score, q, k, 100_000)


def test_a_tile_tells_whether_it_is_exact(shown):
    trace, path = random_trace(mask=Causal()), "/api/trace/labelled/tile?head=1&height=3&width=3"
    for asked, samples, told in (("", None, "exact"), ("&samples=1", 1, "sampled"), ("&samples=3", 3, "exact")):
        for _ in range(2):  # the second comes from memory
            answer = shown.get(path + asked)
            assert answer.headers["x-regard-exact"] == told
            right = trace.tile(0, 1, size=(3, 3), samples=samples)
            np.testing.assert_allclose(tile(shown, path + asked), right, rtol=1e-6, atol=1e-7)
    assert shown.get(f"{path}&samples=9").headers["x-regard-exact"] == "exact"
    assert shown.get("/api/trace/labelled/tile?samples=1").headers["x-regard-exact"] == "exact"  # a row a cell
    assert "samples: expected 1 to" in shown.get(f"{path}&samples=0").error


def test_tiles_are_computed_once():
    class Counting(Answers):
        count = 0

        def tile(self, **arguments):
            self.count += 1
            return super().tile(**arguments)

    answers = Counting(random_trace())
    with serving(NONE, given={"x": answers}, tile_bytes=300) as client:
        for query in ("head=0", "height=8&width=8", "width=8&height=8&kind=self", "head=0"):  # 256 bytes each
            client.get(f"/api/trace/x/tile?{query}")
    assert answers.count == 3


def test_what_is_too_much_for_a_long_text(shown):
    answer = shown.get("/api/trace/long/steps")
    assert answer.status == 422 and "4,097 keys are too many to show" in answer.error


class Endless(Answers):
    """A tile that is computed until it is told to stop."""

    def __init__(self):
        super().__init__(random_trace())
        self.begun, self.stopped = threading.Event(), threading.Event()

    def tile(self, **_):
        self.begun.set()
        end = time.monotonic() + 20
        while time.monotonic() < end:
            try:
                check()
            except Stopped:
                self.stopped.set()
                raise
            time.sleep(0.001)


@pytest.mark.slow
def test_what_nobody_waits_for_is_not_computed():
    endless = Endless()
    with serving(NONE, given={"x": endless}) as client:
        connection = client.connect()
        connection.request("GET", "/api/trace/x/tile")
        assert endless.begun.wait(60)
        connection.close()
        assert endless.stopped.wait(60)
        assert client.get("/api/trace/x/row").status == 200


def test_a_tile_has_a_time_limit():
    endless = Endless()
    with serving(NONE, given={"x": endless}, answer=0.3) as client:
        answer = client.get("/api/trace/x/tile")
        assert answer.status == 504 and "took more than 0.3 s" in answer.error
        assert endless.stopped.wait(60)
        assert soon(lambda: client.get("/api/trace/x/row").status == 200)


@pytest.mark.slow
def test_the_line_for_tiles_is_bounded():
    endless = Endless()
    with serving(NONE, given={"x": endless}, views=1) as client, ThreadPoolExecutor(1) as pool:
        first = client.connect()
        first.request("GET", "/api/trace/x/tile")
        assert endless.begun.wait(60)
        second = pool.submit(client.get, "/api/trace/x/row")
        assert soon(lambda: client.metric("regard_view_waiting ") == 1)
        third = client.get("/api/trace/x/row")
        assert third.status == 429 and "retry-after" in third.headers
        first.close()
        assert second.result().status == 200


def test_a_trace_stops_between_blocks():
    trace, _, _, _ = long_text("dot", 20_000)
    asked = []

    def still():
        asked.append(len(asked))
        return len(asked) < 5

    with regard.trace.wanted(still), pytest.raises(Stopped):
        trace.tile(0, 0, size=(10, 10))
    assert len(asked) == 5
    assert trace.tile(0, 0, (0, 5), (0, 5)).shape == (5, 5)


# --- the commands ---


@pytest.mark.slow
def test_files_without_a_model_on_the_command_line(files):
    process, client, _ = start("explore", "--no-browser", "--port", "0", "--trace", files[0], "--trace", files[0])
    with process:
        try:
            traces = good(client.get("/api/traces"), "Traces")["traces"]
            assert [trace["id"] for trace in traces] == ["labelled", "labelled-2"]
            right = random_trace(mask=Causal()).weights(0, 1)
            np.testing.assert_allclose(tile(client, "/api/trace/labelled/tile?head=1"), right, rtol=1e-5, atol=1e-7)
        finally:
            process.terminate()
        assert process.wait(60) == 0


def test_bad_files(files, tmp_path, capsys):
    whole = files[0].read_bytes()
    (tmp_path / "cut").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "changed").write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    (tmp_path / "text").write_text("no")
    regard.files.tensors.write_tensors(tmp_path / "other", {"x": torch.ones(1)}, {"what": "model"})
    Trace().save(tmp_path / "empty")
    reasons = {
        "cut": "cut short",
        "changed": "checksum differs",
        "text": "not a safetensors file",
        "other": "expected a trace",
        "empty": "no attention was recorded",
        "missing": "there is no such file",
        "": "there is no such file",
    }
    for name, reason in reasons.items():
        assert cli.main(["serve", "--port", "0", "--trace", str(tmp_path / name)]) == 2
        told = capsys.readouterr().err
        assert reason in told and str(tmp_path / name) in told, told
