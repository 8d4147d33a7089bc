"""A trained reader with its subwords: takes a context and a question, returns the answer and its position."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypedDict

import torch
from torch import Tensor

from regard.align.attention import by_word
from regard.decode import named
from regard.files.bundled import find
from regard.models import Reader
from regard.tasks.base.use import open_model
from regard.tasks.qa.spans import LONGEST, STRIDE, WINDOW, AnswerSpan, Prediction, WindowSize, owners, pad_tokens, read
from regard.text.graphemes import border
from regard.text.subwords import Encoded, check_line
from regard.text.wordpiece import Cutter

if TYPE_CHECKING:
    from typing_extensions import Unpack

BATCH_TOKENS = 8192


class AnswererOptions(TypedDict, total=False):
    """The options of :func:`load`."""

    device: str | torch.device | None


class AnswerOptions(TypedDict, total=False):
    """The options of :meth:`Answerer.answer`."""

    n_best: int
    longest: int | None
    abstain: bool | None
    attention: bool
    batch_tokens: int


class Candidate(NamedTuple):
    """A possible answer: ``context[start:end]``, and its probability."""

    text: str
    start: int
    end: int
    score: float


@dataclass(frozen=True)
class Answer:
    """The answer to a question.

    ``text`` is ``context[start:end]``, and ``score`` its probability among all spans and "no answer", whose own
    probability is ``no_answer``. If the model finds no answer in the context, ``text`` is "" and there is no position.
    ``candidates`` are the most likely spans, this one first unless there is no answer. ``attention``, if requested, is
    [question words, context words]: how much each question word attends to each context word (of ``split()``), in the
    window of the first candidate; 0 outside it. ``problem`` says why there is no result, ``note`` what was done.
    """

    text: str = ""
    start: int | None = None
    end: int | None = None
    score: float = 0.0
    no_answer: float = 1.0
    candidates: tuple[Candidate, ...] = ()
    attention: Tensor | None = None
    problem: str = ""
    note: str = ""


class Answerer:
    """Answers questions with a reader. Make one with :func:`load`.

    ``window`` and ``stride`` are the size and the step of windows (:class:`regard.tasks.qa.spans.WindowSize`),
    ``longest`` is the most subwords of an answer, and ``abstains`` says whether the model was trained on questions
    without an answer.
    """

    def __init__(
        self,
        model: Reader,
        subwords: Cutter,
        *,
        name: str = "model",
        window: int = WINDOW,
        stride: int = STRIDE,
        longest: int = LONGEST,
        abstains: bool = False,
    ) -> None:
        self.model, self.subwords, self.name = model, subwords, name
        self.room = WindowSize.of(window, stride, model.config.max_length)
        self.longest, self.abstains = longest, abstains

    def __repr__(self) -> str:
        size = sum(p.numel() for p in self.model.parameters())
        return f"<Answerer {self.name}: {size:,} parameters, {len(self.subwords):,} subwords>"

    @property
    def device(self) -> torch.device:
        """The model's device."""
        return next(self.model.parameters()).device

    def answer(self, context: str, question: str, **options: Unpack[AnswerOptions]) -> Answer:
        """The answer to a question; options are those of :meth:`answers`."""
        (found,) = self.answers([(context, question)], **options)
        if found.problem:
            raise ValueError(found.problem)
        return found

    @named
    def answers(
        self,
        pairs: Sequence[tuple[str, str]],
        *,
        n_best: int = 1,
        longest: int | None = None,
        abstain: bool | None = None,
        attention: bool = False,
        batch_tokens: int = BATCH_TOKENS,
    ) -> list[Answer]:
        """The answers to (context, question) pairs; one that cannot be answered has a problem.

        Args:
            n_best: how many candidates to return.
            longest: the most subwords of an answer.
            abstain: allow "no answer"; by default if the model was trained on questions without an answer.
            attention: also return attention.
            batch_tokens: tokens per batch, padding included.
        """
        if n_best < 1 or (longest is not None and longest < 1):
            raise ValueError(f"expected n_best and longest of at least 1, got {n_best} and {longest}")
        problems = [_odd(*pair) for pair in pairs]
        good = [i for i, problem in enumerate(problems) if not problem]
        texts = dict.fromkeys(text for i in good for text in pairs[i])  # a context is cut once, however many questions
        cut = dict(zip(texts, self.subwords.encode_batch(list(texts)), strict=True))
        sides = {i: (cut[pairs[i][1]], cut[pairs[i][0]]) for i in good}
        for i, (asked, told) in list(sides.items()):
            if problem := self._too_odd(asked, told):
                problems[i] = problem
                del sides[i]
        found = read(
            self.model,
            [(asked.ids, told.ids) for asked, told in sides.values()],
            self.room,
            longest=longest or self.longest,
            count=n_best + 8,  # some may turn out to be white space, or the same characters
            batch_tokens=batch_tokens,
        )
        done = dict(zip(sides, found, strict=True))
        may = self.abstains if abstain is None else abstain
        return [
            self._answer(pairs[i], *sides[i], done[i], n_best, may, attention) if i in done else Answer(problem=problem)
            for i, problem in enumerate(problems)
        ]

    def _too_odd(self, asked: Encoded, told: Encoded) -> str:
        if not asked.ids or not told.ids:
            return f"the {'question' if told.ids else 'context'} has no text that the model knows"
        if len(asked.ids) > self.room.most:
            return f"the question has {len(asked.ids):,} subwords; the maximum is {self.room.most:,}"
        return ""

    def _answer(
        self,
        pair: tuple[str, str],
        asked: Encoded,
        told: Encoded,
        found: Prediction,
        count: int,
        may: bool,
        attention: bool,
    ) -> Answer:
        context = pair[0]
        candidates = [c for span in found.spans if (c := _candidate(context, told, span))]
        first = list({(c.start, c.end): c for c in reversed(candidates)}.values())[::-1]
        shown = tuple(sorted(first, key=lambda c: -c.score)[:count])
        cuts = self.room.cuts(len(asked.ids), len(told.ids))
        note = f"{len(told.ids):,} subwords: read in {len(cuts)} windows" if len(cuts) > 1 else ""
        weights = self._attention(pair, asked, told, found.spans[0], cuts) if attention and found.spans else None
        if not shown or (may and found.no_answer > shown[0].score):
            return Answer(
                score=found.no_answer, no_answer=found.no_answer, candidates=shown, attention=weights, note=note
            )
        best = shown[0]
        return Answer(best.text, best.start, best.end, best.score, found.no_answer, shown, weights, note=note)

    def _attention(
        self, pair: tuple[str, str], asked: Encoded, told: Encoded, span: AnswerSpan, cuts: Sequence[tuple[int, int]]
    ) -> Tensor:
        """[question words, context words], of the window that owns the span; words that have no subwords get 0."""
        wide, high = (len(text.split()) for text in pair)
        start, end = cuts[owners(cuts, len(told.ids))[span.start]]
        tensors = pad_tokens(self.model, [asked.ids], [told.ids[start:end]])
        weights = self.model.attention(*(t.to(self.device) for t in tensors))[0, 1:-1, :-1].float().cpu()
        onto = by_word(weights, told.words[start:end], wide)  # [question tokens, context words]
        rows = by_word(onto.T, asked.words, high).T
        sizes = by_word(torch.ones(len(asked.words)), asked.words, high)
        return rows / sizes.clamp_min(1)[:, None]


def load(name: str | os.PathLike[str], *, device: str | torch.device | None = None) -> Answerer:
    """An answerer from a model folder of ``regard train --task qa``; by default on the GPU if there is one."""
    path = find(name)
    loaded = open_model(path, "qa", device)
    data = loaded.settings.get("data", {})
    return Answerer(
        loaded.model,
        loaded.subwords,
        name=path.name,
        window=data.get("window", WINDOW),
        stride=data.get("stride", STRIDE),
        longest=data.get("longest", LONGEST),
        abstains=bool(data.get("unanswerable")),
    )


def _odd(context: str, question: str) -> str:
    """The problem of a pair, or ""."""
    for kind, text in (("context", context), ("question", question)):
        try:
            check_line(text)
        except ValueError as error:
            return f"the {kind} is {error}"
        if not text.strip():
            return f"the {kind} is empty"
        if "\x00" in text:
            return f"the {kind} is not text: a NUL at character {text.index(chr(0))}"
    return ""


def _candidate(context: str, told: Encoded, span: AnswerSpan) -> Candidate | None:
    """The characters of a span, without white space around them, and without splitting a grapheme cluster."""
    start, end = whole(context, told.offsets[span.start][0], told.offsets[span.end - 1][1])
    return Candidate(context[start:end], start, end, span.probability) if start < end else None


def whole(text: str, start: int, end: int) -> tuple[int, int]:
    """[start, end) without white space around it, widened to whole grapheme clusters.

    >>> whole("cafe\\u0301 👩‍🚀 !", 0, 4), whole("cafe\\u0301 👩‍🚀 !", 5, 7)
    ((0, 5), (6, 9))
    """
    while start < end and text[start].isspace():
        start += 1
    while start < end and text[end - 1].isspace():
        end -= 1
    if start == end:
        return start, end
    while not border(text, start):
        start -= 1
    while not border(text, end):
        end += 1
    return start, end
