"""SQuAD v1.1's development set, split by article: no article is on two sides.

    python recipes/squad/prepare.py CORPORA --out out/squad

CORPORA is a folder with squad_v1.1_dev. The 48 articles are ordered by the SHA-256 of their titles: the first 10 are
tested on, the next 4 validated on, the other 34 trained on. Written: train, valid and test, .jsonl.gz, counts.json.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

TESTED, VALIDATED = 10, 4


def write(path: Path, entries: Iterable[Mapping[str, Any]]) -> None:
    """JSON lines, gzipped without a time: the same lines are the same file."""
    lines = "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries)
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as file:
        file.write(lines.encode())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(packed.getvalue())


def questions(article: Mapping[str, Any]) -> list[dict[str, Any]]:
    """As JSON lines have them."""
    return [
        {
            "id": asked["id"],
            "title": article["title"],
            "context": paragraph["context"],
            "question": asked["question"],
            "answers": [{"text": a["text"], "start": a["answer_start"]} for a in asked["answers"]],
        }
        for paragraph in article["paragraphs"]
        for asked in paragraph["qas"]
    ]


def sides(articles: Iterable[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Which articles are for what."""
    ordered = sorted(articles, key=lambda article: hashlib.sha256(article["title"].encode()).hexdigest())
    cut = TESTED + VALIDATED
    return {"test": ordered[:TESTED], "valid": ordered[TESTED:cut], "train": ordered[cut:]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpora", type=Path)
    parser.add_argument("--out", type=Path, default=Path("out/squad"))
    options = parser.parse_args()
    with gzip.open(options.corpora / "squad_v1.1_dev" / "dev-v1.1.json.gz") as file:
        articles = json.load(file)["data"]
    counts = {}
    for side, some in sides(articles).items():
        entries = [entry for article in some for entry in questions(article)]
        write(options.out / f"{side}.jsonl.gz", entries)
        counts[side] = {"articles": [article["title"] for article in some], "questions": len(entries)}
        print(f"{side}: {len(some)} articles, {len(entries):,} questions")
    (options.out / "counts.json").write_text(json.dumps(counts, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
