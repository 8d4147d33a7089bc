"""Questions in tokens: the windows of their contexts, and the start and end of the answers in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from regard.common.mixing import line_keys
from regard.common.ragged import Integers
from regard.data import Report
from regard.data.questions import Question
from regard.tasks.qa.spans import ContextWindow, Prediction, WindowSize
from regard.text.subwords import Encoded
from regard.text.wordpiece import Cutter

_ORDER, _ANSWER, _NEGATIVE, _OTHER = 111, 112, 113, 114  # the purpose of a hash, so that no two are equal
_NEAR = 64  # pieces away, at most, of a context without the answer: mostly the same text


@dataclass
class QuestionRows:
    """Questions, contexts and answers [start, end) in tokens, row by row, and ``pieces``: a window each."""

    given: list[Question]
    questions: list[list[int]]
    contexts: list[list[int]]
    offsets: list[list[tuple[int, int]]]
    answers: list[list[tuple[int, int]]]
    pieces: list[ContextWindow]
    room: WindowSize

    @classmethod
    def of(
        cls, given: Sequence[Question], subwords: Cutter, room: WindowSize, reports: Sequence[Report]
    ) -> QuestionRows:
        """Unusable questions are left out, and counted in the last report."""
        texts = dict.fromkeys(text for q in given for text in (q.context, q.question))
        cut = dict(zip(texts, subwords.encode_batch(list(texts)), strict=True))
        asked = cls([], [], [], [], [], [], room)
        for q in given:
            problem = asked._add(q, cut[q.question], cut[q.context])
            if problem and reports:
                reports[-1].kept -= 1
                reports[-1].left_out[problem] += 1
        if not asked.given:
            raise ValueError(f"none of {len(given):,} questions can be used: {dict(reports[-1].left_out)}")
        return asked

    def _add(self, q: Question, question: Encoded, context: Encoded) -> str:
        if len(question.ids) > self.room.most:
            return f"questions longer than {self.room.most} subwords"
        if not question.ids or not context.ids:
            return "without any subword"
        answers = [tokens(context, *span) for span in q.spans]
        if any(start >= end for start, end in answers):
            return "answers without any subword"
        row = len(self.given)
        self.given.append(q)
        self.questions.append(question.ids)
        self.contexts.append(context.ids)
        self.offsets.append(context.offsets)
        self.answers.append(answers)
        self.pieces += [ContextWindow(row, *cut) for cut in self.room.cuts(len(question.ids), len(context.ids))]
        return ""

    def lessons(self, which: Integers | None = None) -> Lessons:
        """Every piece once, with the first answer to each question, or with answer ``which``."""
        rows = np.array([piece.row for piece in self.pieces], np.int64)
        chosen = np.zeros(len(self.given), np.int64) if which is None else which
        places = [self._places(piece, int(chosen[piece.row])) for piece in self.pieces]
        return Lessons(self, rows, np.arange(len(rows)), np.array(places, np.int64))

    def epoch(self, seed: int, epoch: int, negatives: float) -> Lessons:
        """The lessons of an epoch in random order.

        Of several answers to a question one is sampled, in proportion to how often people gave it. ``negatives`` is the
        share of pieces whose question is also paired with a context that does not contain the text of an answer.
        """
        keys = np.asarray(line_keys(seed, epoch, _ANSWER, np.arange(len(self.given))), np.uint64)
        counts = np.array([max(1, len(spans)) for spans in self.answers], np.uint64)
        plain = self.lessons((keys % counts).astype(np.int64))
        others = self._others(seed, epoch, negatives)
        rows, pieces = (np.concatenate(two) for two in zip((plain.rows, plain.pieces), others, strict=True))
        places = np.zeros((len(rows), 2), np.int64)
        places[: len(plain.places)] = plain.places
        order = np.argsort(line_keys(seed, epoch, _ORDER, np.arange(len(rows))), kind="stable")
        return Lessons(self, rows[order], pieces[order], places[order])

    def _others(self, seed: int, epoch: int, share: float) -> tuple[Integers, Integers]:
        """Question rows, and pieces that do not answer them."""
        every = np.arange(len(self.pieces))
        chosen = np.argsort(line_keys(seed, epoch, _NEGATIVE, every), kind="stable")[: round(share * len(every))]
        steps = np.asarray(line_keys(seed, epoch, _OTHER, chosen), np.uint64) % np.uint64(_NEAR)
        rows, pieces = [], []
        for i, step in zip(chosen.tolist(), steps.tolist(), strict=True):
            row, other = self.pieces[i].row, (i + 1 + int(step)) % len(every)
            context = self.given[self.pieces[other].row].context
            fits = len(self.questions[row]) + 3 + self.pieces[other].end - self.pieces[other].start <= self.room.window
            if fits and context != self.given[row].context and not any(a in context for a in self.given[row].answers):
                rows.append(row)
                pieces.append(other)
        return np.array(rows, np.int64), np.array(pieces, np.int64)

    def _places(self, piece: ContextWindow, which: int) -> tuple[int, int]:
        """Start and end of an answer as the reader counts them; 0 and 0 if it is not in this piece."""
        if not self.answers[piece.row]:
            return 0, 0
        first, last = self.answers[piece.row][which]
        inside = piece.start <= first and last <= piece.end
        return (1 + first - piece.start, last - piece.start) if inside else (0, 0)


@dataclass(frozen=True)
class Lessons:
    """Training examples: ``places[i]`` are start and end for question ``rows[i]`` and piece ``pieces[i]``."""

    asked: QuestionRows
    rows: Integers
    pieces: Integers
    places: Integers  # [M, 2]

    @cached_property
    def _lengths(self) -> tuple[Integers, Integers]:
        asked = np.array([len(self.asked.questions[row]) + 2 for row in self.rows], np.int64)
        pieces = [self.asked.pieces[i] for i in self.pieces]
        return asked, np.array([piece.end - piece.start + 1 for piece in pieces], np.int64)

    def lengths(self, multiple: int) -> tuple[Integers, Integers]:
        """Of questions and contexts, with bos and eos, padded to a multiple."""
        asked, told = (-(-side // multiple) * multiple for side in self._lengths)
        return asked, told

    def tokens(self, some: Integers) -> tuple[list[list[int]], list[list[int]]]:
        """Of the questions and of the contexts of some of them."""
        pieces = [self.asked.pieces[i] for i in self.pieces[some]]
        questions = [self.asked.questions[row] for row in self.rows[some]]
        return questions, [self.asked.contexts[piece.row][piece.start : piece.end] for piece in pieces]


def tokens(context: Encoded, start: int, end: int) -> tuple[int, int]:
    """The tokens [a, b) that touch the characters [start, end); none: a ≥ b."""
    touched = [i for i, (a, b) in enumerate(context.offsets) if a < end and b > start and a < b]
    return (touched[0], touched[-1] + 1) if touched else (0, 0)


def texts_of(asked: QuestionRows, rows: Sequence[int], found: Sequence[Prediction]) -> list[str]:
    """The first answer to each of these; "" where "no answer" is likelier, if the data have such questions."""
    abstains = any(not spans for spans in asked.answers)
    out = []
    for row, each in zip(rows, found, strict=True):
        if not each.spans or (abstains and each.no_answer > each.spans[0].probability):
            out.append("")
            continue
        first, last = each.spans[0].start, each.spans[0].end - 1
        offsets = asked.offsets[row]
        out.append(asked.given[row].context[offsets[first][0] : offsets[last][1]])
    return out
