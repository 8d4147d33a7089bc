"""Exact match and F1 of answers, as in SQuAD (Rajpurkar et al. 2016, https://arxiv.org/abs/1606.05250).

Case, ASCII punctuation, the articles a, an and the, and white space are ignored. F1 is over the words that answer and
reference share. The best of several references counts. An unanswerable question has the reference "".
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


class AnswerQuality(NamedTuple):
    """Exact match and mean F1, in per cent."""

    exact: float
    f1: float
    questions: int

    def __str__(self) -> str:
        return f"EM {self.exact:.2f}, F1 {self.f1:.2f} ({self.questions:,} questions)"


def normalize(answer: str) -> str:
    """
    >>> normalize("The  Eiffel-Tower (a tower)!")
    'eiffeltower tower'
    """
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, reference: str) -> float:
    """
    >>> exact_match("the cat.", "Cat"), exact_match("cats", "cat")
    (1.0, 0.0)
    """
    return float(normalize(answer) == normalize(reference))


def f1(answer: str, reference: str) -> float:
    """2 P R / (P + R) over words with multiplicity.

    >>> round(f1("in the city of Paris", "Paris city"), 4)  # P = 2/4, R = 2/2
    0.6667
    """
    ours, theirs = normalize(answer).split(), normalize(reference).split()
    if not ours or not theirs:
        return float(ours == theirs)
    same = (Counter(ours) & Counter(theirs)).total()
    return 2 * same / (len(ours) + len(theirs))


def quality(answers: Sequence[str], references: Sequence[Sequence[str]]) -> AnswerQuality:
    """The quality of an answer to each question, given its references; no references mean "no answer".

    >>> print(quality(["Paris", "on Monday"], [["paris", "Paris, France"], ["Monday", "Tuesday"]]))
    EM 50.00, F1 83.33 (2 questions)
    """
    if len(answers) != len(references):
        raise ValueError(f"expected an answer to each of {len(references):,} questions, got {len(answers):,}")
    exact = overlap = 0.0
    for answer, right in zip(answers, references, strict=True):
        # a reference of only articles and punctuation is ignored, unless all are
        known = [r for r in right if normalize(r)] or [""]
        exact += max(exact_match(answer, r) for r in known)
        overlap += max(f1(answer, r) for r in known)
    count = max(1, len(answers))
    return AnswerQuality(100 * exact / count, 100 * overlap / count, len(answers))
