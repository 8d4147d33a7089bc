"""The summarization task: it learns to copy, resumes exactly, reads what people have, and says what is wrong."""

import dataclasses
import gzip
import json
import os
import subprocess
import sys

import chats
import numpy as np
import pytest
from training import ROOT, environment

import regard
from regard.data import Corpus, Pairs, batches, read
from regard.data.documents import Documents, flat, places
from regard.evaluate.rouge import rouge
from regard.tasks.base.settings import Fitted
from regard.tasks.summarization.train import Data, Settings, train
from regard.text import Subwords
from regard.train import Silent


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chats")
    chats.train(folder)
    return regard.load(folder / "model", device="cpu")


@pytest.mark.slow
def test_a_tiny_model_copies_names_that_no_summary_had(learned):
    assert chats.right(learned, chats.KNOWN) >= 45
    assert chats.right(learned, chats.UNSEEN) >= 25


@pytest.mark.slow
def test_without_copying_it_cannot(tmp_path):
    chats.train(tmp_path, copy=False)
    assert chats.right(regard.load(tmp_path / "model", device="cpu"), chats.UNSEEN) <= 5


class Killed(Silent):
    def step(self, update, numbers):
        if update == 5:
            raise KeyboardInterrupt


def test_a_killed_run_gives_the_same_weights(tmp_path):
    chats.write(tmp_path / "train.jsonl", chats.chats(200, 0))
    chats.write(tmp_path / "valid.jsonl", chats.chats(20, 1))
    given = chats.settings(tmp_path, dropout=0.2, coverage=True, told_length=True)
    short = {"updates": 8, "warmup": 2, "valid_every": 2, "log_every": 1, "rdrop": 1.0, "coverage": 0.5}
    given = dataclasses.replace(given, training={**given.training, **short}, subwords={"vocab_size": 400})
    train(given, tmp_path / "whole", report=Silent())
    with pytest.raises(KeyboardInterrupt):
        train(given, tmp_path / "cut", report=Killed())
    train(given, tmp_path / "cut", report=Silent())
    whole, cut = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "cut"))
    assert whole == cut
    assert train(given, tmp_path / "cut", report=Silent()) is None  # it is finished, and that is no other setting
    other = dataclasses.replace(given, model={**given.model, "copy_score": "dot"})
    with pytest.raises(ValueError, match=r"model\.copy_score was 'additive', is 'dot'"):
        train(other, tmp_path / "cut", report=Silent())


@pytest.mark.slow
def test_the_command_needs_nothing_optional(tmp_path):
    """A GPU machine may have torch, tokenizers, safetensors and numpy alone."""
    chats.write(tmp_path / "train.jsonl", chats.chats(100, 0))
    chats.write(tmp_path / "valid.jsonl", chats.chats(20, 1))
    absent = ["numba", "rich", "sacrebleu", "rouge_score", "triton", "tensorboard", "matplotlib", "tomli"]
    code = f"import sys; sys.modules.update(dict.fromkeys({absent})); from regard.__main__ import main; "
    code += "sys.exit(main(sys.argv[1:]))"
    options = "train --task summarization --train train.jsonl --valid valid.jsonl --out m --vocab-size 400 --dim 16"
    options += " --ffn-dim 16 --heads 2 --encoder-layers 1 --decoder-layers 1 --updates 3 --tokens 500 --device cpu"
    done = subprocess.run(
        [sys.executable, "-c", code, *options.split(), "--set", 'data.keys=["dialogue", "summary"]', "--score", "dot"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "rouge_score is not installed: validation is by loss alone" in done.stderr
    config = (tmp_path / "m" / "config.toml").read_text()
    assert 'task = "summarization"' in config and 'copy_score = "dot"' in config
    card = (tmp_path / "m" / "README.md").read_text()
    assert "regard summarize" in card and "`train.jsonl`" in card


def test_validation_measures_rouge(tmp_path):
    chats.write(tmp_path / "train.jsonl", chats.chats(60, 0))
    chats.write(tmp_path / "valid.jsonl", chats.chats(5, 1))
    given = chats.settings(tmp_path)
    given = dataclasses.replace(given, training={**given.training, "updates": 2, "rouge": True})
    outcome = train(given, tmp_path / "m", report=Silent())
    assert {"valid_loss", "rouge1", "rouge2", "rougeL"} <= outcome.scores.keys()


@pytest.mark.parametrize("recipe", ["samsum/samsum", "samsum/samsum-lower", "scitldr/scitldr"])
def test_settings_of_recipes_can_be_trained_with(recipe):
    from regard.files.toml import read_toml
    from regard.models.folder import make_model, pack

    given = Settings.from_tables(read_toml(ROOT / "recipes" / f"{recipe}.toml"))
    fitted = Fitted.of(given, 14_731, True)
    assert len(given.data.training()) > 1 and fitted.training.rdrop
    import torch

    with torch.device("meta"):
        model = make_model({**fitted.model, "vocab_size": fitted.cutting.vocab_size})
    stored = pack({k: torch.zeros(v.shape) for k, v in model.state_dict().items()}, "int8")
    assert sum(t.nbytes for t in stored.values()) < 16 * 2**20


# --- documents ---


def test_a_document_is_one_line_and_every_character_has_its_place():
    text = "  Ann:  hi!\r\n\r\n Bob:\thello \u2028 you\n"
    assert flat(text) == "Ann: hi! ¶ Bob: hello ¶ you"
    at = places(text)
    assert len(at) == len(flat(text))
    for char, place in zip(flat(text), at, strict=True):
        assert text[place] == char or (text[place].isspace() and char in " ¶")
    assert flat("") == "" and places(" \n") == []


def rows(path, **options):
    return list(read(Documents(path, **options)))


def test_documents_are_read_as_people_have_them(tmp_path):
    lines = [
        {"dialogue": "Ann: hi\r\nBob: yo", "summary": "They greet."},
        {"dialogue": ["One.", "Two."], "summary": ["First.", "Second."]},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "d.jsonl").write_text(text)
    with gzip.open(tmp_path / "d.jsonl.gz", "wt") as file:
        file.write(text)
    wanted = [("Ann: hi ¶ Bob: yo", "They greet."), ("One. ¶ Two.", "First."), ("One. ¶ Two.", "Second.")]
    for name in ("d.jsonl", "d.jsonl.gz"):
        assert rows(tmp_path / name, keys=("dialogue", "summary")) == wanted
    (tmp_path / "d.tsv").write_text("x\tlong  text\tshort\n")
    assert rows(tmp_path / "d.tsv", columns=(1, 2)) == [("long text", "short")]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"{", "not JSON"),
        (b"[1]", "not a JSON object"),
        (b'{"document": "x"}', "expected a string or a list of strings under 'summary', got no such key"),
        (b'{"document": 3, "summary": "x"}', "under 'document', got a int"),
        (b'{"document": [], "summary": "x"}', "under 'document', got a list"),
        (b'{"document": " ", "summary": "x"}', "empty side"),
        (b"\xff", "not UTF-8"),
    ],
)
def test_bad_documents_are_named(tmp_path, line, says):
    (tmp_path / "d.jsonl").write_bytes(b'{"document": "a", "summary": "b"}\n' + line + b"\n")
    with pytest.raises(ValueError, match=r"d\.jsonl:2: ") as caught:
        rows(tmp_path / "d.jsonl")
    assert says in str(caught.value)
    assert len(list(read(Documents(tmp_path / "d.jsonl"), bad="skip"))) == 1


def test_settings_say_what_is_wrong(tmp_path):
    with pytest.raises(ValueError, match="keys must be two names"):
        Data(keys=["one"])
    with pytest.raises(ValueError, match="bad must be raise or skip"):
        Data(bad="guess")
    with pytest.raises(ValueError, match="no training data: give --train"):
        Data().training()
    with pytest.raises(ValueError, match="a corpus takes path, keys, columns and weight"):
        Data(corpora=[{"file": "x"}]).training()
    with pytest.raises(ValueError, match="kind must be one of pointer, got 'rnn'"):
        Settings(data=Data(), model={"kind": "rnn"})
    with pytest.raises(ValueError, match="coverage must be a number of at least 0"):
        Settings(data=Data(), training={"coverage": -1})
    with pytest.raises(FileNotFoundError, match=r"nowhere\.jsonl"):
        train(Settings(data=Data(train="nowhere.jsonl")), tmp_path / "m", report=Silent())
    assert not os.path.exists(tmp_path / "m")


def test_under_bpe_dropout_a_word_is_cut_the_same_way_in_all_of_a_pair():
    pairs = [("Amanda sees Amanda and Jeremiah", "Jeremiah and Amanda")] * 30
    subwords = Subwords.learn([[text for pair in pairs for text in pair]], 290)
    corpus = Corpus.build([Pairs(pairs)], subwords)
    count = np.arange(len(pairs))

    def cuts(row, word):
        """The ways in which a word is cut in a row."""
        words = [[]]
        for token in row:
            words += [[]] if subwords.token(token).startswith(" ") else []
            words[-1].append(token)
        return {tuple(w) for w in words if subwords.decode(w).strip() == word}

    options = {"dropout": 0.3, "seed": 1, "epoch": 0}
    several = 0
    for alike in (True, False):
        source, target = (corpus.draw(s, count, count * 0, **options, alike=alike).lists() for s in (0, 1))
        ways = [len(cuts(a, "Amanda") | cuts(b, "Amanda")) for a, b in zip(source, target, strict=True)]
        several = max(ways)
        if alike:
            assert ways == [1] * len(pairs)
            assert len({tuple(row) for row in source}) > 5  # but not in all pairs
    assert several > 1
    some = batches(corpus, tokens=2000, dropout=0.3, alike=True)[0]
    assert {*some.target_out[0].tolist()} - {0, 2} <= {*some.source[0].tolist()}


def test_rouge_is_the_packages_own_of_lines_that_are_sentences():
    outputs, references = ["The cat sat. A dog ran.", "nothing"], [["A dog ran. The cat sat."], ["x", "nothing much"]]
    found = rouge(outputs, references)
    assert found["rouge1"] == pytest.approx(100 * (1 + 2 / 3) / 2)
    assert found["rougeL"] == pytest.approx(found["rouge1"])  # whatever the order of sentences
    assert found["rouge2"] < found["rouge1"]
    with pytest.raises(ValueError, match="expected as many outputs as references, got 1 and 2"):
        rouge(["x"], references)
