"""Where the marks of a sentence belong in its translation: tags around what was made of the words within, an emoji
between what was made of the words on its two sides.

Gap g of a translation is before its piece g, the last one behind them all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cmp_to_key
from itertools import accumulate
from typing import NamedTuple

from regard.tasks.translation.protect.spans import Span
from regard.text.segments import Interval

__all__ = ["Mark", "Stretch", "gap_of_marks", "gaps", "in_order", "write_marks"]

_CLOSING = frozenset(".,;:!?…)]}»”%")


class Mark(NamedTuple):
    """A mark, and where it stood in the line that is read without it."""

    at: int
    span: Span


class Stretch(NamedTuple):
    """A stretch that was translated by itself: where it starts and ends in both texts, where its source tokens and
    the pieces of its translation are, and how much each piece looked at each token.
    """

    source: Interval
    target: Interval
    tokens: Sequence[Interval] = ()
    pieces: Sequence[Interval] = ()
    looked: Sequence[Sequence[float]] = ()


def gaps(parts: Sequence[Stretch], size: int) -> list[Interval]:
    """Where the gaps of a translation of so many characters start and end."""
    pieces = [piece for part in parts for piece in part.pieces or [part.target]]
    return list(zip([0, *(b for _, b in pieces)], [*(a for a, _ in pieces), size], strict=True))


def gap_of_marks(
    marks: Sequence[Mark], parts: Sequence[Stretch], text: str, whole: Sequence[Interval]
) -> dict[int, int]:
    """The gap of each mark, by where it stands in its line; none is inside a stretch that is to stay ``whole``."""
    first = list(accumulate((max(1, len(part.pieces)) for part in parts), initial=0))
    open_ = _open_gaps(gaps(parts, len(text)), whole)
    at = {mark.span.start: mark for mark in marks}
    found: dict[int, int] = {}
    windows: list[tuple[int, int, int, int]] = []  # of the pairs: both marks' starts, both gaps
    for mark in sorted(marks):
        if mark.span.start in found:
            continue
        k = next((k for k, part in enumerate(parts) if mark.at <= part.source[1]), len(parts) - 1)
        mate = at.get(mark.span.mate) if mark.span.kind == "open" else None
        if mate is not None and mate.at <= parts[k].source[1]:
            low, high = _window(mark, mate, parts[k], first[k], open_, windows)
            found[mark.span.start], found[mate.span.start] = low, high
            windows.append((mark.span.start, mate.span.start, low, high))
        else:
            found[mark.span.start] = _cut(mark, parts[k], first[k], _free(gaps(parts, len(text)), text) & open_)
    return found


def _open_gaps(places: Sequence[Interval], whole: Sequence[Interval]) -> frozenset[int]:
    return frozenset(g for g, (a, b) in enumerate(places) if not any(x < a and b < y for x, y in whole))


def _free(places: Sequence[Interval], text: str) -> frozenset[int]:
    """Gaps between words, and before what closes a sentence."""
    ends = (0, len(places) - 1)
    return frozenset(g for g, (a, b) in enumerate(places) if a < b or g in ends or text[b : b + 1] in _CLOSING)


def _cut(mark: Mark, part: Stretch, first: int, allowed: frozenset[int]) -> int:
    """The gap with most of what looked left of the mark before it, and most of what looked right behind it."""
    last = first + max(1, len(part.pieces))
    if mark.at <= part.source[0]:
        return first
    if mark.at >= part.source[1] or not part.pieces:
        return last
    left = [1 if sum(token) <= 2 * mark.at else -1 for token in part.tokens]
    sums = _sums(part, left)
    return max(
        (g for g in range(first, last + 1) if g in allowed or g in (first, last)), key=lambda g: (sums[g - first], -g)
    )


def _window(
    open_mark: Mark,
    close: Mark,
    part: Stretch,
    first: int,
    allowed: frozenset[int],
    windows: Sequence[tuple[int, int, int, int]],
) -> tuple[int, int]:
    """The run of pieces that looked most at what is within the pair; within that of a pair around it, and beside those
    of other pairs."""
    last = first + max(1, len(part.pieces))
    around = [w for w in windows if w[0] < open_mark.span.start and close.span.start < w[1]]
    low, high = max([first, *(w[2] for w in around)]), min([last, *(w[3] for w in around)])
    if (open_mark.at <= part.source[0] and close.at >= part.source[1]) or not part.pieces:
        return (low, high) if open_mark.at < close.at else _both(_cut(open_mark, part, first, allowed), low, high)
    within = [1 if a < close.at and open_mark.at < b else -1 for a, b in part.tokens]
    if 1 not in within:
        return _both(_cut(open_mark, part, first, allowed), low, high)
    sums = _sums(part, within)
    taken = {g for w in windows if w not in around for g in range(w[2], w[3])}
    found: list[tuple[float, int, int]] = []
    start = -1
    for g in range(low, high):
        if g in taken:
            start = -1
            continue
        if (g in allowed or g == low) and (start < 0 or sums[g - first] < sums[start - first]):
            start = g
        if start >= 0 and (g + 1 in allowed or g + 1 == high):
            found.append((sums[g + 1 - first] - sums[start - first], start, g + 1))
    if not found:
        return _both(_cut(open_mark, part, first, allowed), low, high)
    return max(found, key=lambda one: one[0])[1:]


def _both(gap: int, low: int, high: int) -> tuple[int, int]:
    gap = min(max(gap, low), high)
    return gap, gap


def _sums(part: Stretch, signs: Sequence[int]) -> list[float]:
    """Of the first pieces, how much more they looked at tokens of one sign than at the others."""
    rows = [sum(sign * x for sign, x in zip(signs, row, strict=True)) for row in part.looked]
    return list(accumulate(rows, initial=0.0))


# --- several in one gap, and the spaces around them ---


def in_order(marks: Iterable[Mark], gap: Mapping[int, int]) -> list[Mark]:
    """Marks of one gap as they are to be written: as in the source, but pairs do not cross.

    ``gap`` is that of each mark.
    """

    def within(mark: Mark, other: Mark) -> bool:
        a, b = sorted((other.span.start, other.span.mate))
        return a < mark.span.start < b

    def rank(mark: Mark) -> int:
        """Pairs that end here, then what is neither, then pairs that begin here."""
        mate = gap.get(mark.span.mate, gap[mark.span.start])
        return (mate > gap[mark.span.start]) - (mate < gap[mark.span.start])

    def order(one: Mark, two: Mark) -> int:
        by_source = 1 if one.span.start > two.span.start else -1
        ranks = rank(one), rank(two)
        if 0 in ranks and ranks != (0, 0):
            single, paired = (one, two) if ranks[0] == 0 else (two, one)
            if within(single, paired):
                return by_source
        if ranks[0] != ranks[1]:
            return ranks[0] - ranks[1]
        if ranks[0] and (reach := gap[one.span.mate] - gap[two.span.mate]):
            return -reach  # of those that end here the last begun first, of those that begin the last to end
        return by_source

    return sorted(marks, key=cmp_to_key(order))


def write_marks(line: str, marks: Sequence[Mark], text: str, gap: Interval) -> tuple[str, list[int]]:
    """Marks for a gap of a translation, with white space around them as in their line, and where each begins in that.

    Where French has a space before a closing sign, it stays.
    """
    between, after = text[slice(*gap)], text[gap[1] : gap[1] + 1]
    first, last = marks[0].span, marks[-1].span
    lead, trail = _space(line, first.start - 1), _space(line, last.end)
    if not between:
        lead = "" if first.kind == "open" else lead
        trail = "" if last.kind == "close" or after in _CLOSING else trail
    elif after in _CLOSING or (not trail and lead and last.kind != "open"):
        trail = trail or between
    elif not lead and not trail:
        joined = first.start > 0 and line[last.end : last.end + 1].isalnum()
        if first.kind == "open":
            lead = between
        elif last.kind == "close" or not joined:
            trail = between
    lead, trail = lead * (gap[0] > 0), trail * (gap[1] < len(text))
    out, starts = lead, list[int]()
    for k, mark in enumerate(marks):
        if k:
            out += _space(line, marks[k - 1].span.end) or _space(line, mark.span.start - 1)
        starts.append(len(out))
        out += line[mark.span.start : mark.span.end]
    return out + trail, starts


def _space(line: str, at: int) -> str:
    return " " if line[max(at, 0) : at + 1].isspace() else ""
