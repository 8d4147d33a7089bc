"""A line with stand-ins for the spans that no model is to translate, and its translation with these spans back.

A word's stand-in is one that models copy, such as K47; a number's is a number; a mark has none, and is put where
attention says.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from regard.align.link import Link
from regard.tasks.translation.output import Attended, Translation
from regard.tasks.translation.protect.placement import Mark, Stretch, gap_of_marks, gaps, in_order, write_marks
from regard.tasks.translation.protect.spans import Protection, Span
from regard.text.segments import Interval
from regard.text.subwords import Encoded, word_numbers

__all__ = ["Masked", "Protected", "Weigh", "apart", "copy_links", "literal", "protect_line"]

Weigh = Callable[[Attended], Tensor]
"""How much each target token looked at each source token, [T, S]."""

_LETTERS = "KBCHDVRFTLPNGJWZ"


class Protected(NamedTuple):
    """A line, its spans, what its translation is to start with, and all signs that are to come back as often as they
    are there: spans without what is glued to them, and for a part of a line those of the whole.
    """

    line: str
    spans: Sequence[Span] = ()
    prefix: str = ""
    signs: frozenset[str] = frozenset()


def protect_line(line: str, find: Protection, prefix: str = "") -> Protected:
    """A line with the spans that are found in it."""
    spans = find(line)
    parts = find.parts(line) if spans else []
    signs = frozenset(line[span.start : span.end] for span in parts if span.kind != "nothing")
    return Protected(line, spans, prefix, signs)


class _Edit(NamedTuple):
    """What is written instead of a stretch of a translation: a text, and where spans are in it."""

    text: str
    spans: Sequence[tuple[int, Span]]


class Masked:
    """A line as the model reads it.

    ``as_is``: spans that the model may be able to copy stay. Which stand-ins are used depends on ``draw``.

    >>> item = Protected("<b>I</b> like {x}.", [Span(0, 3, "mark"), Span(4, 8, "mark"), Span(14, 17, "word")])
    >>> Masked(item).text
    'I like K47.'
    """

    def __init__(self, item: Protected, *, as_is: bool = False, draw: int = 0) -> None:
        self.item, self.text, self.prefix = item, "", item.prefix
        self.names: dict[str, Span] = {}
        self.marks: list[Mark] = []
        self.keep: list[Interval] = []
        self.origin: list[Interval] = []  # of each character: where what it stands for is in the line
        if not item.spans and not item.signs:
            self.text = item.line
            return
        names = {kind: _names(kind == "number", item.line + item.prefix, draw) for kind in ("word", "number")}
        given, at = Counter[str](), 0
        for span in item.spans:
            if not (as_is and span.read):
                self._copy(at, span.start)
                if span.kind in names:
                    self._stand(span, next(names[span.kind]))
                elif span.kind != "nothing":
                    self._leave(span, given, glued=at == span.start > 0)
                at = span.end
        self._copy(at, len(item.line))

    @property
    def inner(self) -> bool:
        """Are there marks that are not simply before or behind all of the translation?"""
        first, last = _strip(self.text)
        return any(first < mark.at < last or self.prefix for mark in self.marks)

    def _copy(self, start: int, end: int) -> None:
        self.text += self.item.line[start:end]
        self.origin += [(at, at + 1) for at in range(start, end)]

    def _stand(self, span: Span, name: str) -> None:
        self.names[name] = span
        self.keep.append((len(self.text), len(self.text) + len(name)))
        self.prefix = self.prefix.replace(self._text_of(span), name, 1)
        self.text += name
        self.origin += [(span.start, span.end)] * len(name)

    def _leave(self, span: Span, given: Counter[str], glued: bool) -> None:
        """A mark, unless the prefix has it already. What only marks hold apart is still apart without them."""
        sign, line = self._text_of(span), self.item.line
        if given[sign] < self.item.prefix.count(sign):
            given[sign] += 1
        else:
            self.marks.append(Mark(len(self.text), span))
        inside = (sign < " " and not sign.isspace()) or (span.mate >= 0 and not glued)
        if self.text[-1:].strip() and line[span.end : span.end + 1].isalnum() and not inside:
            self.text += " "
            self.origin.append((span.end, span.end))

    def _text_of(self, span: Span) -> str:
        return self.item.line[span.start : span.end]

    # --- back ---

    def restore(self, found: Translation, weigh: Weigh, *, shown: bool) -> Translation | None:
        """A translation with the spans back; None if it has not each stand-in once, or other spans.

        ``shown``: with attention, to the line itself.
        """
        if not self.item.spans and not self.item.signs:
            return found
        places = {name: _places(name, found.text) for name in self.names}
        if any(len(some) != 1 for some in places.values()) or self._invents(found.text):
            return None
        words = {some[0]: self.names[name] for name, some in places.items()}
        parts = self._parts(found, weigh)
        edits = {place: _Edit(self._text_of(span), [(0, span)]) for place, span in words.items()}
        edits |= self._place_marks(found.text, parts, list(words))
        text, to, copies = _apply_edits(found.text, edits)
        attention = self._attention(found, parts, text, to) if shown else ()
        return found._replace(text=text, attention=attention, copies=_links(self.item.line, text, copies))

    def _invents(self, text: str) -> bool:
        """Has it spans of the line more or less often than what the model read, or half a character?"""
        read = (self.text, self.prefix)
        return ("\ufffd" in text and "\ufffd" not in self.text) or any(
            _count(sign, text) != sum(_count(sign, one) for one in read) for sign in self.item.signs
        )

    def _parts(self, found: Translation, weigh: Weigh) -> list[Stretch]:
        """What was translated by itself; without attention all of it."""
        if not found.attention:
            return [Stretch(_strip(self.text), (0, len(found.text)))]
        parts, source, target = list[Stretch](), 0, 0
        for one in found.attention:
            source, target = self.text.index(one.read, source), found.text.index(one.written, target)
            ends = source + len(one.read), target + len(one.written)
            tokens = [(source + a, source + b) for a, b in one.source.offsets]
            pieces, rows = _pieces(one, weigh(one) if self.inner else None)
            pieces = [(target + a, target + b) for a, b in pieces]
            read = _strip(one.read)
            parts.append(Stretch((source + read[0], source + read[1]), (target, ends[1]), tokens, pieces, rows))
            source, target = ends
        return parts

    def _place_marks(self, text: str, parts: Sequence[Stretch], whole: Sequence[Interval]) -> dict[Interval, _Edit]:
        """The marks, by the gap of the translation that they are written into."""
        gap, edits = gap_of_marks(self.marks, parts, text, whole), dict[Interval, _Edit]()
        between = gaps(parts, len(text))
        low = next((g for g, (_, end) in enumerate(between) if end >= len(self.prefix.rstrip())), len(between) - 1)
        gap = {at: between.index(between[max(g, low)]) for at, g in gap.items()}  # the prefix stays the beginning
        for g in sorted({*gap.values()}):
            some = in_order([mark for mark in self.marks if gap[mark.span.start] == g], gap)
            sign, starts = write_marks(self.item.line, some, text, between[g])
            edits[between[g]] = _Edit(sign, [(at, mark.span) for at, mark in zip(starts, some, strict=True)])
        return edits

    def _attention(
        self, found: Translation, parts: Sequence[Stretch], text: str, to: Sequence[Interval]
    ) -> tuple[Attended, ...]:
        """Attention, its subwords being those of the line and of the text that came of it."""
        line = self.item.line
        starts = [part.source[0] - _strip(one.read)[0] for one, part in zip(found.attention, parts, strict=True)]
        read = [0, *(self.origin[part.source[0]][0] for part in parts[1:]), len(line)]
        wrote = [0, *(to[part.target[0]][0] for part in parts[1:]), len(text)]
        shown = []
        for one, start, part, source, target in zip(
            found.attention, starts, parts, pairwise(read), pairwise(wrote), strict=True
        ):
            inside, encoded = _move_subwords(line, source, one.source, self.origin, start)
            made, decoded = _move_subwords(text, target, one.target, to, part.target[0])
            spaced = apart(line, source[0]), apart(text, target[0])
            shown.append(Attended(one.weights, encoded, decoded, inside, made, spaced))
        return tuple(shown)


def apart(text: str, at: int) -> bool:
    """Does no word go on here?"""
    return at == 0 or any(char.isspace() for char in text[at - 1 : at + 1])


def literal(text: str, score: float = 0.0) -> Translation:
    """What is not translated: each word is a copy."""
    nothing = Encoded([], [], [], [])
    shown = Attended(torch.zeros(1, 1, 1, 1), nothing, nothing, text, text)
    return Translation(text, score, 0.0, (shown,), tuple((i, i) for i in range(len(text.split()))))


def _names(number: bool, line: str, draw: int) -> Iterator[str]:
    """Stand-ins that the line has not."""
    known = line.casefold()
    for k in count(draw):
        name = str(300 + (173 + 109 * k) % 700) if number else f"{_LETTERS[k % 16]}{11 + (36 + 37 * k) % 89}"
        name += str(k) * (k >= 700)  # none comes twice
        if name.casefold() not in known:
            yield name


def _places(pattern: str, text: str, flags: int = re.IGNORECASE) -> list[Interval]:
    """Where it is a word of the text, in small letters too."""
    return [match.span() for match in re.finditer(rf"(?<!\w){pattern}(?!\w)", text, flags)]


def _count(sign: str, text: str) -> int:
    """How often a span is in a text; letters alone count as a word."""
    return len(_places(re.escape(sign), text, 0)) if sign.isalnum() else text.count(sign)


def _strip(text: str) -> Interval:
    start = len(text) - len(text.lstrip())
    return start, max(start, len(text.rstrip()))


def _pieces(one: Attended, weights: Tensor | None) -> tuple[list[Interval], list[list[float]]]:
    """The pieces of a translation, and their rows of weights: the mean over their tokens."""
    places, rows, last = list[Interval](), list[list[list[float]]](), -1
    given = [[]] * len(one.target.ids) if weights is None else weights.tolist()
    for (a, b), piece, row in zip(one.target.offsets, one.target.pieces, given, strict=True):
        a = max(a, places[-1][1]) if places else a
        if places and (piece == last or a >= b):
            places[-1] = places[-1][0], max(b, places[-1][1])
            rows[-1].append(row)
        elif a < b:
            places.append((a, b))
            rows.append([row])
        last = piece
    return places, [[sum(column) / len(some) for column in zip(*some, strict=True)] for some in rows]


def _apply_edits(text: str, edits: Mapping[Interval, _Edit]) -> tuple[str, list[Interval], list[tuple[Span, Interval]]]:
    """The edited text, where each character of the old one is in it, and where each span is."""
    out, at = "", 0
    to: list[Interval] = []
    copies: list[tuple[Span, Interval]] = []
    for (start, end), edit in [*sorted(edits.items()), ((len(text), len(text)), _Edit("", []))]:
        to += [(len(out) + k, len(out) + k + 1) for k in range(start - at)]
        out += text[at:start]
        to += [(len(out), len(out) + len(edit.text))] * (end - start)
        copies += [(span, (len(out) + place, len(out) + place + span.end - span.start)) for place, span in edit.spans]
        out, at = out + edit.text, end
    return out, to, copies


def _move_subwords(
    text: str, part: Interval, encoded: Encoded, to: Sequence[Interval], start: int
) -> tuple[str, Encoded]:
    """A part of a text, and subwords with places in it that had places in another; there it started at ``start``."""
    first, last = (part[0] + at for at in _strip(text[slice(*part)]))
    inside = text[first:last]
    numbers, offsets, words = word_numbers(inside), list[Interval](), list[int]()
    for (a, b), word in zip(encoded.offsets, encoded.words, strict=True):
        place = to[start + a][0] - first, to[start + max(b - 1, a)][1] - first
        offsets.append((max(place[0], 0), min(max(place), len(inside))))
        words.append(-1 if word < 0 or not inside else numbers[min(max(place[0], 0), len(inside) - 1)])
    return inside, encoded._replace(offsets=offsets, words=words)


def copy_links(source: str, target: str, find: Protection) -> tuple[Link, ...]:
    """Word links of the spans that both texts of a pair have, as often: the first with the first, and so on."""
    sides = [_by_sign(text, find.parts(text)) for text in (source, target)]
    both = [(sides[0][sign], sides[1][sign]) for sign in sides[0].keys() & sides[1].keys()]
    copies = [(a, b[:2]) for one, two in both if len(one) == len(two) for a, b in zip(one, two, strict=True)]
    return _links(source, target, copies)


def _by_sign(text: str, spans: Sequence[Span]) -> dict[str, list[Span]]:
    found: dict[str, list[Span]] = {}
    for span in spans:
        found.setdefault(text[span.start : span.end], []).append(span)
    return found


def _links(line: str, text: str, copies: Sequence[tuple[Span, Interval]]) -> tuple[Link, ...]:
    """The words of spans with those of their copies; a word with other letters too is left to attention."""
    inside = {at for _, (start, end) in copies for at in range(start, end)}
    sources, targets = word_numbers(line), word_numbers(text)
    mixed = {targets[at] for at, char in enumerate(text) if char.isalnum() and at not in inside}
    return tuple(
        sorted(
            {
                (sources[span.start + k], targets[start + k])
                for span, (start, end) in copies
                for k in range(end - start)
                if not text[start + k].isspace() and targets[start + k] not in mixed
            }
        )
    )
