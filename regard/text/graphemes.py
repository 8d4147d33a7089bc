"""Grapheme clusters, the characters that readers see: letters with their marks, flags, joined emoji, Hangul.

``regex`` finds the clusters of Unicode's UAX #29 (https://unicode.org/reports/tr29); ``wcwidth`` knows their width in a
terminal. Both are imported on first use, to keep start-up fast.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import regex

__all__ = ["border", "clusters", "width"]


def border(text: str, at: int) -> bool:
    """Whether this index is a border of grapheme clusters, where the text may be cut.

    >>> [border("e\\u0301x", at) for at in range(4)]
    [True, False, True, True]
    """
    # a match from any index ends at the next cluster border of the whole text
    return not 0 < at < len(text) or _cluster().match(text, at - 1).end() == at


def clusters(text: str) -> list[str]:
    """The grapheme clusters of a text.

    >>> [len(sign) for sign in clusters("cafe\\u0301 \\U0001f1eb\\U0001f1f7\\U0001f1e9\\U0001f1ea")]
    [1, 1, 1, 2, 1, 2, 2]
    """
    found: list[str] = _cluster().findall(text)
    return found


def width(text: str) -> int:
    """Columns that a text takes in a terminal; control characters take none.

    >>> width("Tokyo"), width("東京"), width("cafe\u0301")
    (5, 4, 4)
    """
    if text.isascii() and text.isprintable():
        return len(text)
    from wcwidth import width as columns

    return columns(text, control_codes="ignore")


@cache
def _cluster() -> regex.Pattern[str]:
    import regex

    return regex.compile(r"\X")
