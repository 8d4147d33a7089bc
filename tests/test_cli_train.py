"""regard train: flags, a model from it, and mistakes."""

import os
import subprocess
import sys

import pytest
import toy
from commands import ROOT, SOURCES, process


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


def test_training_needs_no_typer(corpus, files):
    """A GPU machine may have neither the command line's packages nor sacrebleu."""
    code = "import sys; sys.modules.update(dict.fromkeys(['typer', 'rich', 'sacrebleu', 'numba'])); "
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


def test_flags_are_settings(tmp_path):
    from regard.tasks.translation import FLAGS, parse

    (tmp_path / "c.toml").write_text("[model]\ndim = 8\nheads = 2\n[training]\nupdates = 5\n")
    settings, _ = parse(["--config", str(tmp_path / "c.toml"), "--out", "m", "--dim", "16", "--score", "additive"])
    assert settings.model == {"dim": 16, "heads": 2, "cross_score": "additive"} and settings.training == {"updates": 5}
    settings, _ = parse(
        ["--out", "m", "--kind", "rnn", "--score", "general", "--lr", "1e-3", "--set", "training.clip=2"]
    )
    assert settings.model == {"kind": "rnn", "score": "general"} and settings.training == {"lr": 1e-3, "clip": 2}
    values = {int: "8", float: "0.5", str: "cpu"}
    for table, key, kind, _ in FLAGS:  # each has a name that its table knows
        value = kind[0] if isinstance(kind, tuple) else values[kind]
        settings, _ = parse(["--out", "m", f"--{key.replace('_', '-')}", value])
        assert str(getattr(settings, table)[key]) == value


def test_train_tells_what_is_wrong(run, corpus, files):
    done = run("train", *corpus[2:], "--out", files / "model")
    assert done.code == 2 and "without source" in done.err
    done = run("train", "--source", "nowhere.en", *corpus[2:], "--out", files / "model")
    assert done.code == 2 and "nowhere.en" in done.err and not (files / "model").exists()
    assert run("train", *corpus, "--out", files / "test.en").code == 2
    assert (files / "test.en").read_text().splitlines() == SOURCES
    done = run("train", "--help")
    assert done.code == 0 and "regard train --source" in done.out.decode() and "--encoder-layers" in done.out.decode()
