"""Symmetrization: combine the alignments of a source-to-target and a target-to-source model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from regard.align.link import Link, Links

Method = Literal["intersection", "union", "grow-diag-final-and"]


def swap(one: Iterable[Link]) -> Links:
    """Reverse links: those of a target-to-source model as (source, target)."""
    return frozenset((j, i) for i, j in one)


def symmetrize(forward: Iterable[Link], backward: Iterable[Link], method: Method = "grow-diag-final-and") -> Links:
    """Combine two alignments, both as (source, target).

    grow-diag-final-and (Koehn, Och and Marcu 2003) starts from the intersection. It repeatedly adds neighbours in the
    union, also diagonal ones, that link an unlinked word; then links of either direction between two unlinked words.

    >>> sorted(symmetrize({(0, 0), (1, 1)}, {(0, 0), (2, 1)}))
    [(0, 0), (1, 1), (2, 1)]
    """
    forward, backward = frozenset(forward), frozenset(backward)
    if method not in ("intersection", "union", "grow-diag-final-and"):
        raise ValueError(f"method: expected 'intersection', 'union' or 'grow-diag-final-and', got {method!r}")
    if method == "intersection" or forward == backward:
        return forward & backward
    if method == "union":
        return forward | backward
    found, union = set(forward & backward), forward | backward
    sources, targets = {i for i, _ in found}, {j for _, j in found}

    def add(link: Link) -> None:
        found.add(link)
        sources.add(link[0])
        targets.add(link[1])

    # only links beside a candidate can cause one to be added
    left = {(i, j) for i, j in union - found if i not in sources or j not in targets}
    beside = {(i + a, j + b) for i, j in left for a, b in _NEIGHBOURS} & union
    order, grown = sorted(beside, key=_by_target), True
    while grown:
        grown = False
        for i, j in (link for link in order if link in found):  # including links added in this pass
            for link in ((i + a, j + b) for a, b in _NEIGHBOURS):
                if link in left and (link[0] not in sources or link[1] not in targets):
                    add(link)
                    left.remove(link)
                    grown = True
    for direction in (forward, backward):
        for link in sorted(direction & left, key=_by_target):
            if link[0] not in sources and link[1] not in targets:
                add(link)
    return frozenset(found)


_NEIGHBOURS = ((-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1))


def _by_target(link: Link) -> Link:
    return link[1], link[0]
