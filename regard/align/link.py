"""What an alignment is made of: links between words, sure or possible."""

from __future__ import annotations

from typing import NamedTuple

Link = tuple[int, int]
"""(source word, target word), counted from 0."""
Links = frozenset[Link]


class Alignment(NamedTuple):
    """Links that are sure, and those that are possible, the sure ones among them."""

    sure: Links
    possible: Links
