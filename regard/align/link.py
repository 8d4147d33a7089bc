"""Links between words, and alignments of sure and possible links."""

from __future__ import annotations

from typing import NamedTuple

Link = tuple[int, int]
"""(source word, target word), counted from 0."""
Links = frozenset[Link]


class Alignment(NamedTuple):
    """Sure links, and possible links, which include the sure ones."""

    sure: Links
    possible: Links
