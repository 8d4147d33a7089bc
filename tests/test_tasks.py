"""Tasks as such: found by name, imported late, each with a command and a way to load what it made."""

import subprocess
import sys

import pytest
import toy
from training import ROOT, environment

import regard
from regard.store import read_toml, write_toml
from regard.tasks import TASKS, entry, work
from regard.tasks._command import named, parse
from regard.tasks._run import Work


@pytest.mark.parametrize("name", TASKS)
def test_each_task_is_a_work_with_a_command(name, capsys):
    of = work(name)
    assert isinstance(of, Work) and of.name == name and named(["--task", name]) is of
    known = of.settings.keys()
    assert {file for file, _ in of.files} <= known["data"] and set(of.scores.values()) <= known["model"]
    with pytest.raises(SystemExit) as stopped:
        parse(of, ["--help"])
    said = capsys.readouterr().out
    assert stopped.value.code == 0 and of.about in said and "--set" in said


def test_naming_a_task_imports_it_alone():
    code = "import sys, regard.tasks; print(*(m for m in sys.modules if m.startswith('regard.tasks.')))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert not done.stdout.split()


def test_what_is_no_task_is_told(capsys):
    with pytest.raises(SystemExit) as stopped:
        named(["--task", "cooking", "--out", "m"])
    assert stopped.value.code == 2 and "cooking" in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"task: expected one of translation.*got 'cooking'"):
        entry("cooking")
    with pytest.raises(SystemExit):
        parse(work("translation"), ["--task", next((n for n in TASKS if n != "translation"), "other"), "--out", "m"])


def test_a_folder_is_loaded_by_its_task(tmp_path):
    toy.train(tmp_path / "m", updates=1)
    assert isinstance(regard.load(tmp_path / "m", device="cpu"), regard.Translator)  # as older folders: it names none
    config = read_toml(tmp_path / "m" / "config.toml")
    write_toml(tmp_path / "m" / "config.toml", {"task": "cooking", **config})
    with pytest.raises(ValueError, match=r"task: expected one of .*, got 'cooking'"):
        regard.load(tmp_path / "m")
    with pytest.raises(ValueError, match="a model for cooking, and one for translation is needed"):
        regard.translator.load(tmp_path / "m")
