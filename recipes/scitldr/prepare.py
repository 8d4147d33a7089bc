"""SciTLDR-A, abstracts with one-sentence summaries, as JSON lines to train on, and more made of the same abstracts.

    python recipes/scitldr/prepare.py CORPORA/scitldr_a --out out/scitldr

There are but 1,992 abstracts to train on. ``titles`` asks for the title of each, behind the mark "title:" (as Cachola
et al. 2020, https://arxiv.org/abs/2004.15011, do), and ``gaps`` for a sentence that was taken out of the abstract,
behind the mark "…". Both are of the training set alone; validation and test are as they were, with all their summaries.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def read(path: Path) -> list[Row]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def write(path: Path, rows: Sequence[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", mtime=0) as file:
        for row in rows:
            file.write((json.dumps(row, ensure_ascii=False) + "\n").encode())
    print(f"{path}: {len(rows):,}")


def pairs(rows: Sequence[Row]) -> list[Row]:
    """Sentences of the abstract, and all its summaries."""
    return [{"document": row["source"], "summary": row["target"]} for row in rows if any(row["source"])]


def titles(rows: Sequence[Row]) -> list[Row]:
    return [{"document": ["title:", *row["source"]], "summary": row["title"]} for row in rows if row["title"].strip()]


def gaps(rows: Sequence[Row]) -> Iterator[Row]:
    for row in rows:
        source = [sentence for sentence in row["source"] if sentence.strip()]
        for i, sentence in enumerate(source):
            if len(source) > 3 and 8 <= len(sentence.split()) <= 40:
                yield {"document": ["…", *source[:i], "…", *source[i + 1 :]], "summary": sentence}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path, help="the folder with train.jsonl.gz, dev.jsonl.gz and test.jsonl.gz")
    parser.add_argument("--out", type=Path, default=Path("out/scitldr"))
    options = parser.parse_args()
    train = read(options.corpus / "train.jsonl.gz")
    write(options.out / "train.jsonl.gz", pairs(train))
    write(options.out / "titles.jsonl.gz", titles(train))
    write(options.out / "gaps.jsonl.gz", list(gaps(train)))
    for name, into in (("dev", "valid"), ("test", "test")):
        write(options.out / f"{into}.jsonl.gz", pairs(read(options.corpus / f"{name}.jsonl.gz")))


if __name__ == "__main__":
    main()
