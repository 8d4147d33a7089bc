"""What readers see as one character though it is several: letters with their marks, flags, joined emoji, Hangul.

The clusters are those of Unicode's UAX #29 (https://unicode.org/reports/tr29), found by ``regex``; the widths are those
that ``wcwidth`` knows of terminals. Both are imported when a text needs them, so that they cost no start-up.
"""

from __future__ import annotations

from functools import cache
from typing import Any

__all__ = ["border", "clusters", "width"]


def border(text: str, at: int) -> bool:
    """May the text be cut before this character?

    >>> [border("e\\u0301x", at) for at in range(4)]
    [True, False, True, True]
    """
    # a match starts anywhere, and ends at the next border of the whole text
    return not 0 < at < len(text) or _cluster().match(text, at - 1).end() == at


def clusters(text: str) -> list[str]:
    """The characters as people see them, each with all that belongs to it.

    >>> [len(sign) for sign in clusters("cafe\\u0301 \\U0001f1eb\\U0001f1f7\\U0001f1e9\\U0001f1ea")]
    [1, 1, 1, 2, 1, 2, 2]
    """
    found: list[str] = _cluster().findall(text)
    return found


def width(text: str) -> int:
    """Columns that a terminal takes for a text; control characters take none.

    >>> width("Tokyo"), width("東京"), width("cafe\u0301")
    (5, 4, 4)
    """
    if text.isascii() and text.isprintable():
        return len(text)
    from wcwidth import width as columns

    return columns(text, control_codes="ignore")


@cache
def _cluster() -> Any:
    import regex

    return regex.compile(r"\X")
