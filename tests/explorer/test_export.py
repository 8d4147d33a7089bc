"""Pages that travel: what is stored, how exactly, what cannot break out of it, and what a browser shows of it."""

import hashlib
import html
import json
import re
from base64 import b64encode

import exported
import numpy as np
import pytest
import torch
from exported import HOSTILE, WORDS, encoder, page, traced
from hypothesis import given
from hypothesis import strategies as st

import regard
from regard.explorer import document, export
from regard.explorer.answers import Answers
from regard.explorer.packer import Packer
from regard.models import RNNConfig, RNNSeq2Seq, Transformer, TransformerConfig
from regard.score import Additive, ALiBi, Bilinear, Cosine, Dot, General, Location, Relative, Rotary, Softcap, T5Bias


@pytest.fixture(scope="module")
def trace():
    torch.manual_seed(0)
    return traced(encoder(), torch.randn(1, len(WORDS), 32), labels=WORDS)


def seq2seq(length=12, **options):
    torch.manual_seed(0)
    small = {"vocab_size": 60, "dim": 32, "ffn_dim": 48, "heads": 4, "encoder_layers": 2, "decoder_layers": 2}
    model = Transformer(TransformerConfig(**{**small, **options})).eval()
    return traced(model, torch.randint(5, 60, (1, length)), torch.randint(5, 60, (1, length + 2)))


# --- numbers ---


@given(
    st.lists(st.lists(st.floats(-1e6, 1e6, width=32), min_size=3, max_size=3), min_size=1, max_size=5),
    st.sampled_from([8, 16]),
)
def test_no_number_is_off_by_more_than_stated(rows, bits):
    x = torch.tensor(rows, dtype=torch.float64)
    for signed, given_ in ((True, x), (False, x.abs())):
        packer = Packer(bits=bits, signed=signed)
        read = exported.matrix(packer.pack(given_))
        error = np.abs(read - given_.numpy()).max(1)
        assert error.max() == pytest.approx(packer.error, abs=0)
        step = given_.abs().amax(1).numpy() / (2 ** (bits - signed) - 1)
        assert (error <= 0.5 * step * (1 + 1e-3) + 1e-40).all()


def test_rows_of_nothing_and_of_almost_nothing():
    packer = Packer(bits=16, signed=False)
    x = torch.tensor([[0.0, 0.0], [1e-44, 0.0], [1e-30, 5e-31]], dtype=torch.float64)
    read = exported.matrix(packer.pack(x))
    assert (read[0] == 0).all() and packer.error <= 1e-34


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_numbers_that_are_none_are_refused(bad):
    with pytest.raises(ValueError, match="not finite"):
        Packer(bits=16, signed=True).pack(torch.tensor([[bad]]))


def test_weights_and_norms_are_those_of_the_trace(tmp_path):
    trace = seq2seq()
    found = exported.document(page(trace, tmp_path))
    for name in ("weights", "norms"):
        stated, worst = found["stored"][name]["error"], 0.0
        for kind, layers in trace.kinds.items():
            assert len(found[name][kind]) == layers
            for layer in range(layers):
                right = getattr(trace, name)(layer, kind=kind).double().numpy()
                for head, packed in enumerate(found[name][kind][layer]):
                    worst = max(worst, np.abs(exported.matrix(packed) - right[head]).max())
        assert 0 < worst <= stated
    assert found["stored"]["weights"]["error"] <= 8e-6  # what web/FORMAT.md says of 16 bits


def test_eight_bits_say_so(trace, tmp_path):
    found = exported.document(page(trace, tmp_path, bits=8))
    assert found["stored"]["weights"]["bits"] == 8
    assert 8e-6 < found["stored"]["weights"]["error"] <= 0.5 / 255 * 1.001
    with pytest.raises(ValueError, match="bits: expected 8 or 16, got 4"):
        page(trace, tmp_path, bits=4)


def test_rollout_is_that_of_the_trace(trace, tmp_path):
    found = exported.document(page(trace, tmp_path))
    for layer, packed in enumerate(found["rollout"]):
        read = exported.matrix(packed)
        for row in range(0, len(WORDS), 3):
            right = trace.rollout(row, layer=layer).double().numpy()
            assert np.abs(read[row] - right).max() <= found["stored"]["rollout"]["error"] + 1e-6


def test_measures_of_heads_are_means_over_queries(trace, tmp_path):
    (found,) = exported.document(page(trace, tmp_path))["heads"]
    assert found["kind"] == "self"
    for name in ("entropy", "sink", "distance"):
        for layer in range(2):
            assert found[name][layer] == pytest.approx(getattr(trace, name)(layer).mean(-1).tolist(), rel=1e-5)


# --- steps ---

SCORES = {
    "dot": Dot,
    "dot with a scale": lambda: Dot(scale=0.3),
    "additive": lambda: Additive(8, 8, 8),
    "general": lambda: General(8, 8),
    "bilinear": lambda: Bilinear(8, 8, 4),
    "cosine": lambda: Cosine(),
    "rotary": lambda: Rotary(Dot()),
    "alibi": lambda: Dot() + ALiBi(4),
    "t5": lambda: Dot() + T5Bias(4),
    "location": lambda: Location(8, 3),
    "relative": lambda: Relative(8, 3),
    "softcap": lambda: Softcap(Dot(), 5.0),
}


@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize("name", SCORES)
def test_steps_can_be_followed_from_what_is_stored(name, causal, tmp_path):
    torch.manual_seed(1)
    model = encoder(layers=1, score=SCORES[name]())
    mask = regard.mask.Causal() if causal else None
    trace = traced(model, torch.randn(1, 9, 32), mask=mask)
    found = exported.document(page(trace, tmp_path))
    heads = exported.layer(found, "self", 0)["heads"]
    assert [one["head"] for one in heads] == [0, 1, 2, 3]
    assert heads[0]["allowed"] == ("causal" if causal else None)
    for head in range(4):
        for query in (0, 4, 8):
            compare(exported.steps(found, "self", 0, head, query), trace.steps(0, head, query))


def compare(read, right, atol=3e-4):
    """What the page makes of its numbers beside what the trace says."""
    for name in (
        "q",
        "k",
        "v",
        "products",
        "similarity",
        "scaled",
        "masked",
        "weights",
        "context",
        "recorded",
        "output",
    ):
        given_ = getattr(right, name)
        assert (given_ is None) == (read[name] is None), name
        if given_ is not None:
            np.testing.assert_allclose(read[name], given_.double().numpy(), atol=atol, rtol=1e-3, err_msg=name)


def test_a_plain_dot_product_stores_no_pairs(trace, tmp_path):
    found = exported.document(page(trace, tmp_path))
    heads = [head for layer in found["steps"] for head in layer["heads"]]
    assert len(heads) == 8
    assert not any({"products", "scaled"} & set(head) for head in heads)
    assert found["steps"][0]["formula"] == "q·k / √d"


def test_a_mask_of_any_form(tmp_path):
    model = encoder(layers=1)
    seen = torch.rand(7, 7) < 0.6
    seen[2] = False  # sees nothing
    trace = traced(model, torch.randn(1, 7, 32), mask=seen)
    found = exported.document(page(trace, tmp_path))
    for query in range(7):
        compare(exported.steps(found, "self", 0, 1, query), trace.steps(0, 1, query))
    assert exported.steps(found, "self", 0, 1, 2)["weights"].sum() == 0


def test_a_recurrent_decoder_is_joined_from_its_calls(tmp_path):
    torch.manual_seed(0)
    model = RNNSeq2Seq(RNNConfig(vocab_size=50, dim=16, hidden_dim=12, heads=2)).eval()
    trace = traced(model, torch.randint(5, 50, (1, 6)), torch.randint(5, 50, (1, 5)))
    assert trace.calls(0, kind="cross") == 5
    found = exported.document(page(trace, tmp_path))
    assert found["weights"]["cross"][0][0]["shape"] == [5, 6]
    for query in range(5):
        compare(exported.steps(found, "cross", 0, 1, query), trace.steps(0, 1, query, kind="cross", call=None))


def test_generation_with_a_cache_is_joined(tmp_path):
    torch.manual_seed(0)
    model = regard.nn.MultiHeadAttention(16, 2).eval()
    cache = regard.nn.Cache()
    with torch.no_grad(), regard.record(model) as trace:
        for part in torch.randn(1, 6, 16).split([3, 1, 1, 1], 1):
            model(part, mask=regard.mask.Causal(), cache=cache)
    found = exported.document(page(trace, tmp_path))
    right = trace.weights(0, 1, call=None).double().numpy()
    assert np.abs(exported.matrix(found["weights"]["self"][0][1]) - right).max() <= found["stored"]["weights"]["error"]
    for query in range(6):
        read = exported.steps(found, "self", 0, 1, query)
        np.testing.assert_allclose(read["weights"], right[query], atol=3e-4)


def test_a_pass_that_does_not_share_its_keys_has_no_steps(tmp_path):
    model = encoder(layers=1)
    with torch.no_grad(), regard.record(model) as trace:
        model(torch.randn(1, 4, 32))
        model(torch.randn(1, 4, 32))
    assert "steps" not in exported.document(page(trace, tmp_path))


def test_what_weights_and_values_do_not_tell_has_no_steps(tmp_path):
    """Positions in the values, and a sink beside the keys: the page could not come to the same context."""
    model = encoder(layers=1, score=Relative(8, 3, values=True))
    assert "steps" not in exported.document(page(traced(model, torch.randn(1, 5, 32)), tmp_path))
    q = torch.randn(1, 2, 5, 4)
    with regard.record() as trace:
        regard.attend(q, q, q, sink=1.0)
    found = exported.document(page(trace, tmp_path))
    assert "steps" not in found
    right = trace.weights(0, 1).double().numpy()
    assert right.sum(1).max() < 1
    assert np.abs(exported.matrix(found["weights"]["self"][0][1]) - right).max() <= found["stored"]["weights"]["error"]


@pytest.mark.parametrize("opened", [0, 2])
def test_a_layer_follows_the_heads_of_one_score(opened, tmp_path):
    """That of the opened head; others would need a formula of their own."""
    model = encoder(layers=1, score=regard.score.PerHead((2, Dot()), (2, Additive(8, 8, 8))))
    trace = traced(model, torch.randn(1, 5, 32))
    found = exported.document(page(trace, tmp_path, head=opened))
    assert [one["head"] for one in found["steps"][0]["heads"]] == [opened, opened + 1]
    for head in (opened, opened + 1):
        compare(exported.steps(found, "self", 0, head, 3), trace.steps(0, head, 3))


def test_vectors_are_added_while_there_is_room(tmp_path):
    trace = seq2seq(length=30)
    answers = Answers(trace)
    few = exported_of(export.page(answers, kind="cross", layer=1, head=2, room=0))
    assert [(one["kind"], one["layer"], [h["head"] for h in one["heads"]]) for one in few["steps"]] == [
        ("cross", 1, [2])
    ]
    assert few["steps"][0]["heads"][0]["output"] is not None
    assert "norms" not in few and "weights" in few
    many = exported_of(export.page(answers))
    assert sum(len(one["heads"]) for one in many["steps"]) == 3 * 2 * 4


def exported_of(content):
    data = re.search(rb'id="regard-data">(.*?)</script', content, re.DOTALL)
    return json.loads(data[1])


# --- the file ---


def test_no_token_breaks_out_of_the_data(tmp_path):
    trace = traced(encoder(layers=1), torch.randn(1, len(HOSTILE), 32), labels=HOSTILE)
    path = page(trace, tmp_path, title="</title><script>alert(1)</script>\ud800")
    text = path.read_bytes().decode()
    data = text.split('id="regard-data">')[1].split("</script>")[0]
    assert data.isascii() and not set("<>&") & set(data)
    tokens = [token["text"] for token in exported.document(path)["trace"]["source"]["tokens"]]
    assert tokens == [token["text"] for token in Answers(trace).describe()["source"]["tokens"]]
    assert HOSTILE[0] in tokens
    assert len(re.findall("<script", text)) == 2 and len(re.findall("</script>", text)) == 2
    assert html.escape("</title><script>") in text


def test_the_policy_allows_its_own_script_and_style_alone(trace, tmp_path):
    text = page(trace, tmp_path).read_bytes().decode()
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)[1]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    script, style = (
        re.findall(r"<script>(.*?)</script>", text, re.DOTALL),
        re.findall("<style>(.*?)</style>", text, re.DOTALL),
    )
    assert rules == {
        "default-src": "'none'",
        "script-src": sha(*script),
        "style-src": sha(*style),
        "img-src": "data: blob:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    assert text.index("Content-Security-Policy") < text.index("<style>")


def test_the_hash_is_of_every_character(tmp_path):
    for name in ("app.js", "app.css"):
        (tmp_path / name).write_bytes("\n /* é */ \n".encode())
    text = export.html({}, title="", version="", folder=tmp_path).decode()
    assert text.count(html.escape(sha("\n /* é */ \n"), quote=False)) == 2


def sha(text):
    return f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def test_the_same_trace_gives_the_same_bytes(trace, tmp_path):
    first, second, loaded = (tmp_path / name for name in ("a.html", "b.html", "c.html"))
    trace.to_html(first)
    trace.to_html(second)
    assert first.read_bytes() == second.read_bytes()
    trace.save(tmp_path / "trace.safetensors", inputs=True)
    regard.trace.load(tmp_path / "trace.safetensors").to_html(loaded)
    assert loaded.read_bytes() == first.read_bytes()


def test_a_page_is_written_whole_or_not_at_all(trace, tmp_path, monkeypatch):
    path = page(trace, tmp_path)
    before = path.read_bytes()
    with pytest.raises(ValueError):
        trace.to_html(path, kind="cross")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="could not be written"):
        trace.to_html(path, title="another")
    assert path.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == ["page.html"]


def test_thirty_words_and_six_times_eight_heads_are_a_few_megabytes(tmp_path):
    """An encoder alone, with everything that there is; and an encoder-decoder of three times as many heads."""
    torch.manual_seed(0)
    alone = traced(encoder(layers=6, heads=8, dim=512), torch.randn(1, 40, 512))
    path = page(alone, tmp_path)
    found = exported.document(path)
    assert {"norms", "rollout", "steps", "heads"} <= set(found)
    assert sum(len(layer["heads"]) for layer in found["steps"]) == 48
    assert path.stat().st_size < 4_500_000
    both = page(seq2seq(40, dim=512, heads=8, encoder_layers=6, decoder_layers=6), tmp_path)
    assert path.stat().st_size < 4_500_000 and both.stat().st_size < 4_500_000


def test_long_texts_are_told_where_to_go(tmp_path):
    q = torch.randn(1, 1, document.TOKENS + 1, 4)
    with pytest.raises(ValueError, match=r"513 tokens are too many for one page.*regard explore --trace FILE"):
        regard.Trace.of(q, q, q).to_html(tmp_path / "page.html")
    q = torch.randn(1, 160, 500, 2)
    with pytest.raises(ValueError, match=r"weights alone would make a page of 107 MB.*or take bits=8"):
        regard.Trace.of(q, q, q).to_html(tmp_path / "page.html")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"kind": "cross"}, r"kind: expected one of those recorded \(self\), got 'cross'"),
        ({"layer": 2}, "layer: there are 2 of kind 'self', from 0; got 2"),
        ({"head": 4}, "head: there are 4 of kind 'self', from 0, and \"mean\"; got 4"),
        ({"head": "all"}, "head: there are 4"),
        ({"view": "long"}, "view: expected one of sentence, steps"),
        ({"query": 15}, "query: there are 15, from 0; got 15"),
    ],
)
def test_what_cannot_be_opened_is_refused(trace, tmp_path, options, text):
    with pytest.raises(ValueError, match=text):
        page(trace, tmp_path, **options)


def test_an_empty_trace_is_refused(tmp_path):
    with pytest.raises(ValueError, match="the trace is empty"):
        regard.Trace().to_html(tmp_path / "page.html")


def test_the_batch_item_is_the_one_asked_for(tmp_path):
    trace = traced(encoder(layers=1), torch.randn(3, 5, 32))
    trace.label(list("abcde"), item=2)
    found = exported.document(page(trace, tmp_path, item=2, query=3, head="mean"))
    read = exported.matrix(found["weights"]["self"][0][1])
    assert np.abs(read - trace.weights(0, 1, item=2).double().numpy()).max() < 1e-5
    assert [token["text"] for token in found["trace"]["source"]["tokens"]] == list("abcde")
    assert found["start"] == "#/sentence?head=mean&query=3"


def test_a_copy_without_its_page_says_how_to_build_it(trace, monkeypatch, tmp_path):
    with pytest.raises(FileNotFoundError, match="npm run build"):
        export.html({}, title="", version="", folder=tmp_path)


@pytest.mark.parametrize("bad", ["</script>", "<!--", "\r\n", "\0"])
def test_a_program_that_could_not_stand_in_a_page_is_refused(bad, tmp_path):
    (tmp_path / "app.js").write_bytes(f"var a = '{bad}'".encode())
    (tmp_path / "app.css").write_bytes(b"")
    with pytest.raises(ValueError, match="cannot stand in a page"):
        export.html({}, title="", version="", folder=tmp_path)


# --- translations ---


def test_a_translation_with_its_links(run, model, translator, tmp_path):
    source = "the red cat sees a big dog ."
    done = run("translate", "--model", model, "--html", tmp_path / "page.html", source, "the dog eats .")
    assert done.code == 0, done.err
    assert done.lines[0] == translator.translate(source)
    found = exported.document(tmp_path / "page.html")
    told = found["trace"]
    assert (told["source"]["text"], told["translation"], told["model"]) == (source, done.lines[0], "model")
    assert set(found["weights"]) == {"self", "decoder", "cross"} and found["steps"]
    right = sorted(map(list, translator.align([(source, done.lines[0])])[0]))
    assert told["alignment"]["links"] == right
    assert found["start"] == "#/align?kind=cross"


def test_the_layer_and_head_of_the_links_can_be_chosen(run, model, translator, tmp_path):
    source = "the red cat sees a big dog ."
    run("translate", "--model", model, "--html", tmp_path / "page.html", "--layer", 0, "--head", 3, source)
    found = exported.document(tmp_path / "page.html")
    assert found["start"] == "#/align?kind=cross&layer=0&head=3"
    assert found["trace"]["alignment"]["layer"] == 1  # the model's own choice is still offered
    done = run("translate", "--model", model, "--html", tmp_path / "page.html", "--layer", 2, source)
    assert done.code == 2 and "layer" in done.err


def test_of_a_line_that_is_cut_the_first_sentence_is_shown(translator, tmp_path):
    translator = regard.Translator(translator.model, translator.subwords, split=12)
    line = "the dog eats a cat . the bird sees the dog ."
    (output,) = translator.outputs([line], attention=True)
    assert export.translation(tmp_path / "page.html", translator, line, output)
    told = exported.document(tmp_path / "page.html")["trace"]
    assert told["source"]["text"] == "the dog eats a cat ." and output.text.startswith(told["translation"])
    assert told["note"].endswith("this page shows the first")


def test_nothing_to_show_is_said(run, model, tmp_path):
    done = run("translate", "--model", model, "--html", tmp_path / "page.html", "")
    assert done.code == 0 and "not written, the first line has no translation" in done.err
    assert not (tmp_path / "page.html").exists()


def test_another_engine_cannot_show_every_head(run, model, tmp_path):
    done = run("translate", "--model", model, "--engine", "ctranslate2", "--html", tmp_path / "page.html", "a dog")
    assert done.code == 2 and "leave --engine out" in done.err
