"""bAbI's stories (Weston et al. 2015, https://arxiv.org/abs/1502.05698): facts, a question, its answer, and which facts
support it.

A file has lines "number sentence" and "number question TAB answer TAB numbers of the supporting facts"; number 1 begins
a new story.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

TASKS = range(1, 21)


class Question(NamedTuple):
    """A question with all facts told before it; ``support`` are indices of facts, from 0. ``story`` counts stories."""

    task: int
    story: int
    facts: tuple[str, ...]
    question: str
    answer: str
    support: tuple[int, ...]

    @property
    def text(self) -> str:
        """What a model reads: the facts, then the question."""
        return " ".join((*self.facts, self.question))

    @property
    def spans(self) -> list[tuple[int, int]]:
        """Where in ``text`` each fact stands, and last the question: characters, from and to."""
        found, start = [], 0
        for sentence in (*self.facts, self.question):
            found.append((start, start + len(sentence)))
            start += len(sentence) + 1
        return found

    def without(self, left_out: set[int]) -> Question:
        """The same question, with these facts not told."""
        kept = [i for i in range(len(self.facts)) if i not in left_out]
        places = {old: new for new, old in enumerate(kept)}
        support = tuple(places[i] for i in self.support if i in places)
        return self._replace(facts=tuple(self.facts[i] for i in kept), support=support)


def path(folder: Path, task: int, part: str) -> Path | None:
    """The file of a task, perhaps gzipped; None where there is none."""
    found = sorted(folder.glob(f"qa{task}_*_{part}.txt*"))
    return found[0] if found else None


def read(folder: Path, task: int, part: str) -> list[Question]:
    """The questions of a task; part is "train" or "test"."""
    file = path(folder, task, part)
    if file is None:
        raise FileNotFoundError(f"{folder}: expected qa{task}_…_{part}.txt, perhaps gzipped; it is not there")
    with gzip.open(file, "rt", encoding="utf-8") if file.suffix == ".gz" else open(file, encoding="utf-8") as lines:
        return list(_questions(task, lines))


def _questions(task: int, lines: Iterator[str]) -> Iterator[Question]:
    story, facts, places = 0, [], {}  # places: a fact's number in the file to its index
    for line in lines:
        number, rest = line.strip().split(" ", 1)
        if number == "1":
            story, facts, places = story + 1, [], {}
        if "\t" not in rest:
            places[number] = len(facts)
            facts.append(rest.strip().lower())
            continue
        question, answer, support = (cell.strip().lower() for cell in rest.split("\t"))
        yield Question(task, story, tuple(facts), question, answer, tuple(sorted({places[n] for n in support.split()})))
