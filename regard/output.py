"""What a translator answers: translations, their attention, what became of a line; lines cut into sentences."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from regard.text import Encoded


class Translation(NamedTuple):
    """One translation: its text, what it is ranked by, Σ log p, and if asked for, attention.

    ``attention`` has a part for each sentence that the line was cut into, nearly always one.
    """

    text: str
    score: float
    log_prob: float
    attention: tuple[Attended, ...] = ()


class Attended(NamedTuple):
    """Cross-attention of a pair: weights [layers, heads, T, S], end symbols included, and both sides in subwords.

    Row t are the weights with which target token t was predicted.
    """

    weights: Tensor
    source: Encoded
    target: Encoded


@dataclass
class Output:
    """What became of one line: translations, best first, or a problem; and a note, if something was done to it."""

    translations: list[Translation] = field(default_factory=list)
    problem: str = ""
    note: str = ""

    @property
    def text(self) -> str:
        """The best translation; "" for a line that could not be translated."""
        return self.translations[0].text if self.translations else ""


# The end of a sentence, with what closes it, and the white space after it.
_END = re.compile(r"""(?:[.!?…]["'»”’)\]]*)(\s+)|(?<=[。！？])(\s*)""")
# What a full stop belongs to that ends no sentence: titles, initials, "e.g.", "p.m."
_SHORT = re.compile(
    r"(?:^|[\s(\"'“«])(?:Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|Gen|Capt|vs|cf|(?:[A-Z]\.)*[A-Z]|(?:[a-z]\.)+[a-z])\.$"
)


def sentences(line: str) -> list[str]:
    """A line cut after sentence ends.

    >>> sentences("Is Mr. Smith there? No. He is out.")
    ['Is Mr. Smith there?', 'No.', 'He is out.']
    """
    parts, start = [], 0
    for match in _END.finditer(line):
        if _SHORT.search(line, start, match.start() + 1):
            continue
        parts.append(line[start : match.end()].strip())
        start = match.end()
    parts.append(line[start:].strip())
    return [part for part in parts if part]


def single_spaced(line: str) -> str:
    """A line with one space between words and none around them."""
    return " ".join(line.split())


def spread(encoded: Encoded, line: str) -> Encoded:
    """The subwords of the single-spaced line, with offsets in the line as it is.

    >>> spread(Encoded([5, 6], [(0, 1), (2, 4)], [0, 1], [0, 1]), " a \\t bc").offsets
    [(1, 2), (5, 7)]
    """
    starts, tidy = [match.start() for match in re.finditer(r"\S+", line)], 0
    moves = []
    for start, word in zip(starts, line.split(), strict=True):
        moves.append(start - tidy)
        tidy += len(word) + 1
    if not any(moves):
        return encoded
    offsets = [(a + moves[w], b + moves[w]) for (a, b), w in zip(encoded.offsets, encoded.words, strict=True)]
    return encoded._replace(offsets=offsets)


def joined(parts: Sequence[Translation]) -> Translation:
    """Sentences of one line as one translation; the score is their mean."""
    if len(parts) == 1:
        return parts[0]
    return Translation(
        " ".join(part.text for part in parts),
        sum(part.score for part in parts) / len(parts),
        sum(part.log_prob for part in parts),
        tuple(shown for part in parts for shown in part.attention),
    )
