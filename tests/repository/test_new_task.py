"""The example of CONTRIBUTING.md: a fourth task is one file and a line of a table."""

import ast
import re
import sys
import types

import toy
from commands import ROOT

import regard
from regard.cli import main
from regard.tasks import TASKS, Entry


def test_a_task_of_ones_own_trains_and_loads(tmp_path, monkeypatch):
    code = re.search(
        r"<!-- a test runs this -->\n```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL
    )[1]
    imported = [alias for node in ast.walk(ast.parse(code)) for alias in getattr(node, "names", ())]
    assert imported and not [alias.name for alias in imported if alias.asname or alias.name.startswith("_")]
    module = types.ModuleType("regard.tasks.restoring")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(code, "restoring.py", "exec"), module.__dict__)
    monkeypatch.setitem(TASKS, "restoring", Entry("regard.tasks.restoring", "regard.tasks.translation.translator"))
    lines = [line.capitalize() for line, _, _ in toy.pairs(60, seed=0)]
    for name in ("train", "valid"):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    assert module.lost(lines[0]) == lines[0].lower().replace(".", "")
    small = "--vocab-size 330 --dim 16 --ffn-dim 16 --heads 2 --encoder-layers 1 --decoder-layers 1 --updates 2"
    files = ["--text", str(tmp_path / "train"), "--valid", str(tmp_path / "valid"), "--out", str(tmp_path / "m")]
    assert main(["train", "--task", "restoring", *files, *small.split(), "--tokens", "500", "--device", "cpu"]) == 0
    found = regard.load(tmp_path / "m", device="cpu")
    assert isinstance(found, regard.Translator) and 'task = "restoring"' in (tmp_path / "m" / "config.toml").read_text()
    assert isinstance(found.translate("the dog", max_length=3), str)
    assert f"- `{tmp_path / 'train'}`" in (tmp_path / "m" / "README.md").read_text()  # what it was trained on
    assert main(["train", "--task", "restoring", "--out", str(tmp_path / "n")]) == 2
