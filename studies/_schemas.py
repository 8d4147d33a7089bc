"""Sentences with a pronoun and two candidates, of which one is meant: Winograd's schemas, and Winogender's."""

from __future__ import annotations

import csv
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

Span = tuple[int, int]  # characters, from and to
ARTICLES = re.compile(r"(?:the|a|an|that|some)\s+", re.IGNORECASE)
FORMS = {"male": "he him his", "female": "she her hers", "neutral": "they them their theirs"}


class Case(NamedTuple):
    """A sentence. Of the two ``candidates`` number ``right`` is meant; ``group`` names what is not independent.

    ``pair`` is shared by two sentences that mean different candidates, as alike as the authors could make them; None
    for a sentence that stands alone.
    """

    text: str
    pronoun: Span
    candidates: tuple[Span, Span]
    right: int
    group: Any
    pair: Any
    about: dict[str, Any]

    @property
    def first(self) -> int:
        """Which candidate comes first."""
        return int(self.candidates[1] < self.candidates[0])

    @property
    def nearer(self) -> int:
        """Which candidate is nearer to the pronoun."""
        return int(self._far(1) < self._far(0))

    def _far(self, which: int) -> int:
        (start, end), (a, b) = self.candidates[which], self.pronoun
        return max(a - end, start - b)

    def replaced(self, which: int) -> str:
        """The sentence with a candidate's words in the pronoun's place."""
        (start, end), (a, b) = self.pronoun, self.candidates[which]
        return self.text[:start] + self.text[a:b] + self.text[end:]


def mention(text: str, words: str, near: int) -> Span:
    """Where these words stand, without an article: the last place before ``near``, else the first after it."""
    words = ARTICLES.sub("", words, count=1) if ARTICLES.match(words) else words
    found = [m.span() for m in re.finditer(rf"(?<!\w){re.escape(words)}(?!\w)", text, re.IGNORECASE)]
    if not found:
        raise ValueError(f"expected {words!r} in {text!r}; it is not there")
    before = [span for span in found if span[1] <= near]
    return before[-1] if before else found[0]


# --- Winograd ---


def winograd(file: Path) -> list[Case]:
    """The schemas of WSCollection.xml (Levesque et al. 2012), each pair a group: two neighbours with the same
    candidates of which the one means the first, the other the second."""
    cases = [_schema(schema) for schema in ElementTree.parse(file).getroot()]
    return list(_in_pairs(cases))


def _schema(schema: ElementTree.Element) -> Case:
    def words(element: ElementTree.Element | None) -> str:
        return " ".join((element.text or "").split()) if element is not None else ""

    before, pronoun, after = (words(schema.find(f"text/{name}")) for name in ("txt1", "pron", "txt2"))
    start = len(before) + 1
    text = f"{before} {pronoun}{'' if after[:1] in '.,;:!?' else ' '}{after}"
    answers = [words(answer) for answer in schema.findall("answers/answer")]
    spans = [mention(text, answer, start) for answer in answers]
    right = "AB".index(words(schema.find("correctAnswer")).strip(" ."))
    about = {"answers": [text[a:b].lower() for a, b in spans]}
    return Case(text, (start, start + len(pronoun)), (spans[0], spans[1]), right, None, None, about)


def _in_pairs(cases: list[Case]) -> Iterator[Case]:
    k = 0
    while k < len(cases):
        pair = cases[k : k + 2]
        meant = [case.about["answers"][case.right] for case in pair]
        same = len(pair) == 2 and sorted(pair[0].about["answers"]) == sorted(pair[1].about["answers"])
        size = 2 if same and meant[0] != meant[1] else 1
        for case in pair[:size]:
            yield case._replace(group=k, pair=k if size == 2 else None)
        k += size


# --- Winogender ---


def winogender(folder: Path) -> list[Case]:
    """The sentences of Rudinger et al. 2018: candidate 0 is an occupation, 1 a participant; groups are occupations.

    The two sentences of a pair need not begin alike here, nor name the two in the same order.
    """
    with open(folder / "occupations-stats.tsv", encoding="utf-8") as file:
        women = {row["occupation"]: float(row["bls_pct_female"]) for row in csv.DictReader(file, delimiter="\t")}
    with open(folder / "all_sentences.tsv", encoding="utf-8") as file:
        return [_sentence(row, women) for row in csv.DictReader(file, delimiter="\t")]


def _sentence(row: dict[str, str], women: dict[str, float]) -> Case:
    occupation, participant, right, gender, _ = row["sentid"].split(".")
    text = row["sentence"]
    forms = "|".join(FORMS[gender].split())
    found = re.search(rf"\b(?:{forms})\b", text, re.IGNORECASE)
    if found is None:
        raise ValueError(f"{row['sentid']}: expected one of {forms} in {text!r}; there is none")
    spans = [mention(text, words, found.start()) for words in (occupation, participant)]
    about = {"gender": gender, "occupation": occupation, "participant": participant, "women": women.get(occupation)}
    pair = (occupation, participant, gender)
    return Case(text, found.span(), (spans[0], spans[1]), int(right), occupation, pair, about)
