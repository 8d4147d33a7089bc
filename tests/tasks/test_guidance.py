"""Guided alignment: log weights of one head, links between subwords however cut, the loss, and what it does."""

import math

import numpy as np
import pytest
import torch
from resuming import TOY, train, train_until, weights
from training import main

import regard
import regard.align as words
from regard.attention.call import log_weights
from regard.common.ragged import Ragged
from regard.data import Corpus, Pairs, batches
from regard.files.toml import read_toml
from regard.models import RNNConfig, RNNSeq2Seq, Transformer, TransformerConfig
from regard.models.folder import make_model
from regard.score import Additive, Dot, Location, PerHead, Relative, Rotary
from regard.tasks.base.pairs import fill_rows
from regard.tasks.base.settings import Data, Fitted, Settings, Training
from regard.tasks.translation.guidance import Guide, WordLinks, guided_loss
from regard.tasks.translation.train import TranslationObjective, TranslationTask
from regard.testing.grammar import pairs
from regard.text import PAD, Subwords
from regard.train import Position, Ranks

CPU = Ranks(0, 1, torch.device("cpu"))

# --- one head's weights ---

SCORES = {
    "dot": lambda: Dot(),
    "additive": lambda: Additive(8, 8, 6, heads=4, kv_heads=2),
    "relative": lambda: Relative(8, 3, heads=4),
    "rotary": lambda: Rotary(Dot()),
    "per head": lambda: PerHead((2, Dot()), (2, Location(8, 3) + Additive(8, 8, 6))),
}


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("masked", [False, True])
def test_log_weights_are_those_of_all_heads(name, masked):
    score = SCORES[name]().double()
    q, k, v = (
        torch.randn(3, heads, n, 8, dtype=torch.float64, requires_grad=True) for heads, n in ((4, 5), (2, 7), (2, 7))
    )
    options = {"score": score, "mask": regard.mask.Lengths(torch.tensor([7, 1, 4])) if masked else None, "offset": 2}
    whole = regard.steps(q, k, v, **options).weights
    for head in range(4):
        own = log_weights(q, k, v, head=head, **options)
        torch.testing.assert_close(own.exp(), whole[:, head])
    chosen = torch.randn(3, 5, 7, dtype=torch.float64)
    seen = whole[:, 3] > 0
    inputs = [q, k, *score.parameters()]
    ours = torch.autograd.grad((own.masked_fill(~seen, 0) * chosen).sum(), inputs, allow_unused=True)
    theirs = torch.autograd.grad((whole[:, 3].masked_fill(~seen, 1).log() * chosen).sum(), inputs, allow_unused=True)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(torch.zeros(()) if a is None else a, torch.zeros(()) if b is None else b)


def test_log_weights_with_a_sink_and_of_no_head():
    q, k, v = torch.randn(2, 2, 3, 4), torch.randn(2, 2, 5, 4), torch.randn(2, 2, 5, 4)
    sink = torch.tensor([0.5, 2.0])
    own = log_weights(q, k, v, head=1, sink=sink)
    torch.testing.assert_close(own.exp(), regard.steps(q, k, v, sink=sink).weights[:, 1])
    assert (own.exp().sum(-1) < 1).all()
    with pytest.raises(ValueError, match="expected one of 2, counted from 0, got 2"):
        log_weights(q, k, v, head=2)


def models():
    small = {"vocab_size": 20, "dim": 16, "heads": 2, "dropout": 0.0}
    yield Transformer(TransformerConfig(**small, ffn_dim=32, encoder_layers=1, decoder_layers=3)), (1, 1)
    yield RNNSeq2Seq(RNNConfig(**small, hidden_dim=16)), (0, 1)


@pytest.mark.parametrize("kind", [0, 1])
def test_models_tell_the_log_weights_of_the_head_they_are_asked_for(kind):
    model, (layer, head) = list(models())[kind]
    source, target = torch.tensor([[5, 6, 7, 2], [8, 2, 0, 0]]), torch.tensor([[1, 9, 9], [1, 9, 0]])
    features, shown = model.features(source, target, attention=True)
    guided, log_alpha = model.features(source, target, guided=(layer, head))
    torch.testing.assert_close(guided, features)
    torch.testing.assert_close(log_alpha.exp(), shown[:, layer, head], rtol=1e-4, atol=1e-6)


# --- the loss ---


def test_the_loss_is_the_formula_and_so_is_its_gradient():
    e = torch.randn(2 * 3, 4, 5, dtype=torch.float64, requires_grad=True)  # two passes of three pairs
    hidden = torch.zeros(6, 4, 5, dtype=torch.bool)
    hidden[1::3, :, 3:] = True
    linked = torch.rand(3, 4, 5) < 0.4
    linked[1, :, 3:] = False
    linked[0, 2] = False  # a row without a link
    total = torch.zeros((), dtype=torch.float64)
    for p in range(2):
        for n in range(3):
            for t in range(4):
                own = linked[n, t].nonzero().flatten().tolist()
                seen = e[3 * p + n, t][: 3 if n == 1 else 5]
                for s in own:
                    total = total - torch.log(seen[s].exp() / seen.exp().sum()) / len(own) / 2
    loss = guided_loss(e.masked_fill(hidden, -math.inf).log_softmax(-1), linked)
    torch.testing.assert_close(loss.double(), total, rtol=1e-6, atol=0)
    ours, theirs = (torch.autograd.grad(x, e, retain_graph=True)[0] for x in (loss, total))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)
    assert not ours[0, 2].any()


@pytest.mark.parametrize("rdrop", [0.0, 1.0])
def test_the_objective_adds_the_loss_times_its_weight(rdrop):
    model, (layer, head) = next(models())
    model = model.double().train()
    source, target = torch.tensor([[5, 6, 7, 2], [8, 2, 0, 0]]), torch.tensor([[1, 9, 9], [1, 9, 0]])
    out = torch.tensor([[9, 9, 2], [9, 2, 0]])
    linked = torch.zeros(2, 3, 4, dtype=torch.bool)
    linked[0, 1, 1] = linked[0, 2, 0] = linked[1, 1, 0] = True
    batch = (source, torch.tensor([4, 2]), target, out)
    plain = TranslationObjective(model, smoothing=0.1, rdrop=rdrop)(*batch)
    guide = Guide(0.3, layer, head, True, "union")
    loss, nll, guided = TranslationObjective(model, smoothing=0.1, rdrop=rdrop, guide=guide)(*batch, linked)
    alpha = model.features(source, target, attention=True)[1][:, layer, head]
    wanted = -(alpha[0, 1, 1].log() + alpha[0, 2, 0].log() + alpha[1, 1, 0].log())
    torch.testing.assert_close(guided, wanted, rtol=1e-5, atol=0, check_dtype=False)
    torch.testing.assert_close(loss, plain[0] + 0.3 * guided, rtol=1e-5, atol=0)
    torch.testing.assert_close(nll, plain[1])


# --- links of subwords ---


def grammar_corpus(count, vocab_size=320):
    some = pairs(count, seed=1)
    subwords = Subwords.learn([[text for p in some for text in p[:2]]], vocab_size)
    corpus = Corpus.build([Pairs([p[:2] for p in some])], subwords)
    chunks = [subwords.encode_batch([p[k] for p in some]) for k in (0, 1)]
    return some, corpus, chunks


def by_chunks(some, encoded):
    """The gold links, from words to chunks: an elided article and its apostrophe are two."""
    rows = []
    for p, source, target in zip(some, *encoded, strict=True):
        of = [{}, {}]
        for side, line in enumerate((source, target)):
            for word, piece in zip(line.words, line.pieces, strict=True):
                of[side].setdefault(word, set()).add(piece)
        rows.append(sorted((i << 16) + j for a, b in p.links for i in of[0][a] for j in of[1][b]))
    return Ragged.of(rows, np.int32)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("shift", [True, False])
def test_links_of_words_are_those_of_their_subwords_however_cut(dropout, shift):
    """Against what characters say: decode the subwords up to each one, and see in which word it ends."""
    some, corpus, encoded = grammar_corpus(30)
    links = WordLinks(corpus, by_chunks(some, encoded), shift=shift)
    for batch in batches(corpus, tokens=300, dropout=dropout, seed=3, multiple=4):
        found = links.of(batch)
        assert found.shape == (len(batch.rows), batch.target_in.shape[1], batch.source.shape[1])
        for n, row in enumerate(batch.rows.tolist()):
            lines = (batch.source[n], batch.source_lengths[n]), (batch.target_out[n], batch.target_lengths[n])
            source, target = (
                [subword_word(corpus.subwords, ids[: k + 1].tolist()) for k in range(length - 1)]
                for ids, length in lines
            )
            wanted = torch.zeros_like(found[n])
            for t, j in enumerate(target):
                for s, i in enumerate(source):
                    wanted[t + shift, s] = (i, j) in some[row].links
            assert torch.equal(found[n], wanted)


def subword_word(subwords, ids):
    """The word of the last of these subwords; a space alone belongs to the word after it."""
    text = subwords.decode(ids)
    return len(text.split()) - (bool(text) and not text.endswith(" "))


def test_a_rank_without_pairs_and_rows_filled_up_have_no_links():
    some, corpus, encoded = grammar_corpus(5)
    links = WordLinks(corpus, by_chunks(some, encoded), shift=True)
    shares = [batches(corpus, tokens=60, rank=rank, world=5) for rank in range(5)]
    idle = [share[k] for share in shares for k in range(len(share)) if bool((share[k].target_out == PAD).all())]
    assert idle and not any(links.of(batch).any() for batch in idle)
    batch = shares[0][0]
    more = fill_rows([batch.source, batch.source_lengths, batch.target_in, batch.target_out, links.of(batch)], 4)
    assert more[4].shape[0] == 4 and more[4][0].any() and not more[4][1:].any()


# --- the task ---


def tiny_task(kind="transformer", **training):
    some, corpus, encoded = grammar_corpus(40)
    size = {"transformer": {"ffn_dim": 32, "encoder_layers": 1, "decoder_layers": 2}, "rnn": {"hidden_dim": 16}}[kind]
    given = Settings(
        data=Data(),
        subwords={"dropout": 0.2},
        model={"kind": kind, "dim": 16, "heads": 2, "dropout": 0.0, **size},
        training={"tokens": 600, "updates": 50, "guided": 0.5, "rdrop": 0.0, **training},
    )
    fitted = Fitted.of(given, 40, False)
    torch.manual_seed(0)
    model = make_model({**fitted.model, "vocab_size": len(corpus.subwords)})
    guide = Guide.of(fitted.training, fitted.model)
    links = WordLinks(corpus, by_chunks(some, encoded), shift=guide.shift)
    return TranslationTask(model, corpus, None, fitted, torch.device("cpu"), False, links)


@pytest.mark.parametrize("kind", ["transformer", "rnn"])
def test_a_step_has_links_and_rows_filled_up_count_for_nothing(kind):
    task = tiny_task(kind)
    assert task.sums == ("loss", "nll", "guided")
    step = next(task.steps(Position(), CPU))
    assert len(step.tensors) == 5 and step.tensors[4].dtype == torch.bool
    sums = task.objective(*step.tensors)
    more = fill_rows(step.tensors, len(step.tensors[0]) + 5)
    torch.testing.assert_close(task.objective(*more), sums, rtol=1e-5, atol=1e-4)
    sums[0].backward()
    assert all(torch.isfinite(p.grad).all() for p in task.model.parameters() if p.grad is not None)


def test_settings_of_a_head_that_is_not_there_are_refused():
    with pytest.raises(ValueError, match=r"guided_layer must be below 2, the model's layers, got 2"):
        tiny_task(guided_layer=2)
    with pytest.raises(ValueError, match=r"guided_head must be below 2, the model's heads, got 5"):
        tiny_task(guided_head=5)
    with pytest.raises(ValueError, match="guided_links must be one of intersection, union"):
        Training(guided_links="all")
    with pytest.raises(ValueError, match="guided must be a number of at least 0"):
        Training(guided=-1)
    assert not any(key.startswith("guided") for key in Training(guided_head=1).to_table())


# --- the command ---


def grammar_files(folder, some):
    for side, name in ((0, "en"), (1, "fr")):
        (folder / f"train.{name}").write_text("".join(p[side] + "\n" for p in some))


SMALL = """
[data]
source = "train.en"
target = "train.fr"
[subwords]
vocab_size = 400
[model]
dim = 64
ffn_dim = 128
heads = 4
encoder_layers = 1
decoder_layers = 2
dropout = 0.1
[training]
updates = 200
tokens = 1500
lr = 5e-3
schedule = "cosine"
warmup = 30
rdrop = 0.0
valid_every = 200
average = 1
device = "cpu"
"""


@pytest.mark.slow
def test_a_guided_head_aligns_long_before_any_other(tmp_path, monkeypatch):
    """AER below 5 after 200 updates, by the head that config.toml names; without guidance no head is near.

    Sentences with "do" are left out: the aligner takes it for "ne", as any statistics would
    (tests/align/test_statistical.py).
    """
    some = [p for p in pairs(2400, seed=3) if not {"do", "does"} & {*p.english.split()}][:1600]
    grammar_files(tmp_path, some[:1500])
    (tmp_path / "small.toml").write_text(SMALL)
    monkeypatch.chdir(tmp_path)
    test, gold = [p[:2] for p in some[1500:]], [p.links for p in some[1500:]]

    def aer(name, **look):
        return words.quality(regard.load(tmp_path / name, device="cpu").align(test, **look), gold).aer

    assert main(["--config", "small.toml", "--out", "guided", "--set", "training.guided=0.5"]) == 0
    assert read_toml(tmp_path / "guided" / "config.toml")["align"] == {"layer": 1, "head": 0, "shift": True}
    assert aer("guided") < 0.05
    assert main(["--config", "small.toml", "--out", "plain"]) == 0
    assert aer("plain") > 0.25, "by what training itself found to align best"
    looks = [{"layer": k, "head": h, "shift": s} for k in range(2) for h in range(4) for s in (True, False)]
    assert min(aer("plain", **look) for look in looks) > 0.25


@pytest.mark.slow
def test_a_guided_run_that_was_killed_gives_the_same_weights(data):
    (data / "toy.toml").write_text(TOY + "guided = 0.2\n")
    assert train(data, "--out", "whole")[0] == 0
    train_until(data, 8, "--out", "killed")
    code, said = train(data, "--out", "killed", "--set", 'data.cache="kept"')
    assert code == 0 and "resuming from update" in said and "word alignment" in said
    assert weights(data / "killed") == weights(data / "whole")
    (data / "killed" / "model.safetensors").unlink()
    code, said = train(data, "--out", "again", "--set", 'data.cache="kept"')
    assert code == 0 and "word alignment: " not in said and "word links guide head 0" in said
    assert weights(data / "again") == weights(data / "whole")
    code, said = train(data, "--out", "whole", "--set", "training.guided=0.1")
    assert code == 2 and "training.guided was 0.2, is 0.1" in said


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_objective_is_captured_as_a_graph():
    """As the loop captures it: replayed on another batch of the shape it gives what it gives eagerly."""
    task = tiny_task()
    task.model.cuda()
    task.objective.dtype = torch.bfloat16
    one, other = (next(task.steps(Position(epoch, 0, 0), CPU)) for epoch in (0, 1))
    n, t, s = (min(a, b) for a, b in zip(one.tensors[4].shape, other.tensors[4].shape, strict=True))
    cut = (
        lambda x: x[:n, :s],
        lambda x: x[:n].clamp(max=s),
        lambda x: x[:n, :t],
        lambda x: x[:n, :t],
        lambda x: x[:n, :t, :s],
    )
    first, second = (
        [f(x).contiguous().cuda() for f, x in zip(cut, step.tensors, strict=True)] for step in (one, other)
    )
    place = [x.clone() for x in first]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            task.objective(*place)[0].backward()
            task.model.zero_grad(set_to_none=False)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        sums = task.objective(*place)
        sums[0].backward()
    for x, y in zip(place, second, strict=True):
        x.copy_(y)
    graph.replay()
    torch.testing.assert_close(sums, task.objective(*second), rtol=1e-2, atol=1e-2)
