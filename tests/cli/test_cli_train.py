"""regard train: flags, a model from it, and mistakes."""

import gzip
import json
import os
import subprocess
import sys
from types import NoneType
from typing import Literal, get_args, get_origin

import pytest
import toy
from commands import ROOT, SOURCES, process

from regard.cli._parser import Parser
from regard.cli.train import FLAGS, extend, flags_of, settings_of, train
from regard.files.toml import read_toml
from regard.tasks import TASKS, work


@pytest.fixture
def corpus(files):
    """train.en and train.fr, and options with which training takes seconds."""
    data = toy.pairs(300, seed=0)
    for name, side in (("train.en", 0), ("train.fr", 1)):
        (files / name).write_text("".join(f"{row[side]}\n" for row in data))
    small = (
        "--vocab-size 330 --dim 32 --ffn-dim 32 --heads 2 --encoder-layers 1 --decoder-layers 1 --dropout 0 --rdrop 0"
    )
    return [
        *("--source", files / "train.en", "--target", files / "train.fr"),
        *("--valid-source", files / "test.en", "--valid-target", files / "test.fr"),
        *small.split(),
        *["--updates", "6", "--tokens", "400", "--warmup", "2", "--device", "cpu", "--set", "training.valid_every=3"],
    ]


def test_train_then_translate(corpus, files):
    done = process("train", *corpus, "--out", files / "model")
    assert done.code == 0, done.err
    assert done.err.strip().endswith(f"{files / 'model'} holds the model"), "something speaks after it"
    assert {"model.safetensors", "tokenizer.json", "config.toml", "metrics.jsonl", "README.md"} <= set(
        os.listdir(files / "model")
    )
    done = process("translate", "-m", files / "model", "--max-length", 5, SOURCES[0])
    assert done.code == 0 and len(done.lines) == 1 and done.err == ""


def test_one_file_of_both_sides_is_enough(run, corpus, files):
    """By its name: columns between tabs, or JSON lines; gzipped or not."""
    sides = [(files / f"train.{side}").read_text().splitlines() for side in ("en", "fr")]
    pairs = list(zip(*sides, strict=True))
    (files / "train.tsv").write_text("".join(f"{s}\t{t}\n" for s, t in pairs))
    lines = "".join(json.dumps({"source": s, "target": t}) + "\n" for s, t in pairs)
    (files / "train.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    rest = corpus[4:]
    tables = []
    for i, name in enumerate(("train.tsv", "train.jsonl.gz")):
        done = run("train", "--source", files / name, *rest, "--updates", "1", "--out", files / f"m{i}")
        assert done.code == 0 and f"{name}: 300 lines read, 300 pairs kept" in done.err, done.err
        tables.append(read_toml(files / f"m{i}" / "config.toml")["data"])
        assert f"- `{files / name}`\n" in (files / f"m{i}" / "README.md").read_text()
    assert [table["fingerprint"] for table in tables] == [tables[0]["fingerprint"]] * 2
    done = run("train", "--source", files / "train.en", *rest, "--out", files / "n")
    assert done.code == 2 and "source is given without target; a file with both" in done.err and ".jsonl" in done.err


def test_one_file_given_twice_is_told(run, corpus, files):
    corpus[3] = corpus[1]
    done = run("train", *corpus, "--updates", "1", "--out", files / "m")
    assert done.code == 0
    assert f"warning: {corpus[1]} + {corpus[1]}: 300 of 300 pairs have the same text on both sides" in done.err
    assert done.err.count("warning") == 1  # the validation files are two


@pytest.mark.slow
def test_training_needs_nothing_optional(corpus, files):
    """A GPU machine may have neither the command line's packages nor sacrebleu."""
    without = ["rich", "sacrebleu", "numba", "regex", "wcwidth"]
    code = f"import sys; sys.modules.update(dict.fromkeys({without})); "
    code += "from regard.__main__ import main; sys.exit(main(sys.argv[1:]))"
    arguments = ["train", *map(str, corpus), "--out", str(files / "model")]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        check=False,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    assert "sacrebleu is not installed" in done.stderr and (files / "model" / "model.safetensors").exists()


def parsed(*arguments, task="translation"):
    """The settings of a command line."""
    of, parser = work(task), Parser("regard train", "").parameters(train)
    extend(parser, ["--task", task])
    given = parser.values(["--out", "m", *arguments])
    assert given.pop("out") == "m"
    return settings_of(of, given, given.pop("config", None), given.pop("set", []))


def test_flags_are_settings(tmp_path):
    (tmp_path / "c.toml").write_text("[model]\ndim = 8\nheads = 2\n[training]\nupdates = 5\n")
    settings = parsed("--config", str(tmp_path / "c.toml"), "--dim", "16", "--score", "additive")
    assert settings.model == {"dim": 16, "heads": 2, "cross_score": "additive"} and settings.training == {"updates": 5}
    settings = parsed("--kind", "rnn", "--score", "general", "--lr", "1e-3", "--set", "training.clip=2")
    assert settings.model == {"kind": "rnn", "score": "general"} and settings.training == {"lr": 1e-3, "clip": 2}


@pytest.mark.parametrize("task", TASKS)
def test_each_flag_reads_what_its_setting_is(task):
    values = {int: "8", float: "0.5", str: "cpu"}
    flags = flags_of(work(task))
    for name, hint in flags.items():
        table, key = name.split(".")
        kinds = [kind for kind in get_args(hint) or [hint] if kind is not NoneType]
        value = kinds[0] if get_origin(hint) is Literal else values[kinds[0]]
        given = getattr(parsed(f"--{key.replace('_', '-')}", value, task=task), table)
        assert str(given[key] if isinstance(given, dict) else getattr(given, key)) == value
    assert task != "translation" or {*flags} == {*FLAGS}


def test_a_preset_is_in_the_config_and_flags_count_beside_it(run, corpus, files):
    given = ["train", "--preset", "laptop", *corpus, "--set", "training.bleu=false", "--out", files / "m"]
    done = run(*given)
    assert done.code == 0 and "preset laptop: 6 updates of 400 subwords" in done.err, done.err
    tables = read_toml(files / "m" / "config.toml")
    assert tables["preset"] == "laptop" and tables["task"] == "translation"
    training = tables["training"]
    assert (training["updates"], training["schedule"], training["lr"], tables["model"]["dim"]) == (
        6,
        "cosine",
        3e-3,
        32,
    )
    assert "nothing to do" in run(*given).err
    (files / "p.toml").write_text('preset = "laptop"\n')
    done = run("train", "--config", files / "p.toml", *corpus, "--set", "training.bleu=false", "--out", files / "m")
    assert "nothing to do" in done.err
    done = run(*given, "--lr", "0.5")
    assert done.code == 2 and "training.lr was 0.003, is 0.5" in done.err
    assert run("train", "--preset", "phone", *corpus, "--out", files / "n").code == 2


def test_train_tells_what_is_wrong(run, corpus, files):
    done = run("train", *corpus[2:], "--out", files / "model")
    assert done.code == 2 and "target is given without source" in done.err
    done = run("train", "--source", "nowhere.en", *corpus[2:], "--out", files / "model")
    assert done.code == 2 and "nowhere.en" in done.err and not (files / "model").exists()
    assert run("train", *corpus, "--out", files / "test.en").code == 2
    assert (files / "test.en").read_text().splitlines() == SOURCES
    done = run("train", "--help")
    assert done.code == 0 and "regard train --source" in done.out.decode() and "--encoder-layers" in done.out.decode()
    assert "--preset laptop, for 8,000 pairs: " in done.out.decode() and "training.updates=2400" in done.out.decode()
