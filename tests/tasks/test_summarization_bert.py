"""Summaries with an encoder of before: it begins as BERT, learns to copy, resumes exactly, spells as the document."""

import dataclasses
import json
import shutil

import berts
import chats
import pytest
import torch

import regard
from regard.data import Corpus, Pairs, batches
from regard.models.folder import make_model
from regard.tasks.base.settings import Fitted
from regard.tasks.summarization.train import FRESH, WORK, Settings, Summarization, train
from regard.text.wordpiece import WordPiece
from regard.train import Silent


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a BERT, and with a model that was trained from it; the BERT is then gone."""
    path = tmp_path_factory.mktemp("bert")
    berts.train(path, berts.folder(path / "before"))
    shutil.move(path / "before", path / "bert")
    return path


@pytest.fixture(scope="module")
def summarizer(place):
    return regard.load(place / "model", device="cpu")


@pytest.mark.slow
def test_it_copies_names_that_no_summary_had_with_their_capitals(summarizer):
    assert chats.right(summarizer, chats.KNOWN) >= 45
    assert chats.right(summarizer, chats.UNSEEN) >= 25


def test_before_training_the_encoder_is_the_bert(place):
    bert = berts.encoder()
    fitted = WORK.fit_settings(berts.settings(place, place / "bert"), 3000, False, None)
    model = WORK.model(fitted, berts.words()).eval()
    document, line = chats.chats(1, 3)[0][0].replace("\r\n", " "), berts.words()
    ids = line.encode(document).ids
    with torch.no_grad():
        theirs = bert.encode(torch.tensor([[line.bos_id, *ids, line.eos_id]])).states
        ours = model.encode(torch.tensor([[*ids, line.eos_id]])).states
    assert torch.equal(ours, theirs[:, 1:])
    assert torch.equal(model.output_weight, bert.embedding.weight)
    length = float(bert.embedding.weight.detach().norm(dim=1).mean())
    assert model.config.output_scale == pytest.approx(1 / length, abs=0.1)


def test_hugging_faces_bert_has_the_same_states(tmp_path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    theirs = transformers.BertModel(
        transformers.BertConfig(vocab_size=len(berts.NAMES), **size, max_position_embeddings=40)
    ).eval()
    theirs.save_pretrained(tmp_path / "hf")
    (tmp_path / "hf" / "vocab.txt").write_text("\n".join(berts.NAMES))
    fitted = WORK.fit_settings(berts.settings(tmp_path, tmp_path / "hf"), 3000, False, None)
    words = WORK.learn(fitted, Silent())
    model = WORK.model(fitted, words).eval()
    ids = torch.tensor([[*words.encode("Koko: hi! ¶ Bako: some tea").ids, words.eos_id]])
    assert words.token(1) == "¶" and 1 in ids
    with torch.no_grad():
        expected = theirs(torch.cat((torch.tensor([[words.bos_id]]), ids), 1)).last_hidden_state[:, 1:]
        torch.testing.assert_close(model.encode(ids).states, expected, rtol=1e-4, atol=1e-5)


# --- what comes out ---

CHAT, WANTED = chats.chats(1, 5)[0]


def test_a_summary_tells_of_words(summarizer):
    found = summarizer.summarize(CHAT)
    assert found.text == WANTED and list(found.words) == found.text.split()
    assert [word.text for word in found.source] == CHAT.split()
    assert all(CHAT[word.start : word.end] == word.text for word in found.source)
    assert found.attention.shape == (len(found.words), len(found.source))
    giver, brings, taker, thing = found.copied
    for copied, word in ((giver, found.words[0]), (taker, found.words[2]), (thing, found.words[3])):
        assert copied.probability > 0.5 and word.strip(".") in found.source[copied.position].text
    assert brings.probability < 0.1 and brings.position is None
    assert "##" in "".join(found.tokens)  # names are of several pieces


def test_shouting_is_copied_as_it_stands(summarizer):
    name = WANTED.split()[0]
    assert summarizer.summarize(CHAT.replace(name, name.upper())).text == WANTED.replace(name, name.upper())
    assert summarizer.summarize(CHAT.replace("some", "Some")).text == WANTED


def test_documents_longer_than_its_positions_are_read_whole(summarizer):
    """What is told far behind the first window is found there."""
    before = "\n".join(["Bako: hi! hi! hi! hi!"] * 20)
    (output,) = summarizer.outputs([f"{before}\n{CHAT}"], beam=1, max_length=20)
    assert "windows of 64" in output.note and not output.problem
    found = output.summaries[0]
    assert found.attention.shape == (len(found.words), len(f"{before}\n{CHAT}".split()))
    assert {word for word in WANTED.strip(".").split() if word != "brings"} & {w.strip(".") for w in found.words}
    outputs = summarizer.outputs([f"{before}\n{CHAT}", CHAT], beam=1, max_length=20)
    assert outputs[0].text == output.text and outputs[1].text == WANTED and not outputs[1].note


def test_a_document_of_which_nothing_can_be_seen_is_told(summarizer):
    for options in ({}, {"length": 5}):
        outputs = summarizer.outputs(["\u200b \u200b", CHAT], **options)
        assert outputs[0].problem == "the document has no text that the model knows" and outputs[1].text


def test_the_command_and_the_explorer_show_it(run, place, summarizer):
    done = run("summarize", "-m", place / "model", "--show", CHAT)
    giver, _, taker, _ = WANTED.split()
    drawn = done.out.decode()
    assert done.lines[0] == WANTED and f"[{giver}] brings [{taker}]" in drawn and f"[{giver}:]" in drawn
    from regard.explorer.summarization import SummarizationService, SummaryOptions

    (told,) = SummarizationService(summarizer).run("m", SummaryOptions(2, None), [CHAT])
    assert told["summary"] == WANTED
    assert [WANTED[w["start"] : w["end"]] for w in told["target"]["words"]] == WANTED.split()
    assert run("summarize", "-m", place / "model", "--int8", CHAT).lines == [WANTED]


# --- training ---


class Killed(Silent):
    def step(self, update, numbers):
        if update == 5:
            raise KeyboardInterrupt


@pytest.mark.slow
def test_a_killed_run_gives_the_same_weights(place, tmp_path):
    short = {"updates": 8, "warmup": 2, "valid_every": 2, "log_every": 1, "rdrop": 1.0, "pretrained_lr": 1e-3}
    bert = place / "bert"
    berts.train(tmp_path, bert, out="whole", **short)
    with pytest.raises(KeyboardInterrupt):
        berts.train(tmp_path, bert, out="cut", report=Killed(), **short)
    berts.train(tmp_path, bert, out="cut", **short)
    whole, cut = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "cut"))
    assert whole == cut
    assert "started with the weights of" in (tmp_path / "cut" / "README.md").read_text()
    with pytest.raises(ValueError, match=r"training\.pretrained_lr was 0\.001, is 0\.002"):
        berts.train(tmp_path, bert, out="cut", **short | {"pretrained_lr": 2e-3})


def test_what_was_pretrained_learns_at_its_own_pace(place, tmp_path):
    berts.train(tmp_path, place / "bert", updates=2, pretrained_lr=0.0, average=1)
    before, after = berts.encoder().state_dict(), regard.load(tmp_path / "model", device="cpu").model.state_dict()
    theirs = [name for name in before if name != "positions.weight"]
    assert all(torch.equal(before[name], after[name]) for name in theirs)
    assert torch.equal(before["positions.weight"], after["source_positions.weight"])
    fitted = WORK.fit_settings(berts.settings(tmp_path, place / "bert"), 3000, False, None)
    model = WORK.model(fitted, berts.words())
    corpus = Corpus.build([Pairs([("koko", "koko")])], berts.words())
    task = Summarization(model, corpus, None, fitted, torch.device("cpu"), False)
    paces = {name: task.pace(name) for name, _ in model.named_parameters()}
    assert {paces[name] for name in paces if name.startswith(FRESH)} == {1.0}
    assert paces["encoder.0.feed_forward.up.weight"] == paces["embedding_norm.weight"] == pytest.approx(0.4)
    assert paces["embedding.weight"] == pytest.approx(0.4 / model.config.output_scale)
    assert not any(name.startswith(FRESH) for name in before)


def test_frozen_vectors_stay(place, tmp_path):
    berts.train(tmp_path, place / "bert", updates=2, freeze=True, average=1)
    before, after = berts.encoder().state_dict(), regard.load(tmp_path / "model", device="cpu").model.state_dict()
    assert torch.equal(before["embedding.weight"], after["embedding.weight"])
    name = "encoder.0.feed_forward.up.weight"
    assert not torch.equal(before[name], after[name])


def test_a_summarizers_encoder_is_a_beginning_too(place, tmp_path):
    berts.train(tmp_path, place / "model", updates=1, lr=0.0, pretrained_lr=0.0)
    before, after = (regard.load(path / "model", device="cpu").model.state_dict() for path in (place, tmp_path))
    assert all(torch.equal(t, after[name]) for name, t in before.items() if name.startswith("encoder."))
    assert not torch.equal(before["gate.weight"], after["gate.weight"])


def test_batches_have_the_vocabularys_own_marks():
    words = berts.words().with_token("¶")
    corpus = Corpus.build([Pairs([("Koko: hi ¶ Bako: hi", "Koko"), ("ko", "ko")])], words)
    assert corpus.text(0) == ("koko: hi\nbako: hi", "koko")
    batch = batches(corpus, tokens=100, shuffle=False)[0]
    for row, length in zip(batch.source.tolist(), batch.source_lengths.tolist(), strict=True):
        assert row[length - 1] == words.eos_id and set(row[length:]) <= {words.pad_id}
    assert {row[0] for row in batch.target_in.tolist()} == {words.bos_id}
    with pytest.raises(ValueError, match="BPE-dropout is for subwords that were learned by merging"):
        batches(corpus, tokens=100, dropout=0.1)


def test_mistakes_are_told(place, tmp_path):
    given = berts.settings(place, place / "bert")
    with pytest.raises(ValueError, match=r"subwords\.dropout: .* has WordPiece, for which there is none"):
        WORK.fit_settings(dataclasses.replace(given, subwords={"dropout": 0.1}), 100, False, None)
    changed = WORK.fit_settings(dataclasses.replace(given, model={**given.model, "dim": 32}), 100, False, None)
    with pytest.raises(ValueError, match="its sizes are its own"):
        WORK.model(changed, berts.words())
    with pytest.raises(ValueError, match="expected a token '¶' in the vocabulary"):
        WordPiece.of_vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a"]).with_token("¶")
    with pytest.raises(FileNotFoundError, match="expected 'minilm', or a folder"):
        train(dataclasses.replace(given, model={"pretrained": "nowhere"}), tmp_path / "m", report=Silent())


def test_settings_of_the_recipe_can_be_trained_with(place):
    from training import ROOT

    from regard.files.toml import read_toml

    tables = read_toml(ROOT / "recipes" / "samsum" / "samsum-minilm.toml")
    given = Settings.from_tables({**tables, "model": {**tables["model"], "pretrained": str(place / "bert")}})
    fitted = WORK.fit_settings(given, 14_731, True, None)
    assert fitted.training.pretrained_lr < fitted.training.lr and fitted.model["windows"]
    assert isinstance(fitted, Fitted) and make_model({**fitted.model, "vocab_size": 200})
    assert json.dumps(fitted.tables())
