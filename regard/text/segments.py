"""Segmentation: split a line into sentences; split long ones after commas, at spaces, or between any two characters."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from regard.text.graphemes import border, clusters, width
from regard.text.subwords import Encoded

__all__ = ["Interval", "Joint", "Segment", "gap", "segments", "sentence_places", "sentences"]

Interval = tuple[int, int]
"""Where a span of text starts and ends."""

# The end of a sentence, with closing marks and the white space after it.
_END = re.compile(r"""(?:[.!?…]["'»”’)\]]*)(\s+)|(?<=[。！？])(\s*)""")
# Abbreviations, whose full stop does not end a sentence: titles, initials, "e.g.", "p.m."
_SHORT = re.compile(
    r"(?:^|[\s(\"'“«])(?:Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|Gen|Capt|vs|cf|(?:[A-Z]\.)*[A-Z]|(?:[a-z]\.)+[a-z])\.$"
)
# Commas, semicolons and colons; those of Chinese and Japanese need no space after them.
_CLAUSE = re.compile(r"""[,;:،؛]["'»”’)\]]*(?=\s)|[，、；：]""")
_SPACE = re.compile(r"\s+")


class Joint(NamedTuple):
    """How a span follows the one before: whether white space separates them, and what separates their translations.

    A ``gap`` of None is decided by the translations, see :func:`gap`.
    """

    spaced: bool = True
    gap: str | None = None


class Segment(NamedTuple):
    """A span of a line and its subwords, whose offsets count from the start of the span."""

    start: int
    end: int
    encoded: Encoded
    joint: Joint = Joint()


def sentences(line: str) -> list[str]:
    """The sentences of a line.

    >>> sentences("Is Mr. Smith there? No. He is out.")
    ['Is Mr. Smith there?', 'No.', 'He is out.']
    """
    return [line[start:end] for start, end in sentence_places(line)]


def segments(
    line: str, encode: Callable[[Sequence[str]], list[Encoded]], limit: int, *, keep: Sequence[Interval] = ()
) -> list[Segment]:
    """The sentences of a line. One of more than ``limit`` subwords is halved until no part exceeds the limit.

    A sentence is cut near its middle: after a comma, semicolon or colon, else at a space, else between two characters,
    but never inside a span of ``keep``. A span that cannot be cut may exceed the limit.
    """
    found: list[Segment] = []
    todo = sentence_places(line)[::-1]
    texts = dict(zip(todo, encode([line[a:b] for a, b in todo]), strict=True))
    while todo:
        start, end = place = todo.pop()
        encoded = texts.pop(place)
        halves = _halves(line, start, end, keep) if len(encoded.ids) > limit else []
        if not halves:
            found.append(Segment(start, end, encoded, _joint(line, start)))
        todo += halves[::-1]
        texts |= zip(halves, encode([line[a:b] for a, b in halves]), strict=True)
    return found


def gap(left: str, right: str) -> str:
    """What separates the translations of two segments: a space, or nothing in scripts written without spaces.

    >>> gap("Un.", "Deux."), gap("一。", "二。")
    (' ', '')
    """
    if not left or not right:
        return ""
    last = clusters(left[-8:])[-1]  # a letter with its marks
    return "" if width(last) == width(right[0]) == 2 else " "


def sentence_places(line: str) -> list[Interval]:
    """Where the sentences of a line start and end."""
    parts, start = [], 0
    for match in _END.finditer(line):
        if not _SHORT.search(line, start, match.start() + 1):
            parts.append((start, match.end()))
            start = match.end()
    parts.append((start, len(line)))
    return [place for part in parts if (place := _strip(line, *part))]


def _halves(line: str, start: int, end: int, keep: Sequence[Interval]) -> list[Interval]:
    """The two parts of a span; none if it cannot be cut."""
    middle, quarter = (start + end) // 2, (end - start) / 4

    def near(at: int) -> int:
        return abs(at - middle)

    clauses = sorted((at for at in _ends(_CLAUSE, line, start, end) if near(at) <= quarter), key=near)
    spaces = sorted(_ends(_SPACE, line, start, end), key=near)
    for at in chain(clauses, spaces, _cut_places(line, start, end)):
        if start < at < end and not any(a < at < b for a, b in keep):
            return [place for part in ((start, at), (at, end)) if (place := _strip(line, *part))]
    return []


def _ends(what: re.Pattern[str], line: str, start: int, end: int) -> list[int]:
    return [match.end() for match in what.finditer(line, start, end)]


def _cut_places(line: str, start: int, end: int) -> Iterator[int]:
    """Indices from the middle outward: first borders of grapheme clusters, then all others."""
    middle = (start + end) // 2
    places = [at for k in range(end - start) for at in (middle - k, middle + k) if start < at < end]
    yield from (at for at in places if border(line, at))
    yield from places


def _strip(line: str, start: int, end: int) -> Interval | None:
    """A span without the white space around it; None if nothing else is left."""
    text = line[start:end]
    first = start + len(text) - len(text.lstrip())
    return (first, first + len(text.strip())) if text.strip() else None


def _joint(line: str, at: int) -> Joint:
    """The rest of a split word follows without a gap; in scripts without spaces the translations decide."""
    before, after = line[at - 1 : at], line[at]
    if not before or before.isspace():
        return Joint()
    inside = before.isalnum() and after.isalnum() and width(before) == width(after) == 1
    return Joint(spaced=False, gap="" if inside else None)
