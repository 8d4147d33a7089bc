"""Tasks as such: found by name, imported late, each with a command and a way to load what it made."""

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
import toy
from training import ROOT, environment, main

import regard
from regard.cli.train import task_of
from regard.files.toml import read_toml, write_toml
from regard.models.folder import KINDS, make_model
from regard.tasks import TASKS, entry, work
from regard.tasks.base.run import Work
from regard.tasks.base.settings import Data, Fitted, Settings, complete
from regard.tasks.base.sizes import activations, check_room, expectation, parameters
from regard.train import Ranks


@pytest.mark.parametrize("name", TASKS)
def test_each_task_is_a_work_with_a_command(name, capsys):
    of = work(name)
    assert isinstance(of, Work) and of.name == name and task_of(["--out", "m", "--task", name]) == name
    known = of.settings.hints()
    assert {file for file, _ in of.files} <= {*known["data"]} and {*of.scores.values()} <= {*known["model"]}
    assert main(["--help"], name) == 0
    said = capsys.readouterr().out
    assert of.about in said and "--set" in said


def test_naming_a_task_imports_it_alone():
    code = "import sys, regard.tasks; print(*(m for m in sys.modules if m.startswith('regard.tasks.')))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert not done.stdout.split()


def test_what_is_no_task_is_told(capsys):
    assert main(["--out", "m"], "cooking") == 2 and "cooking" in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"task: expected one of translation.*got 'cooking'"):
        entry("cooking")


def test_a_folder_is_loaded_by_its_task(tmp_path):
    toy.train(tmp_path / "m", updates=1)
    assert isinstance(regard.load(tmp_path / "m", device="cpu"), regard.Translator)  # as older folders: it names none
    config = read_toml(tmp_path / "m" / "config.toml")
    write_toml(tmp_path / "m" / "config.toml", {"task": "cooking", **config})
    with pytest.raises(ValueError, match=r"task: expected one of .*, got 'cooking'"):
        regard.load(tmp_path / "m")
    with pytest.raises(ValueError, match="a model for cooking, and one for translation is needed"):
        regard.tasks.translation.translator.load(tmp_path / "m")


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_are_counted_without_making_all_layers(kind):
    layers = {key: 3 + i for i, key in enumerate(sorted(complete({"kind": kind}, (kind,)))) if key.endswith("layers")}
    if kind == "reader":
        layers["decoder_layers"] = 0
    more = {"hidden_dim": 24} if kind == "rnn" else {"ffn_dim": 40}
    table = {"kind": kind, "dim": 16, "heads": 2, "vocab_size": 51, **layers, **more}
    assert parameters(table) == sum(p.numel() for p in make_model(table).parameters())


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("pairs", [300, 7_600, 500_000])
def test_the_preset_for_a_laptop_is_one_of_minutes_whatever_the_task(name, pairs):
    """Counted: at the 40 to 80 billion operations a second of a CPU's one or two threads."""
    of = work(name)
    settings = of.settings(data=of.settings.data_table(), preset="laptop")
    for kind in of.settings.kinds:
        fitted = Fitted.of(replace(settings, model={"kind": kind}), pairs, False)
        s, size = fitted.training, parameters({**fitted.model, "vocab_size": fitted.cutting.vocab_size})
        operations = 3 * size * s.updates * s.tokens * (2 if s.rdrop else 1)
        assert operations < 30e12 and (pairs < 7600 or operations > 15e12), f"{operations:.2g}"
        told = expectation(fitted, size, "so good")
        assert told.startswith(f"preset laptop: {s.updates:,} updates") and told.endswith("; so good")
        assert "operations: 5 to 10 minutes" in told or kind != "transformer" or pairs < 7600
        assert fitted.tables()["preset"] == "laptop"
    own = {"training": {"updates": 7, "rdrop": 1.0}, "subwords": {"vocab_size": 500}}
    fitted = Fitted.of(replace(settings, **own), pairs, False)
    assert (fitted.training.updates, fitted.training.rdrop, fitted.cutting.vocab_size) == (7, 1.0, 500)
    assert fitted.training.schedule == "cosine" and fitted.training.warmup == 1
    with pytest.raises(ValueError, match="preset must be one of laptop, got 'phone'"):
        of.settings.from_tables({"preset": "phone"})


def test_a_training_of_hours_names_the_preset_and_one_of_a_minute_says_nothing():
    fitted = Fitted.of(Settings(data=Data()), 8000, False)
    told = expectation(fitted, parameters({**fitted.model, "vocab_size": 4000}), "")
    assert "operations: 126 to 252 minutes on a laptop's CPU" in told
    assert told.endswith("; --preset laptop takes five to ten")
    short = Fitted.of(Settings(data=Data(), training={"updates": 10}), 8000, False)
    assert expectation(short, 6_000_000, "") == ""


def test_what_this_machine_has_no_memory_for_is_told_with_its_size():
    ranks = Ranks(0, 1, torch.device("cpu"))

    def fitted(pairs=9000, training=None, **model):
        return Fitted.of(Settings(data=Data(), model=model, training=training or {}), pairs, False)

    check_room(fitted(), 9000, ranks)
    wide = fitted(dim=2**18, ffn_dim=2**19, heads=4)
    with pytest.raises(ValueError, match=r"dim 262,144, .*parameters: training needs [\d,.]+ GiB .* cpu has .*smaller"):
        check_room(wide, 9000, ranks)
    batch = fitted(5_000_000, {"tokens": 2**30})
    assert activations(batch, 9000) < activations(batch, 5_000_000)  # a batch is no larger than the corpus
    with pytest.raises(ValueError, match=r"training\.tokens = 1,073,741,824; cpu has .*Choose fewer tokens"):
        check_room(batch, 10**9, ranks)
