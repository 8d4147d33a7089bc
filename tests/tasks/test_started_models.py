"""Training that begins with a trained model: its weights, its subwords, its size; then other pairs."""

import re

import pytest
import torch
import toy
from resuming import train_until, weights
from training import main, train_here

import regard
from regard.files.toml import read_toml, write_toml
from regard.models import folder

NEW = {"oiseau": "piaf", "mange": "mord"}  # what the new pairs say otherwise


TOML = """
[data]
source = "train.en"
target = "train.fr"
valid_source = "val.en"
valid_target = "val.fr"
[training]
updates = 120
tokens = 1200
lr = 2e-3
valid_every = 40
average = 1
bleu = false
device = "cpu"
"""


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A folder with few pairs of the toy language, in which some words have other translations, and settings."""
    for name, count, seed in (("train", 300, 5), ("val", 20, 6)):
        some = toy.pairs(count, seed)
        sides = {"en": [s for s, _, _ in some], "fr": [" ".join(NEW.get(w, w) for w in t.split()) for _, t, _ in some]}
        for side, lines in sides.items():
            (tmp_path / f"{name}.{side}").write_text("".join(f"{line}\n" for line in lines))
    (tmp_path / "toy.toml").write_text(TOML)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def copied(model, to, **tables):
    """The model with other tables in its config.toml."""
    to.mkdir()
    for name in ("tokenizer.json", "model.safetensors"):
        (to / name).write_bytes((model / name).read_bytes())
    write_toml(to / "config.toml", {**read_toml(model / "config.toml"), **tables})
    return to


def run(*arguments):
    return main(["--config", "toy.toml", "--out", "ours", *map(str, arguments)])


def test_it_begins_with_all_of_the_model(model, files):
    begun = copied(model, files / "begun", translate={"beam": 2}, align={"layer": 0, "head": 1, "shift": True})
    assert run("--start", begun, "--updates=1", "--lr=0", "--warmup=0") == 0
    before, after = folder.open(begun), folder.open("ours")
    theirs = after.model.state_dict()
    assert all(torch.equal(t, theirs[name]) for name, t in before.model.state_dict().items())
    assert (files / "ours" / "tokenizer.json").read_bytes() == (begun / "tokenizer.json").read_bytes()
    assert after.settings["translate"] == {"beam": 2} and after.settings["align"]["head"] == 1
    assert f"started with the weights of `{begun}`" in (files / "ours" / "README.md").read_text()


def test_where_its_alignments_are_read_stays_and_nothing_else_is_told(model, files, capsys):
    for side in ("en", "fr"):  # so many that they would be looked for
        (files / f"train.{side}").write_text((files / f"train.{side}").read_text() * 4)
    own = {"layer": 0, "head": 1, "shift": False}
    assert run("--start", copied(model, files / "begun", align=own), "--updates=1") == 0
    assert "word alignments are read from" not in capsys.readouterr().err
    assert read_toml(files / "ours" / "config.toml")["align"] == own


@pytest.mark.slow
def test_it_learns_what_is_new_and_keeps_what_is_not(model, files):
    assert run("--start", model) == 0
    new, old = "the big bird eats a dog .", "a red cat sees the dog ."
    assert regard.load(model, device="cpu").translate(new) == "le oiseau grand mange un chien ."
    after = regard.load("ours", device="cpu")
    assert after.translate(new) == "le piaf grand mord un chien ."
    assert after.translate(old) == "un chat rouge voit le chien ."


@pytest.mark.slow
def test_from_scratch_so_few_updates_are_not_enough(files):
    size = ["--dim=64", "--ffn-dim=128", "--heads=8", "--encoder-layers=1", "--decoder-layers=2"]  # the model's
    assert run("--vocab-size=300", *size) == 0
    assert regard.load("ours", device="cpu").translate("a red cat sees the dog .") != "un chat rouge voit le chien ."


@pytest.mark.slow
def test_killed_and_started_again_it_gives_the_same_weights(model, files):
    given = ["--start", str(model), "--updates=12", "--set=training.valid_every=2", "--set=model.dropout=0.2"]
    assert train_here(files, "--out", "whole", *given)[0] == 0
    train_until(files, 4, "--out", "ours", *given)
    assert not (files / "ours" / "model.safetensors").exists()
    assert train_here(files, "--out", "ours", *given)[0] == 0
    assert weights(files / "ours") == weights(files / "whole")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("--dim=48", r"\[model\]: dim is 64 in .*, which training starts with; got 48"),
        ("--score=additive", r"\[model\]: cross_score is 'dot' in .*; got 'additive'"),
        ("--vocab-size=500", r"\[subwords\]: .* has its own; vocab_size cannot be chosen"),
        ("--start=nowhere", r"nowhere: there is no such model folder"),
    ],
)
def test_what_belongs_to_the_model_cannot_be_chosen(model, files, capsys, given, message):
    assert run("--start", model, given) == 2
    assert re.search(message, capsys.readouterr().err)
    assert not (files / "ours").exists()


@pytest.mark.slow
@pytest.mark.parametrize("begins", [True, False])
def test_lines_over_the_positions_that_a_model_has_are_told_before_training(files, capsys, begins):
    short = ["--dim=16", "--vocab-size=300", "--updates=1", "--set=model.positions=learned"]
    made = ["--config", "toy.toml", "--out", "short", *short, "--set=model.max_length=100"]
    assert not begins or main(made) == 0
    for side in ("en", "fr"):
        with open(files / f"train.{side}", "a") as file:
            file.write("bird " * 110 + "\n")
    capsys.readouterr()
    given = ["--start=short", "--updates=1"] if begins else [*short, "--set=model.max_length=100"]
    assert run(*given) == 2
    told = capsys.readouterr().err
    assert re.search(r"max_length is 100, and a line has \d+ subwords .* --set data.max_tokens=99", told)
    assert not list((files / "ours").glob("checkpoints/*"))
    assert run(*given, "--set=data.max_tokens=99", "--set=subwords.dropout=0.0") == 0


def test_a_model_of_another_task_is_refused(model, files, capsys):
    assert run("--start", copied(model, files / "other", task="qa")) == 2
    assert "is a model for qa; expected one for translation" in capsys.readouterr().err
