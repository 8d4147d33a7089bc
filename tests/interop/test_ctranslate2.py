"""Models written for CTranslate2 and run by it: the same weights, the same words, the same attention."""

import io
import os
import subprocess
import sys

import pytest
import torch
import toy
from commands import ROOT, SOURCES, TARGETS

import regard
from regard import cli, decode
from regard.decode.engine import TorchEngine
from regard.decode.search import Search
from regard.interop.ctranslate2 import CTranslate2Engine, export, to_spec
from regard.models import (
    PointerConfig,
    PointerTransformer,
    RNNConfig,
    RNNSeq2Seq,
    Transformer,
    TransformerConfig,
    folder,
)
from regard.text import EOS, UNK, Subwords

ctranslate2 = pytest.importorskip("ctranslate2")

V = 24
TOKENS = ["<pad>", "<s>", "</s>", "<unk>", *(f"t{i}" for i in range(4, V))]
VARIANTS = {
    "pre-norm": {},
    "post-norm": {"norm": "post"},
    "gelu": {"activation": "gelu"},
    "silu": {"activation": "silu", "norm": "post"},
    "swiglu": {"activation": "swiglu"},
    "two embeddings": {"tied": "decoder"},
    "untied": {"tied": "none", "norm": "post"},
    "bias": {"tied": "none", "output_bias": True},
    "learned positions": {"positions": "learned", "max_length": 40},
    "no positions": {"positions": "none"},
    "grouped heads": {"kv_heads": 2},
    "a scale": {"self_score": {"kind": "dot", "scale": 0.7}, "cross_score": {"kind": "dot", "scale": 0.2}},
    "rotary": {"self_score": "rotary", "positions": "none"},
    "rotary, interleaved": {
        "self_score": {"kind": "rotary", "base": 300.0, "interleaved": True},
        "positions": "none",
        "kv_heads": 2,
    },
    "rotary in the encoder alone": {"self_score": "rotary", "decoder_score": "dot", "positions": "none"},
    "deep encoder": {"encoder_layers": 3, "decoder_layers": 1},
}


def make(**changes):
    """A small model whose every weight matters."""
    config = {"vocab_size": V, "dim": 32, "ffn_dim": 48, "heads": 4, "encoder_layers": 2, "decoder_layers": 2}
    torch.manual_seed(5)
    model = Transformer(TransformerConfig(**(config | changes))).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.15)
    return model


def run(model, path, **options):
    to_spec(model, TOKENS, **options).save(str(path))
    return ctranslate2.Translator(str(path), compute_type="float32", intra_threads=1)


def names(rows):
    return [[TOKENS[i] for i in row] for row in rows]


def numbers(row):
    return [TOKENS.index(name) for name in row]


def batch(count=6):
    draw = torch.Generator().manual_seed(2)
    sources = [[*torch.randint(4, V, (3 + i,), generator=draw).tolist(), EOS] for i in range(count)]
    targets = [torch.randint(4, V, (7 - i,), generator=draw).tolist() for i in range(count)]
    return sources, targets


def padded(rows):
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], True, 0)


@torch.no_grad()
def encoded(model, sources):
    return model.encode(padded(sources))


# --- random models ---


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_log_probabilities_are_the_models(changes, tmp_path):
    model, (sources, targets) = make(**changes), batch()
    ours = decode.score(model, encoded(model, sources), padded([[*row, EOS] for row in targets]))
    theirs = run(model, tmp_path).score_batch(names(sources), names(targets))
    for found, result in zip(ours, theirs, strict=True):
        torch.testing.assert_close(torch.tensor(result.log_probs), found.log_probs, atol=2e-5, rtol=2e-5)


@pytest.fixture(scope="module")
def subwords():
    return Subwords.learn([SOURCES], vocab_size=270)


def ending(model, strength):
    """Lets a random model come to an end: its features lean towards the end symbol's row of the softmax."""
    norm = model.decoder_norm if model.config.norm == "pre" else model.decoder[-1].feed_forward_norm
    with torch.no_grad():
        norm.bias += strength * model.output_weight[EOS]
    return model


@pytest.mark.parametrize(("beam", "alpha"), [(1, 1.0), (4, 0.0), (4, 1.0)])
@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_the_search_finds_the_same(changes, beam, alpha, subwords, tmp_path):
    """With α > 0 CTranslate2 stops sooner, at times before the best has come to its end."""
    model = ending(make(vocab_size=len(subwords), **changes), 2.0)
    folder.save(tmp_path / "m", model, subwords)
    engines = TorchEngine(model), CTranslate2Engine(tmp_path / "m", device="cpu")
    sources = [row[:-1] for row in batch()[0]]
    search = Search(beam=beam, length_penalty=alpha, max_length=15)
    ours, theirs = (e.search(sources, [[]] * len(sources), search, number=0, ban=[UNK]) for e in engines)
    for source, (one,), (other,) in zip(sources, ours, theirs, strict=True):
        (read,) = engines[0].read([source], [other.tokens[:-1]], attention=False)
        assert other.log_prob == pytest.approx(read.log_prob, rel=1e-5, abs=2e-5)
        assert other.score == pytest.approx(read.log_prob / len(other.tokens) ** alpha, rel=1e-5, abs=2e-5)
        if alpha and beam > 1:
            assert one.score >= other.score - 2e-5
        else:
            assert other.tokens == one.tokens


@pytest.mark.parametrize(("layer", "head"), [(0, None), (1, None), (1, 2), (-1, 0)])
@pytest.mark.parametrize("changes", [{}, {"norm": "post", "kv_heads": 2}], ids=["pre-norm", "grouped"])
def test_the_attention_shown_is_that_of_the_layer(changes, layer, head, tmp_path):
    model, (sources, targets) = make(**changes), batch()
    ours = decode.score(model, encoded(model, sources), padded([[*row, EOS] for row in targets]), attention=True)
    theirs = run(model, tmp_path, layer=layer, head=head).translate_batch(
        names(sources), names(targets), beam_size=1, max_decoding_length=8, return_attention=True, return_end_token=True
    )
    for found, result, target, source in zip(ours, theirs, targets, sources, strict=True):
        got = torch.tensor(result.attention[0])[: len(target) + 1]
        expected = found.attention[layer].mean(0) if head is None else found.attention[layer, head]
        assert got.shape == (len(target) + 1, len(source))
        torch.testing.assert_close(got, expected, atol=1e-5, rtol=0)


# --- a trained one, as people use it ---


@pytest.fixture(scope="module")
def exported(model):
    path = model.parent / "exported"
    export(model, path)
    return path


@pytest.fixture(scope="module")
def engines(model, exported):
    return regard.load(model, device="cpu"), regard.load(exported, device="cpu", engine="ctranslate2")


@pytest.mark.parametrize("beam", [1, 5])
def test_translations_and_their_scores(engines, beam):
    ours, theirs = (t.outputs(SOURCES, beam=beam) for t in engines)
    assert [o.text for o in theirs] == [o.text for o in ours] == TARGETS
    for one, other in zip(ours, theirs, strict=True):
        assert other.translations[0].score == pytest.approx(one.translations[0].score, abs=1e-5)
        assert other.translations[0].log_prob == pytest.approx(one.translations[0].log_prob, abs=1e-4)


def test_n_best_lists(engines):
    ours, theirs = (t.outputs(SOURCES[:5], beam=4, nbest=3, length_penalty=0.6) for t in engines)
    for one, other in zip(ours, theirs, strict=True):
        assert [t.text for t in other.translations] == [t.text for t in one.translations]
        assert [t.score for t in other.translations] == pytest.approx([t.score for t in one.translations], abs=1e-5)


def test_given_pairs_are_read_alike(engines):
    pairs = list(zip(SOURCES, reversed(TARGETS), strict=True))
    ours, theirs = (t.score(pairs) for t in engines)
    assert theirs == pytest.approx(ours, rel=1e-5, abs=1e-4)


def test_the_attention_of_a_translation(engines):
    ours, theirs = (t.outputs(SOURCES, attention=True) for t in engines)
    for one, other in zip(ours, theirs, strict=True):
        expected, got = one.translations[0].attention[0], other.translations[0].attention[0]
        assert got.source == expected.source and got.target == expected.target
        torch.testing.assert_close(got.weights[0, 0], expected.weights[1].mean(0), atol=1e-5, rtol=0)
        words = [t.word_weights(o.translations[0]) for t, o in zip(engines, (one, other), strict=True)]
        torch.testing.assert_close(words[1], words[0], atol=1e-5, rtol=0)


def test_word_links(engines):
    pairs = list(zip(SOURCES, TARGETS, strict=True))
    ours, theirs = (t.align(pairs) for t in engines)
    assert theirs == ours
    assert engines[1].align(pairs, layer=1) == ours
    with pytest.raises(ValueError, match=r"shows decoder layer 1, the mean over its heads, and no other; for layer 0"):
        engines[1].align(pairs, layer=0)
    with pytest.raises(ValueError, match="for head 2 use the torch engine"):
        engines[1].align(pairs, head=2)


def test_a_head_of_its_own_is_exported(model, tmp_path):
    loaded = folder.open(model)
    folder.save(tmp_path / "m", loaded.model, loaded.subwords, settings={"align": {"layer": 0, "head": 5}})
    pairs = list(zip(SOURCES[:20], TARGETS[:20], strict=True))
    ours, theirs = (regard.load(tmp_path / "m", device="cpu", engine=e) for e in ("torch", "ctranslate2"))
    assert theirs.align(pairs) == ours.align(pairs)
    assert theirs.translate(SOURCES[:20]) == ours.translate(SOURCES[:20])


def test_prefixes_and_lengths(engines):
    for options in ({"prefix": "un oiseau"}, {"max_length": 4}, {"min_length": 12, "beam": 1, "max_length": 14}):
        ours, theirs = (t.translate(SOURCES[:10], **({"beam": 1} | options)) for t in engines)
        assert theirs == ours


@pytest.mark.parametrize("beam", [1, 4])
def test_with_a_least_length_scores_are_the_models_too(engines, beam):
    """What CTranslate2 says itself is something else there."""
    other = engines[1]
    sources = [row.ids for row in other.subwords.encode_batch(SOURCES[:10])]
    search = Search(beam=beam, nbest=beam, min_length=12, max_length=20)
    ended = 0
    for source, row in zip(sources, other.engine.search(sources, [[]] * 10, search, number=0, ban=[]), strict=True):
        for found in row:
            if found.tokens[-1] == EOS:
                ended += 1
                [read] = other.engine.read([source], [found.tokens[:-1]], attention=False)
                assert found.log_prob == pytest.approx(read.log_prob, abs=1e-3)
    assert ended >= 10


def test_long_lines_are_cut_and_learned_positions_end(tmp_path):
    toy.train(tmp_path / "m", updates=20, max_length=30)
    ours, theirs = (regard.load(tmp_path / "m", device="cpu", engine=e) for e in ("torch", "ctranslate2"))
    assert theirs.limit == ours.limit == 29
    line = " ".join(SOURCES[:6])
    ours, theirs = (t.outputs([line], beam=1)[0] for t in (ours, theirs))
    assert theirs.note == ours.note and "sentences" in ours.note
    assert theirs.text == ours.text


def test_eight_bits(exported):
    translator = regard.load(exported, device="cpu", engine="ctranslate2", int8=True)
    found = translator.translate(SOURCES)
    assert sum(a == b for a, b in zip(found, TARGETS, strict=True)) >= 57
    assert repr(translator) == f"<Translator exported: ctranslate2, {len(translator.subwords):,} subwords>"
    assert translator.device == torch.device("cpu")


# --- commands ---


@pytest.fixture
def command(monkeypatch, capfd):
    def call(*arguments, stdin=b""):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = cli.main([str(a) for a in arguments])
        return code, *capfd.readouterr()

    return call


def test_export_and_translate(command, model, tmp_path):
    out, text = tmp_path / "deep" / "exported", "\n".join(SOURCES).encode()
    assert command("export", "--format", "ctranslate2", "--model", model, "--out", out) == (0, "", "")
    assert {"model.bin", "config.json", "shared_vocabulary.json", "tokenizer.json", "config.toml"} <= {
        p.name for p in out.iterdir()
    }
    assert [p.name for p in out.parent.iterdir()] == ["exported"]
    for path in (out, model):
        code, shown, errors = command("translate", "--engine", "ctranslate2", "-m", path, stdin=text)
        assert (code, shown.splitlines(), errors) == (0, TARGETS, "")
    asked = ("translate", "--alignment", SOURCES[0])
    assert command(*asked, "-m", out, "--engine", "ctranslate2") == command(*asked, "-m", model)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--format", "onnx"), "--format: expected ctranslate2, got 'onnx'"),
        (("--model", "nowhere"), "nowhere: there is no such model folder"),
    ],
)
def test_what_export_refuses(command, model, tmp_path, arguments, message):
    code, _, errors = command("export", "--model", model, "--out", tmp_path / "out", *arguments)
    assert code == 2 and message in errors and not (tmp_path / "out").exists()


def test_nothing_is_overwritten(command, model, exported, tmp_path):
    (tmp_path / "mine").write_text("mine")
    for out in (tmp_path, tmp_path / "mine"):
        code, _, errors = command("export", "--model", model, "--out", out)
        assert code == 2 and "exists and is not an empty folder" in errors
    assert (tmp_path / "mine").read_text() == "mine"


def test_the_wrong_engine_is_told(command, model, exported, tmp_path):
    code, _, errors = command("translate", "-m", exported, "a dog")
    assert code == 2 and "it was exported: use it with --engine ctranslate2" in errors
    code, _, errors = command("translate", "-m", model, "--engine", "onnx", "a dog")
    assert code == 2 and "engine: expected one of torch, ctranslate2, got 'onnx'" in errors
    code, _, errors = command("translate", "-m", exported, "--engine", "ctranslate2", "--sample", "a dog")
    assert code == 2 and "does not sample: use the torch engine" in errors
    broken = tmp_path / "broken"
    broken.mkdir()
    for name in ("config.toml", "tokenizer.json", "config.json", "shared_vocabulary.json"):
        (broken / name).write_bytes((exported / name).read_bytes())
    (broken / "model.bin").write_bytes((exported / "model.bin").read_bytes()[:5000])
    code, _, errors = command("translate", "-m", broken, "--engine", "ctranslate2", "a dog")
    assert code == 2 and "CTranslate2 cannot use it" in errors


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cross_score": "additive"}, r"decoder\.0\.cross_attention has the score Additive"),
        ({"self_score": "cosine"}, r"encoder\.0\.attention has the score Cosine"),
        ({"self_score": "rotary"}, "one kind of positions"),
        ({"cross_score": "rotary"}, r"decoder\.0\.cross_attention has the score Rotary"),
        ({"encoder_layers": 0}, "this one lacks one of them"),
    ],
)
def test_what_cannot_be_exported_is_named(changes, message):
    with pytest.raises(ValueError, match=message):
        to_spec(make(**changes), TOKENS)


@pytest.mark.parametrize("shown", [{"layer": 2}, {"layer": -3}, {"head": 4}, {"head": -1}])
def test_attention_that_is_not_there_is_refused(shown):
    with pytest.raises(ValueError, match="expected a layer and head of 2 × 4"):
        to_spec(make(), TOKENS, **shown)


def test_an_empty_translation_is_read_too(engines):
    engine = engines[1].engine
    source = engine.subwords.encode(SOURCES[0]).ids
    for ours, theirs in zip(
        engines[0].engine.read([source, source], [[], source[:2]], attention=True),
        engine.read([source, source], [[], source[:2]], attention=True),
        strict=True,
    ):
        assert theirs.log_prob == pytest.approx(ours.log_prob, rel=1e-5, abs=1e-4)
        torch.testing.assert_close(theirs.attention[0, 0], ours.attention[1].mean(0), atol=1e-5, rtol=0)


def test_a_model_that_copies_cannot_be_exported(tmp_path):
    """Its weights would fit, and the copying be left out without a word."""
    subwords = Subwords.learn([SOURCES], vocab_size=300)
    config = PointerConfig(vocab_size=len(subwords), dim=16, ffn_dim=16, heads=2, encoder_layers=1, decoder_layers=1)
    folder.save(tmp_path / "pointer", PointerTransformer(config), subwords)
    with pytest.raises(ValueError, match="a PointerTransformer does more and cannot be exported"):
        export(tmp_path / "pointer", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_recurrent_model_cannot_be_exported(tmp_path):
    subwords = Subwords.learn([SOURCES], vocab_size=300)
    folder.save(tmp_path / "rnn", RNNSeq2Seq(RNNConfig(vocab_size=len(subwords), dim=16)), subwords)
    with pytest.raises(ValueError, match="this model is recurrent and cannot be exported"):
        export(tmp_path / "rnn", tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["rnn"]


def test_without_ctranslate2_it_says_what_to_install(monkeypatch, model):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(ImportError, match=r"pip install 'regard\[ctranslate2\]'"):
        regard.load(model, engine="ctranslate2")


FORKED = """
import os, signal, sys
import regard

translator = regard.load(sys.argv[1], device="cpu", engine="ctranslate2")
translator.translate("the dog")
child = os.fork()
if not child:
    signal.alarm(60)
    for call in (lambda: translator.translate("the dog"), lambda: translator.score([("the dog", "le chien")])):
        try:
            call()
        except ValueError as error:
            assert str(error) == "the ctranslate2 engine cannot be used in the child of a fork: load the model there"
        else:
            os._exit(1)
    regard.load(sys.argv[1], device="cpu", engine="ctranslate2").translate("the dog")
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_the_child_of_a_fork_is_told_and_does_not_hang(model):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", FORKED, str(model)], env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
