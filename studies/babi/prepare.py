"""bAbI as pairs of lines: the story with its question, and the answer.

    python studies/babi/prepare.py CORPORA --out out/babi/data
    python studies/babi/prepare.py CORPORA --out out/babi/data --tasks 1

CORPORA is the folder of the data sets, with babi_en_10k in it. Written: train.tsv.gz and valid.tsv.gz, "story and
question TAB answer"; the last tenth of each task's training stories is for validation, and a story is never in both.
Tasks without a training file are left out, and named. Supporting facts are not written: no model sees them.
"""

from __future__ import annotations

import argparse
import gzip
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from stories import TASKS, Question, path, read

HELD_OUT = 0.1  # of the stories


def split(questions: Sequence[Question]) -> tuple[list[Question], list[Question]]:
    """For training, and for validation: by story."""
    last = questions[-1].story
    first = last - max(1, round(HELD_OUT * last)) + 1
    return [q for q in questions if q.story < first], [q for q in questions if q.story >= first]


def write(file: Path, questions: Sequence[Question]) -> None:
    """The same questions give the same bytes."""
    text = "".join(f"{q.text}\t{q.answer}\n" for q in questions)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(gzip.compress(text.encode(), mtime=0))


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpora", type=Path, metavar="CORPORA")
    parser.add_argument("--out", type=Path, default=Path("out/babi/data"))
    parser.add_argument("--tasks", type=int, nargs="+", default=list(TASKS), choices=TASKS, metavar="N")
    options = parser.parse_args(argv)
    folder = options.corpora / "babi_en_10k"
    parts: tuple[list[Question], list[Question]] = ([], [])
    for task in options.tasks:
        if path(folder, task, "train") is None:
            print(f"task {task}: no training file, left out")
            continue
        for part, some in zip(parts, split(read(folder, task, "train")), strict=True):
            part.extend(some)
    for name, part in zip(("train", "valid"), parts, strict=True):
        write(options.out / f"{name}.tsv.gz", part)
        print(f"{options.out / name}.tsv.gz: {len(part):,} questions")


if __name__ == "__main__":
    main()
