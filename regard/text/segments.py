"""A line cut into segments that a model can read: after sentence ends; where that is not enough, after commas, at
spaces, and at last between any two characters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from regard.text.graphemes import border, clusters, width
from regard.text.subwords import Encoded

__all__ = ["Interval", "Joint", "Segment", "gap", "segments", "sentence_places", "sentences"]

Interval = tuple[int, int]
"""Where a stretch of a text starts and ends."""

# The end of a sentence, with what closes it, and the white space after it.
_END = re.compile(r"""(?:[.!?…]["'»”’)\]]*)(\s+)|(?<=[。！？])(\s*)""")
# What a full stop belongs to that ends no sentence: titles, initials, "e.g.", "p.m."
_SHORT = re.compile(
    r"(?:^|[\s(\"'“«])(?:Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|Gen|Capt|vs|cf|(?:[A-Z]\.)*[A-Z]|(?:[a-z]\.)+[a-z])\.$"
)
# Commas, semicolons and colons; those of Chinese and Japanese need no space after them.
_CLAUSE = re.compile(r"""[,;:،؛]["'»”’)\]]*(?=\s)|[，、；：]""")
_SPACE = re.compile(r"\s+")


class Joint(NamedTuple):
    """How a stretch of a text follows the one before: with white space between them or not, and with what between
    their translations. None is what the translations themselves ask for, see :func:`gap`.
    """

    spaced: bool = True
    gap: str | None = None


class Segment(NamedTuple):
    """A stretch of a line and its subwords, whose offsets are those of the stretch."""

    start: int
    end: int
    encoded: Encoded
    joint: Joint = Joint()


def sentences(line: str) -> list[str]:
    """A line cut after sentence ends.

    >>> sentences("Is Mr. Smith there? No. He is out.")
    ['Is Mr. Smith there?', 'No.', 'He is out.']
    """
    return [line[start:end] for start, end in sentence_places(line)]


def segments(
    line: str, encode: Callable[[Sequence[str]], list[Encoded]], limit: int, *, keep: Sequence[Interval] = ()
) -> list[Segment]:
    """The sentences of a line; one of more than ``limit`` subwords is halved until its parts have no more.

    It is cut near its middle: after a comma, a semicolon or a colon, else at a space, else between two characters, but
    never inside one of the stretches that are to ``keep``. What cannot be cut may be longer than the limit.
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
    """What belongs between the translations of two segments: a space, but in scripts that are written without.

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
    return [place for part in parts if (place := _stripped(line, *part))]


def _halves(line: str, start: int, end: int, keep: Sequence[Interval]) -> list[Interval]:
    """Two parts of a stretch; none if it cannot be cut."""
    middle, quarter = (start + end) // 2, (end - start) / 4

    def near(at: int) -> int:
        return abs(at - middle)

    clauses = sorted((at for at in _ends(_CLAUSE, line, start, end) if near(at) <= quarter), key=near)
    spaces = sorted(_ends(_SPACE, line, start, end), key=near)
    for at in chain(clauses, spaces, _outward(line, start, end)):
        if start < at < end and not any(a < at < b for a, b in keep):
            return [place for part in ((start, at), (at, end)) if (place := _stripped(line, *part))]
    return []


def _ends(what: re.Pattern[str], line: str, start: int, end: int) -> list[int]:
    return [match.end() for match in what.finditer(line, start, end)]


def _outward(line: str, start: int, end: int) -> Iterator[int]:
    """Between characters, from the middle on; inside what people see as one only if that is all there is."""
    middle = (start + end) // 2
    places = [at for k in range(end - start) for at in (middle - k, middle + k) if start < at < end]
    yield from (at for at in places if border(line, at))
    yield from places


def _stripped(line: str, start: int, end: int) -> Interval | None:
    """A stretch without the white space around it; None if that is all."""
    text = line[start:end]
    first = start + len(text) - len(text.lstrip())
    return (first, first + len(text.strip())) if text.strip() else None


def _joint(line: str, at: int) -> Joint:
    """The rest of a word that was cut follows without a space; scripts without spaces have no such words."""
    before, after = line[at - 1 : at], line[at]
    if not before or before.isspace():
        return Joint()
    inside = before.isalnum() and after.isalnum() and width(before) == width(after) == 1
    return Joint(spaced=False, gap="" if inside else None)
