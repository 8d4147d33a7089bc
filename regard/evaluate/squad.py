"""Exact match and F1 of answers, as SQuAD counts them (Rajpurkar et al. 2016, https://arxiv.org/abs/1606.05250).

Case, punctuation (ASCII), the words a, an and the, and white space do not count. F1 is that of the words that answer
and reference share; of several references the best one counts; a question without an answer has the reference "".
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
    """Per cent of questions: answered exactly, and the mean F1."""

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
    """2 P R / (P + R) over words, each as often as it occurs.

    >>> round(f1("in the city of Paris", "Paris city"), 4)  # P = 2/4, R = 2/2
    0.6667
    """
    ours, theirs = normalize(answer).split(), normalize(reference).split()
    if not ours or not theirs:
        return float(ours == theirs)
    same = (Counter(ours) & Counter(theirs)).total()
    return 2 * same / (len(ours) + len(theirs))


def quality(answers: Sequence[str], references: Sequence[Sequence[str]]) -> AnswerQuality:
    """Of an answer to each question, given its references; none stand for "no answer".

    >>> print(quality(["Paris", "on Monday"], [["paris", "Paris, France"], ["Monday", "Tuesday"]]))
    EM 50.00, F1 83.33 (2 questions)
    """
    if len(answers) != len(references):
        raise ValueError(f"expected an answer to each of {len(references):,} questions, got {len(answers):,}")
    exact = overlap = 0.0
    for answer, right in zip(answers, references, strict=True):
        # an answer that is nothing but articles and punctuation is no reference, unless all are
        known = [r for r in right if normalize(r)] or [""]
        exact += max(exact_match(answer, r) for r in known)
        overlap += max(f1(answer, r) for r in known)
    count = max(1, len(answers))
    return AnswerQuality(100 * exact / count, 100 * overlap / count, len(answers))
