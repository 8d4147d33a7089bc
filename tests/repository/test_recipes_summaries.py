"""The recipes of summarization: names changed everywhere alike, gaps, titles, and the script that measures."""

import gzip
import importlib.util
import json
import random
import sys

import chats
import pytest
from commands import ROOT

from regard.tasks.summarization.search import SummarySearch


def script(name):
    path = ROOT / "recipes" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name.replace("/", "_"), path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


samsum, scitldr, rouge = script("samsum/prepare"), script("scitldr/prepare"), script("rouge")

CHATS = [
    (
        "Amanda: I saw Tom.\nTom's sister: hi\nJerry: Will you go?\nAmanda: i will",
        "Amanda saw Tom. She will go with Jerry.",
    ),
    ("Tom: Amanda is late\nMay: i may go\nTom: you may, may you", "Tom says that Amanda is late. He goes."),
    ("Jerry: hello\nBetty: hi", "Betty and her dog greet Jerry."),
    ("Oscar: hello\nBetty: hi", "Oscar greets Betty."),
]


def test_everybody_gets_another_name_everywhere_alike():
    known = samsum.names(CHATS)
    assert known == {"Amanda": "f", "Betty": "f", "Jerry": "?", "Oscar": "?", "Tom": "m"}  # may and will are words
    dialogue, summary = samsum.renamed(CHATS[2], known, random.Random(1))
    assert (dialogue, summary) == ("Oscar: hello\nAmanda: hi", "Amanda and her dog greet Oscar.")
    assert samsum.renamed(CHATS[0], known, random.Random(1))[0].startswith("Betty: I saw Tom.")  # there is no other man
    many = dict.fromkeys(chats.NAMES, "?") | {"Jerry": "?", "Betty": "?"}
    drawn = {samsum.renamed(CHATS[2], many, random.Random(seed)) for seed in range(20)}
    assert len(drawn) == 20
    for dialogue, summary in drawn:
        first, second = (line.split(":")[0] for line in dialogue.split("\n"))
        assert first != second and summary == f"{second} and her dog greet {first}."


def test_a_gap_asks_for_what_was_taken_out():
    said = "Ann: we could meet at the station at nine tomorrow"
    lines = ["Bob: where do we meet tomorrow", said, "Bob: at nine at the station then", "Ann: ok"]
    ((source, target),) = samsum.gaps([("\n".join(lines), "x")], most=1)
    assert target in said and "Ann: …" in source and target not in source and source.startswith("…\n")
    assert not list(samsum.gaps([("Ann: hi\nBob: hi", "x")]))


def test_samsum_is_prepared_whole(tmp_path, monkeypatch, capsys):
    rows = [{"dialogue": d, "summary": s} for d, s in (*CHATS, ("", "nothing was said"))]
    for name in ("train", "validation", "test"):
        with gzip.open(tmp_path / f"{name}.json.gz", "wt") as file:
            file.write("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setattr(sys, "argv", ["prepare.py", str(tmp_path), "--out", str(tmp_path / "out"), "--copies", "2"])
    samsum.main()
    made = {path.name for path in (tmp_path / "out").iterdir()}
    assert made == {f"{n}.jsonl.gz" for n in ("train", "valid", "test", "names-1", "names-2", "gaps")}
    for name in ("train", "names-1", "test"):
        with gzip.open(tmp_path / "out" / f"{name}.jsonl.gz", "rt") as file:
            assert len(file.readlines()) == len(CHATS)


def test_titles_and_gaps_of_abstracts():
    sentence = "we show that a small model can do what a large one does"
    row = {"source": ["One.", sentence, "Two.", "Three."], "target": ["a", "b"], "title": "Small"}
    assert scitldr.pairs([row]) == [{"document": row["source"], "summary": ["a", "b"]}]
    assert scitldr.titles([row]) == [{"document": ["title:", *row["source"]], "summary": "Small"}]
    assert list(scitldr.gaps([row])) == [{"document": ["…", "One.", "…", "Two.", "Three."], "summary": sentence}]


@pytest.mark.slow
def test_the_baselines_and_a_model_are_measured(tmp_path, monkeypatch, capsys):
    chats.train(tmp_path)
    some = [{"document": d.split("\r\n"), "summary": [s, "another"]} for d, s in chats.chats(5, 3)]
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in some))
    arguments = [
        str(tmp_path / "model"),
        str(tmp_path / "test.jsonl"),
        "--beam",
        "2",
        "--json",
        str(tmp_path / "s.json"),
    ]
    monkeypatch.setattr(sys, "argv", ["rouge.py", *arguments, "--summaries", str(tmp_path / "out.txt")])
    rouge.main()
    (report,) = json.loads((tmp_path / "s.json").read_text()).values()
    assert report["model"]["rouge1"] > 90 > report["lead-3"]["rouge1"] and report["model"]["beam"] == 2
    for name in ("length_penalty", "no_repeat", "min_length"):
        assert report["model"][name] == getattr(SummarySearch, name)
    assert len((tmp_path / "out.txt").read_text().splitlines()) == 5
    assert "longest-3" in capsys.readouterr().out
    (tmp_path / "test.jsonl").write_text("{}\n")
    with pytest.raises(ValueError, match="expected a string or a list of strings under 'document'"):
        rouge.main()
