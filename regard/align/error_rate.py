"""The quality of word alignments: precision, recall, and the alignment error rate, AER."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from regard.align.link import Alignment, Link


@dataclass(frozen=True)
class Quality:
    """The agreement of links A with sure links S and possible links P ⊇ S (Och and Ney 2003)."""

    found: int  # |A|
    sure: int  # |S|
    found_sure: int  # |A ∩ S|
    found_possible: int  # |A ∩ P|

    @property
    def precision(self) -> float:
        """|A ∩ P| / |A|"""
        return self.found_possible / self.found if self.found else 1.0

    @property
    def recall(self) -> float:
        """|A ∩ S| / |S|"""
        return self.found_sure / self.sure if self.sure else 1.0

    @property
    def aer(self) -> float:
        """1 − (|A ∩ S| + |A ∩ P|) / (|A| + |S|), the alignment error rate; 0 is best."""
        total = self.found + self.sure
        return 1 - (self.found_sure + self.found_possible) / total if total else 0.0

    def __str__(self) -> str:
        return f"AER {100 * self.aer:.2f} %, precision {100 * self.precision:.2f} %, recall {100 * self.recall:.2f} %"


def quality(found: Sequence[Iterable[Link]], gold: Sequence[Alignment | Iterable[Link]]) -> Quality:
    """The quality over all sentence pairs. Gold links other than an ``Alignment`` are all sure.

    >>> from regard.align import parse
    >>> print(quality([{(0, 0), (1, 1)}], [parse("0-0 1p1 2-1")]))
    AER 25.00 %, precision 100.00 %, recall 50.00 %
    """
    if len(found) != len(gold):
        raise ValueError(f"expected as many alignments as gold ones, got {len(found)} and {len(gold)}")
    counts = [0, 0, 0, 0]
    for one, right in zip(found, gold, strict=True):
        own = frozenset(one)
        sure = right.sure if isinstance(right, Alignment) else frozenset(right)
        possible = sure | right.possible if isinstance(right, Alignment) else sure
        new = (len(own), len(sure), len(own & sure), len(own & possible))
        counts = [a + b for a, b in zip(counts, new, strict=True)]
    return Quality(*counts)
