"""QAMR's questions as spans of their sentences: its dev file to train and validate on, its test file to test on.

    python recipes/qamr/prepare.py CORPORA --out out/qamr

CORPORA is a folder with qamr. Of the sentences of dev every tenth (by the SHA-256 of its id) is held out for
validation, with all of its questions. A sentence is its tokens with spaces between them, brackets and quotes written as
people write them. An answer is the tokens that the asker or a validator marked; one that is not contiguous (2.5 %)
counts only where nobody marked a contiguous one, and is then the span from its first to its last token.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "squad"))

from prepare import write

WRITTEN = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}", "``": '"', "''": '"'}


def rows(path: Path) -> Iterator[list[str]]:
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as file:
        for line in file:
            yield line.rstrip("\n").split("\t")


def marked(cells: Sequence[str]) -> list[list[int]]:
    """Token numbers of the asker's answer and of the validators'; those who gave none are left out."""
    found = []
    for number, cell in enumerate(cells):
        numbers = cell if number == 0 else cell.partition(":")[2]
        places = sorted(int(n) for n in numbers.split() if n.isdigit())
        if places:
            found.append(places)
    return found


def spans(cells: Sequence[str]) -> list[tuple[int, int]]:
    """Token spans [first, last] of the answers."""
    found = marked(cells)
    whole = [places for places in found if places[-1] - places[0] + 1 == len(places)]
    return [(places[0], places[-1]) for places in (whole or found)]


def entry(number: int, row: Sequence[str], tokens: Sequence[str]) -> dict[str, Any]:
    starts, at = [], 0
    for token in tokens:
        starts.append(at)
        at += len(token) + 1
    context = " ".join(tokens)
    answers = []
    for first, last in spans(row[6:9]):
        start, end = starts[first], starts[last] + len(tokens[last])
        answers.append({"text": context[start:end], "start": start})
    return {"id": f"{row[0]}/{number}", "context": context, "question": row[5], "answers": answers}


def held_out(sentence: str) -> bool:
    return int(hashlib.sha256(sentence.encode()).hexdigest(), 16) % 10 == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpora", type=Path)
    parser.add_argument("--out", type=Path, default=Path("out/qamr"))
    options = parser.parse_args()
    folder = options.corpora / "qamr"
    sentences = {
        name: [WRITTEN.get(token, token) for token in text.split()]
        for name, text in rows(folder / "wiki-sentences.tsv.gz")
    }
    sides: dict[str, list[dict[str, Any]]] = {"train": [], "valid": [], "test": []}
    for part in ("dev", "test"):
        for number, row in enumerate(rows(folder / f"filtered.{part}.tsv.gz")):
            made = entry(number, row, sentences[row[0]])
            side = "test" if part == "test" else "valid" if held_out(row[0]) else "train"
            sides[side].append(made)
    counts = {}
    for side, entries in sides.items():
        write(options.out / f"{side}.jsonl.gz", entries)
        texts = {made["context"] for made in entries}
        counts[side] = {"sentences": len(texts), "questions": len(entries)}
        print(f"{side}: {len(texts):,} sentences, {len(entries):,} questions")
    (options.out / "counts.json").write_text(json.dumps(counts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
