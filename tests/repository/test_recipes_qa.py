"""The recipes of question answering: what is tested on is not trained on, and what is made small is whole again."""

import gzip
import importlib.util
import json
import re
import sys
from pathlib import Path

import asked
import pytest
import torch
from safetensors.torch import load_file

from regard.data.questions import read_questions
from regard.files.toml import read_toml
from regard.models import Transformer, TransformerConfig, folder
from regard.tasks.qa.train import Settings

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "recipes"


def script(name):
    """A script of a recipe, as a module; its folder is no package, and each takes what stands beside it."""
    before, known = list(sys.path), sys.modules.pop("prepare", None)
    sys.path.insert(0, str((RECIPES / name).parent))
    try:
        spec = importlib.util.spec_from_file_location(f"recipe_{name.replace('/', '_')[:-3]}", RECIPES / name)
        found = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(found)
        return found
    finally:
        sys.path[:] = before
        sys.modules.pop("prepare", None)
        if known is not None:
            sys.modules["prepare"] = known


def put(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()))


def article(number):
    context = f"Article {number} says that Ana has the hat."
    answers = [{"text": "the hat", "answer_start": context.index("the hat")}]
    paragraph = {"context": context, "qas": [{"id": f"q{number}", "question": "What?", "answers": answers}]}
    return {"title": f"Title {number}", "paragraphs": [paragraph]}


def test_no_article_of_squad_is_on_two_sides(tmp_path, monkeypatch, capsys):
    prepare = script("squad/prepare.py")
    whole = {"version": "1.1", "data": [article(n) for n in range(48)]}
    put(tmp_path / "squad_v1.1_dev" / "dev-v1.1.json.gz", json.dumps(whole))
    monkeypatch.setattr(sys, "argv", ["prepare.py", str(tmp_path), "--out", str(tmp_path / "out")])
    prepare.main()
    sides = {side: list(read_questions(tmp_path / "out" / f"{side}.jsonl.gz")) for side in ("train", "valid", "test")}
    assert {side: len(found) for side, found in sides.items()} == {"train": 34, "valid": 4, "test": 10}
    contexts = [q.context for found in sides.values() for q in found]
    assert len(set(contexts)) == 48 and all(q.answers == ["the hat"] for found in sides.values() for q in found)
    counts = json.loads((tmp_path / "out/counts.json").read_text())
    titles = {side: set(counts[side]["articles"]) for side in sides}
    assert not titles["train"] & titles["test"] and not titles["valid"] & (titles["train"] | titles["test"])


def test_qamr_answers_are_spans_of_sentences(tmp_path, monkeypatch, capsys):
    prepare = script("qamr/prepare.py")
    sentences = [f"Wiki:{n}\tEric -LRB- a `` boss '' -RRB- was told number {n} ." for n in range(60)]
    row = "\t".join(["{id}", "0 1", "7", "0", "3", "Who was he ?", "{own}", "3:{one}", "4:{two}"])
    put(tmp_path / "qamr" / "wiki-sentences.tsv.gz", "\n".join(sentences) + "\n")
    for part, numbers in (("dev", range(40)), ("test", range(40, 60))):
        marks = {"own": "2 3 4", "one": "2 4", "two": "4"}
        lines = [row.format(id=f"Wiki:{n}", **marks) for n in numbers]
        put(tmp_path / "qamr" / f"filtered.{part}.tsv.gz", "\n".join(lines) + "\n")
    monkeypatch.setattr(sys, "argv", ["prepare.py", str(tmp_path), "--out", str(tmp_path / "out")])
    prepare.main()
    sides = {side: list(read_questions(tmp_path / "out" / f"{side}.jsonl.gz")) for side in ("train", "valid", "test")}
    assert len(sides["test"]) == 20 and len(sides["train"]) + len(sides["valid"]) == 40 and sides["valid"]
    seen = {side: {q.context for q in found} for side, found in sides.items()}
    assert not seen["train"] & seen["valid"] and not seen["test"] & (seen["train"] | seen["valid"])
    first = sides["test"][0]
    assert first.context == 'Eric ( a " boss " ) was told number 40 .'
    assert first.answers == ['a " boss', "boss"]  # what is not contiguous does not count beside what is
    assert prepare.spans(["2 4", "3:", "4:7 9"]) == [(2, 4), (7, 9)]  # unless there is nothing else


def test_a_slim_model_is_filled_again(tmp_path):
    encoder = script("squad/encoder.py")
    torch.manual_seed(0)
    model, _ = asked.trained(tmp_path, out="first", count=60, training={"updates": 1})
    first = folder.open(model)
    config = {**first.model.config.to_table(), "decoder_layers": 0}
    known = {key: value for key, value in config.items() if key in TransformerConfig.__dataclass_fields__}
    known.pop("cross_score")
    folder.save(
        tmp_path / "encoder", Transformer(TransformerConfig(**known)), first.subwords, settings={"task": "encoder"}
    )
    trained, _ = asked.trained(
        tmp_path,
        count=60,
        model={"pretrained": str(tmp_path / "encoder"), "dropout": 0.0},
        training={"updates": 2, "freeze": True},
    )
    small = encoder.slim(trained, tmp_path / "small", "float32")
    assert "encoder.embedding.weight" not in load_file(small / "model.safetensors")
    again = encoder.fill(small, tmp_path / "encoder", tmp_path / "again")
    a, b = (load_file(path / "model.safetensors") for path in (trained, again))
    assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
    whole = encoder.slim(model, tmp_path / "whole", "int8")  # from scratch: nothing is left out
    assert folder.open(encoder.fill(whole, tmp_path / "encoder", tmp_path / "filled")).subwords.fingerprint


@pytest.mark.parametrize("name", sorted(str(p.relative_to(RECIPES)) for p in RECIPES.glob("[qs]*/*.toml")))
def test_settings_are_known(name):
    if name.split("/")[0] not in ("qamr", "squad"):
        pytest.skip("of another task")
    tables = read_toml(RECIPES / name)
    settings = Settings.from_tables(tables)
    assert settings.data.files() and not set(settings.data.files()) & set(settings.data.files(valid=True))
    assert not any("test" in path for path in (*settings.data.files(), *settings.data.files(valid=True)))


def test_the_page_shows_what_is_true():
    page = (ROOT / "docs" / "answer.md").read_text(encoding="utf-8")
    (block,) = [b for b in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "trilinear" in b]
    exec(block, {})
