"""The command line as a whole: mistakes, help, and the transcripts of the documentation."""

import os
import re
import shutil
import signal
import subprocess
import sys
from unittest.mock import Mock

import pytest
from commands import ROOT

import regard
from regard.cli import COMMANDS

# --- mistakes ---


def damaged(model, path, name, change):
    shutil.copytree(model, path)
    data = (path / name).read_bytes()
    (path / name).write_bytes(change(data))
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("model.safetensors", lambda b: b[:-100], "cut short"),
        ("model.safetensors", lambda b: b[:-4] + b"\x00\x01\x02\x03", "checksum"),
        ("tokenizer.json", lambda b: b[: len(b) // 2], "tokenizer.json"),
        ("config.toml", lambda b: b.replace(b"format = 1", b"format = 99"), "format 99"),
        ("config.toml", lambda b: b"\xff", "config.toml"),
    ],
)
def test_a_damaged_model(run, model, tmp_path, name, change, says):
    done = run("translate", "-m", damaged(model, tmp_path / "m", name, change), "x")
    assert done.code == 2 and says in done.err and "Traceback" not in done.err and done.out == b""


def ended(model, number=None):
    """The exit code of a command that answers line by line, after a signal, or when its output is read no more."""
    program = [sys.executable, "-m", "regard", "translate", "-m", str(model), "--window", "1"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(program, env=environment, **pipes) as running:
        running.stdin.write(b"the dog\n")
        running.stdin.flush()
        assert running.stdout.readline()
        if number is None:
            running.stdout.close()
            running.stdin.write(b"the dog\n")
        else:
            running.send_signal(number)
            running.wait(60)
        running.stdin.close()
        assert b"Traceback" not in running.stderr.read()
    return running.returncode


@pytest.mark.slow
def test_exit_codes_are_those_of_the_docs(run, model, tmp_path, monkeypatch):
    import torch

    from regard.cli import train as command
    from regard.tasks.base import run as training
    from regard.train import Diverged

    text = (ROOT / "docs" / "cli.md").read_text().split("## Exit codes")[1]
    told = {int(code): meaning for code, meaning in re.findall(r"^\| (\d+) \| (.*) \|$", text, re.MULTILINE)}
    assert [*told] == [0, 1, 2, 130, 143]
    assert run("translate", "-m", model, "the dog").code == 0 and run("translate", "-m", "nix", "the dog").code == 2
    assert ended(model) == 1 and "closed it" in told[1]
    assert ended(model, signal.SIGINT) == 130 and "Ctrl-C" in told[130]
    assert 128 - ended(model, signal.SIGTERM) == 143 and "SIGTERM" in told[143]
    with monkeypatch.context() as importing:  # as if modules were still imported
        importing.setattr(command, "work", Mock(side_effect=KeyboardInterrupt))
        assert run("train", "--out", tmp_path).code == 130
    for error, meaning in ((Diverged("x"), "diverged"), (torch.OutOfMemoryError("x"), "GPU ran out of memory")):
        monkeypatch.setattr(training, "train", Mock(side_effect=error))
        assert run("train", "--out", tmp_path).code == 1 and meaning in told[1]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["translate", "-m", "nowhere", "x"], "nowhere: there is no such model folder"),
        (["translate", "-m", "{files}/test.en", "x"], "expected a model folder"),
        (["translate", "-m", "{files}", "x"], "not a model folder"),
        (["translate", "-m", "{model}", "-i", "nowhere.en"], "nowhere.en: No such file"),
        (["translate", "-m", "{model}", "-i", "{files}"], "expected a file, got a folder"),
        (["translate", "-m", "{model}", "-i", "{files}/test.en", "text"], "not both"),
        (["translate", "-m", "{model}", "--beam", "0", "x"], "--beam"),
        (["translate", "-m", "{model}", "--beam", "many", "x"], "valid integer"),
        (["translate", "-m", "{model}", "--top-p", "0.5", "x"], "add --sample"),
        (["translate", "-m", "{model}", "--sample", "--top-p", "2", "x"], "top_p"),
        (
            ["translate", "-m", "{model}", "--layer", "9", "--alignment", "x"],
            "layer of cross-attention: expected one of 2, counted from 0",
        ),
        (["translate", "-m", "{model}", "--min-length", "9", "--max-length", "3", "x"], "minimum"),
        (["translate", "-m", "{model}", "--device", "abacus", "x"], "abacus"),
        (["translate", "-m", "{model}", "--device", "cuda", "--int8", "x"], "device"),
        (["translate", "-m", "{model}", "--wrong", "x"], "--wrong"),
        (["translate", "-m", "{model}", "-i", "{files}/test.en", "--score", "{files}/short"], "60 lines"),
        (["evaluate", "{files}/short", "-r", "{files}/test.fr"], "has 1 lines"),
        (["evaluate", "nowhere", "-r", "{files}/test.fr"], "nowhere: there is no such file"),
        (["evaluate", "-r", "{files}/test.fr"], "give files of translations"),
        (["evaluate", "{files}/test.fr", "-m", "{model}", "-r", "{files}/test.fr"], "--source"),
        (["evaluate", "{files}/test.fr", "-r", "{files}/test.fr", "--tokenize", "x"], "one of 13a"),
        (["evaluate", "{files}/test.fr", "-r", "{files}/test.fr", "--smooth", "x"], "one of add-k"),
        (["evaluate", "{files}/latin1", "-r", "{files}/latin1"], "latin1:1: not UTF-8"),
        (["evaluate", "{files}/empty", "-r", "{files}/empty"], "no lines"),
        (["align", "-m", "{model}", "{files}/test.en", "{files}/short"], "60 lines"),
        (["align", "-m", "{model}", "{files}/test.en", "{files}/test.fr", "--gold", "{files}/short.gold"], "1 lines"),
        (["align", "-m", "{model}", "{files}/test.en", "{files}/test.fr", "--gold", "{files}/test.fr"], "test.fr:1"),
        (["align", "-m", "{model}", "{files}/test.en", "{files}/test.fr", "--symmetrize", "x"], "grow-diag-final-and"),
        (["align", "-m", "{model}", "--strict", "{files}/test.en"], "test.en:1: expected a source and a target"),
        (["nonsense"], "nonsense"),
    ],
)
def test_mistakes_are_told_in_a_line(run, model, files, arguments, says):
    (files / "short").write_text("one\n")
    (files / "short.gold").write_text("0-0\n")
    (files / "latin1").write_bytes(b"\xe9\n")
    (files / "empty").write_text("")
    before = {path.name: path.read_bytes() for path in files.iterdir()}
    done = run(*(a.format(model=model, files=files) for a in arguments))
    assert done.code == 2 and says in done.err and done.out == b"" and "Traceback" not in done.err
    assert {path.name: path.read_bytes() for path in files.iterdir()} == before


def test_a_traceback_can_be_had(run, monkeypatch):
    monkeypatch.setenv("REGARD_DEBUG", "1")
    with pytest.raises(FileNotFoundError):
        run("translate", "-m", "nowhere", "x")


def test_what_is_bundled_is_told(run, tmp_path, monkeypatch):
    done = run("translate", "-m", "en-fr-smal", "hello")
    assert done.code == 2 and "en-fr-smal: there is no such model folder (bundled models: en-fr-small)" in done.err
    monkeypatch.setattr("regard.files.bundled.BUNDLED", tmp_path / "nowhere")  # a part of the package was left out
    done = run("translate", "hello")
    assert done.code == 2 and "en-fr-small" in done.err and "no model is bundled" in done.err


# --- help ---


def test_the_version(run):
    assert run("--version").out.decode() == f"regard {regard.__version__}\n"


def test_help_teaches(run):
    assert "translate" in run("--help").out.decode()
    for command in COMMANDS:
        done = run(command, "--help")
        assert done.code == 0 and f"regard {command} " in done.out.decode()


# --- the documentation ---


def transcripts(page):
    """Commands and what the page says that they print, block by block."""
    for block in re.findall(r"```console\n(.*?)```", page, re.DOTALL):
        yield [(part.split("\n")[0], part.split("\n")[1:]) for part in ("\n" + block.rstrip("\n")).split("\n$ ")[1:]]


@pytest.mark.slow
def test_the_transcripts_of_the_documentation(model, files):
    """As they stand in docs/cli.md, with … standing for anything."""
    os.symlink(model, files / "model")
    shell = f'regard() {{ {sys.executable} -m regard "$@"; }}; set -e; exec 2>&1; '
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "100"}
    page = (ROOT / "docs" / "cli.md").read_text()
    page = re.sub(r"<!-- bundled:begin -->.*?<!-- bundled:end -->", "", page, flags=re.DOTALL)  # see test_bundled.py
    count = 0
    for block in transcripts(page):
        for command, expected in block:
            done = subprocess.run(
                ["bash", "-c", shell + command], cwd=files, capture_output=True, check=False, text=True, env=environment
            )
            pattern = re.escape("\n".join(expected)).replace(r"\.\.\.", ".*?")
            if expected:
                pattern += "\n"
            assert re.fullmatch(pattern, done.stdout, re.DOTALL), f"$ {command}\n{done.stdout}"
            count += 1
    assert count == 17
