"""What people see as one character, though it is several: letters with their marks, flags, joined emoji, Hangul.

A part of the rules of Unicode's UAX #29 (https://unicode.org/reports/tr29), as far as text for people needs them.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

__all__ = ["border", "clusters", "width"]

_JOINER = "\u200d"


def border(text: str, at: int) -> bool:
    """May the text be cut before this character?

    >>> [border("e\\u0301x", at) for at in range(4)]
    [True, False, True, True]
    """
    if not 0 < at < len(text):
        return True
    before, after = text[at - 1], text[at]
    if _extends(after) or before == _JOINER:
        return False
    if _half_flag(after) and _half_flag(before):
        first = at
        while first > 0 and _half_flag(text[first - 1]):
            first -= 1
        return (at - first) % 2 == 0
    return not _one_syllable(before, after)


def clusters(text: str) -> Iterator[str]:
    """The characters as people see them, each with all that belongs to it.

    >>> [len(sign) for sign in clusters("cafe\\u0301 \\U0001f1eb\\U0001f1f7\\U0001f1e9\\U0001f1ea")]
    [1, 1, 1, 2, 1, 2, 2]
    """
    first = 0
    for at in range(1, len(text) + 1):
        if border(text, at):
            yield text[first:at]
            first = at


def width(text: str) -> int:
    """Columns that a terminal takes for a text.

    >>> width("Tokyo"), width("東京"), width("cafe\u0301")
    (5, 4, 4)
    """
    return sum(2 if unicodedata.east_asian_width(c[0]) in "WF" or _half_flag(c[0]) else 1 for c in clusters(text))


def _extends(char: str) -> bool:
    """Does it belong to the character before it: a mark, a joiner, a skin tone, a tag of a flag?"""
    return (
        char == _JOINER
        or "\U0001f3fb" <= char <= "\U0001f3ff"
        or "\U000e0020" <= char <= "\U000e007f"
        or unicodedata.category(char).startswith("M")
    )


def _half_flag(char: str) -> bool:
    """Two letters for a country are its flag."""
    return "\U0001f1e6" <= char <= "\U0001f1ff"


def _one_syllable(before: str, after: str) -> bool:
    """Hangul: leads, vowels and tails that stand in one block."""
    a, b = _jamo(before), _jamo(after)
    return (a, b) in _TOGETHER


def _jamo(char: str) -> str:
    """L, V or T; LV and LVT are whole syllables without and with a tail; "" for anything else."""
    if "\u1100" <= char <= "\u115f" or "\ua960" <= char <= "\ua97c":
        return "L"
    if "\u1160" <= char <= "\u11a7" or "\ud7b0" <= char <= "\ud7c6":
        return "V"
    if "\u11a8" <= char <= "\u11ff" or "\ud7cb" <= char <= "\ud7fb":
        return "T"
    if "\uac00" <= char <= "\ud7a3":
        return "LVT" if (ord(char) - 0xAC00) % 28 else "LV"
    return ""


_TOGETHER = {
    *(("L", after) for after in ("L", "V", "LV", "LVT")),
    *((before, after) for before in ("LV", "V") for after in ("V", "T")),
    *((before, "T") for before in ("LVT", "T")),
}
