"""Translating lines with spans that are to come back as they are, whatever the model makes of them.

The model reads stand-ins (:mod:`~regard.tasks.translation.protect.masking`).
A translation without each of them is not taken: then other ones are
tried, the sentences of the line by themselves, and at last the stretches between its words.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, Protocol

from regard.tasks.translation.output import Attended, Translation, TranslationOutput
from regard.tasks.translation.protect.masking import Masked, Protected, Weigh, apart, literal
from regard.tasks.translation.protect.spans import Span
from regard.text.segments import Interval, sentence_places
from regard.text.subwords import word_numbers

__all__ = ["How", "Run", "translate_lines"]

OTHERS = 40  # where the stand-ins of the second attempt begin


class Run(Protocol):
    """Translates lines: those ``attended`` with attention, and none cut inside what it is to ``keep``."""

    def __call__(
        self,
        lines: Sequence[str],
        prefixes: Sequence[str],
        *,
        keep: Mapping[int, Sequence[Interval]],
        attended: Collection[int],
        first: bool,
    ) -> list[TranslationOutput]: ...


class How(NamedTuple):
    """How lines are translated: so ``many`` translations of each, with attention if it is to be ``shown``; ``ranked``
    ones are sorted by their scores.
    """

    run: Run
    weigh: Weigh
    shown: bool
    many: int
    ranked: bool


class _Attempt(NamedTuple):
    """How a line is masked for an attempt, see :class:`Masked`."""

    as_is: bool = False
    draw: int = 0


class _Piece(NamedTuple):
    """A part of a line that is translated by itself."""

    start: int
    end: int
    item: Protected


def translate_lines(items: Sequence[Protected], how: How, *, first: bool = True) -> list[TranslationOutput]:
    """What became of each line; those without spans are translated as they are."""
    works = [_Work(item, how) for item in items]
    while some := [work for work in works if work.left]:
        masked = [Masked(work.item, **work.left.pop(0)._asdict()) for work in some]
        outputs = how.run(
            [one.text for one in masked],
            [one.prefix for one in masked],
            keep={i: one.keep for i, one in enumerate(masked)},
            attended=[i for i, one in enumerate(masked) if how.shown or one.inner],
            first=first,
        )
        for work, one, output in zip(some, masked, outputs, strict=True):
            work.take(one, output)
        first = False
    if short := [work for work in works if len(work.found) < work.many and not work.output.problem]:
        pieces = [work.pieces() for work in short]
        found = iter(translate_lines([piece.item for some in pieces for piece in some], how, first=first))
        for work, own in zip(short, pieces, strict=True):
            work.join(own, [next(found) for _ in own])
    return [work.output for work in works]


class _Work:
    """A line, what was found for it, and the ways to read it that are left."""

    def __init__(self, item: Protected, how: How) -> None:
        self.item, self.how, self.many, self.output = item, how, how.many, TranslationOutput()
        self.left: list[_Attempt] = []
        words = any(span.kind in ("word", "number") for span in item.spans)
        if item.spans and not _has_text(item.line, item.spans) and not (item.prefix and words):
            copy = literal(item.line.strip())  # a prefix goes before it: it is one of two pieces
            self.found = [] if item.prefix else [copy if how.shown else copy._replace(attention=())] * self.many
        else:
            read = [span.read for span in item.spans]
            if any(read) or not read:
                self.left.append(_Attempt(as_is=True))
            if read:
                self.left.append(_Attempt())
            if words:
                self.left.append(_Attempt(draw=OTHERS))

    @property
    def found(self) -> list[Translation]:
        """The translations so far."""
        return self.output.translations

    @found.setter
    def found(self, some: list[Translation]) -> None:
        self.output.translations = some

    def take(self, masked: Masked, output: TranslationOutput) -> None:
        """Keeps the translations that have all spans; if there are enough, nothing else is tried."""
        how = self.how
        self.output.problem, self.output.note = output.problem, self.output.note or output.note
        if not self.found:
            self.many = max(1, len(output.translations))
        whole = [masked.restore(one, how.weigh, shown=how.shown) for one in output.translations]
        known = {one.text for one in self.found} if how.ranked else set()
        more = [one for one in whole if one is not None and one.text not in known]
        if self.found and how.ranked:
            self.found = sorted([*self.found, *more], key=lambda one: -one.score)[: self.many]
        else:
            self.found = [*self.found, *more][: self.many]
        if output.problem or len(self.found) == self.many:
            self.left = []

    # --- in pieces ---

    def pieces(self) -> list[_Piece]:
        """Its sentences; of a single one what is between its words; what is none either is not translated at all."""
        masked, line, spans = Masked(self.item), self.item.line, self._missing()
        starts = [self._begin(masked.origin[a][0]) for a, _ in sentence_places(masked.text)[1:]]
        words = [span[:2] for span in self.item.spans if span.kind in ("word", "number")]
        if not starts and not words:
            words = [(0, len(line))]
        cuts = starts or [at for word in words for at in word]
        found, prefix = list[_Piece](), self.item.prefix
        for a, b in pairwise([0, *cuts, len(line)]):
            piece = self._piece(a, b, spans, prefix, copied=not starts and (a, b) in words)
            if piece is not None:
                if prefix and not piece.item.prefix:
                    found.append(_Piece(piece.start, piece.start, _copy(prefix)))
                found.append(piece)
                prefix = ""
        return found

    def _missing(self) -> list[Span]:
        """Its spans; of those that the prefix has already, nothing is left."""
        line, prefix, spans = self.item.line, self.item.prefix, list[Span]()
        for span in self.item.spans:
            sign = line[span.start : span.end]
            given = sign in prefix
            prefix = prefix.replace(sign, "", given)
            spans.append(span._replace(kind="nothing", mate=-1) if given else span)
        return spans

    def _begin(self, at: int) -> int:
        """Where a sentence begins whose first letter is here: marks that open it belong to it."""
        for span in reversed(self.item.spans):
            if span.end == at and span.kind == "open":
                at = span.start
        return at

    def _piece(self, a: int, b: int, spans: Sequence[Span], prefix: str, *, copied: bool) -> _Piece | None:
        text = self.item.line[a:b]
        start, end = b - len(text.lstrip()), a + len(text.rstrip())
        if start >= end:
            return None
        own = [_within(span, start, end) for span in spans if start <= span.start < end]
        text = self.item.line[start:end]
        if not copied and _has_text(text, own):
            return _Piece(start, end, Protected(text, own, prefix, self.item.signs))
        gone = {at for span in own if span.kind == "nothing" for at in range(span.start, span.end)}
        text = "".join(char for at, char in enumerate(text) if at not in gone).strip()
        return _Piece(start, end, _copy(text))

    def join(self, pieces: Sequence[_Piece], outputs: Sequence[TranslationOutput]) -> None:
        """Adds what was found for the pieces, as far as there is not enough."""
        self.output.problem = next((output.problem for output in outputs if output.problem), "")
        missing = 0 if self.output.problem else self.many - len(self.found)
        self.found = [*self.found, *(self._join_pieces(pieces, outputs, k) for k in range(missing))]

    def _join_pieces(self, pieces: Sequence[_Piece], outputs: Sequence[TranslationOutput], k: int) -> Translation:
        line, text, last = self.item.line, "", 0
        parts = [output.translations[min(k, len(output.translations) - 1)] for output in outputs]
        starts, attention = list[int](), list[Attended]()
        for piece, part in zip(pieces, parts, strict=True):
            spaced = last == 0 or line[last : piece.start].isspace()
            text += " " * (bool(text and part.text) and spaced)
            starts.append(len(text))
            attention += _joint(part.attention, piece, line, apart(line, piece.start), apart(text, len(text)))
            text, last = text + part.text, piece.end
        sources, targets = word_numbers(line), word_numbers(text)
        copies = [
            (sources[piece.start] + i, targets[start] + j)
            for piece, part, start in zip(pieces, parts, starts, strict=True)
            for i, j in part.copies
            if piece.start < piece.end
        ]
        read = [part for part in parts if part.log_prob] or parts
        score = sum(part.score for part in read) / len(read)
        return Translation(text, score, sum(part.log_prob for part in parts), tuple(attention), tuple(copies))


def _joint(attention: Sequence[Attended], piece: _Piece, line: str, *spaced: bool) -> list[Attended]:
    """Attention of a piece as a part of that of its line."""
    found = [one if k else one._replace(spaced=(spaced[0], spaced[1])) for k, one in enumerate(attention)]
    if len(found) == 1 and not found[0].source.ids:
        found[0] = found[0]._replace(read=line[piece.start : piece.end])
    return found


def _copy(text: str) -> Protected:
    """A text that is not translated."""
    return Protected(text, [Span(0, len(text), "word")])


def _has_text(line: str, spans: Sequence[Span]) -> bool:
    """Has it letters or digits outside its spans?"""
    edges = [0, *(at for span in spans for at in span[:2]), len(line)]
    return any(char.isalnum() for a, b in zip(edges[::2], edges[1::2], strict=True) for char in line[a:b])


def _within(span: Span, start: int, end: int) -> Span:
    """A span with its place in a part of its line; a mark whose mate is elsewhere has none."""
    moved = span._replace(start=span.start - start, end=span.end - start)
    if start <= span.mate < end:
        return moved._replace(mate=span.mate - start)
    return moved._replace(mate=-1, kind="mark" if span.kind in ("open", "close") else span.kind)
