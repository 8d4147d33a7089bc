"""What a translator answers: translations, their attention, what became of a line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from regard.text.segments import Joint, gap
from regard.text.subwords import Encoded


class Translation(NamedTuple):
    """One translation: its text, what it is ranked by, Σ log p, and if asked for, attention.

    ``attention`` has a part for each sentence that the line was cut into, nearly always one. ``copies`` are the words
    of spans that were not translated: source word, target word.
    """

    text: str
    score: float
    log_prob: float
    attention: tuple[Attended, ...] = ()
    copies: tuple[tuple[int, int], ...] = ()


class Attended(NamedTuple):
    """Cross-attention of a pair: weights [layers, heads, T, S], end symbols included, and both sides in subwords.

    Row t are the weights with which target token t was predicted. ``read`` and ``written`` are the texts;
    ``spaced`` tells of each whether white space stands before it, or it goes on with the last word of the part before.
    """

    weights: Tensor
    source: Encoded
    target: Encoded
    read: str
    written: str
    spaced: tuple[bool, bool] = (True, True)


@dataclass
class TranslationOutput:
    """What became of one line: translations, best first, or a problem; and a note, if something was done to it."""

    translations: list[Translation] = field(default_factory=list)
    problem: str = ""
    note: str = ""

    @property
    def text(self) -> str:
        """The best translation; "" for a line that could not be translated."""
        return self.translations[0].text if self.translations else ""


def single_spaces(line: str) -> str:
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


def join_segments(parts: Sequence[Translation], joints: Sequence[Joint]) -> Translation:
    """Segments of one line as one translation; the score is their mean."""
    if len(parts) == 1:
        return parts[0]
    text, shown = "", list[Attended]()
    for part, joint in zip(parts, joints, strict=True):
        between = gap(text, part.text) if joint.gap is None else joint.gap
        shown += [one._replace(spaced=(joint.spaced, bool(between) or not text)) for one in part.attention]
        text += between + part.text
    return Translation(
        text,
        sum(part.score for part in parts) / len(parts),
        sum(part.log_prob for part in parts),
        tuple(shown),
    )


def in_blocks(parts: Sequence[Tensor], spaced: Sequence[tuple[bool, bool]]) -> Tensor:
    """Word weights [J, I] of a text from those of its parts; a word that was cut gets the sum of its columns, and the
    mean of its rows.

    >>> in_blocks([torch.ones(1, 2), torch.ones(2, 1)], [(True, True), (False, True)])
    tensor([[1., 1.],
            [0., 1.],
            [0., 1.]])
    >>> in_blocks([torch.ones(0, 2)], [(True, True)]).shape
    torch.Size([0, 2])
    """
    blocks: Tensor = torch.block_diag(*parts)
    for side in (0, 1):
        sizes = [part.shape[1 - side] for part in parts]  # sources are columns
        words, count = list[int](), 0
        for size, apart in zip(sizes, spaced, strict=True):
            first = count - (not apart[side] and count > 0 and size > 0)
            words += range(first, first + size)
            count = max(count, first + size)
        onto = torch.nn.functional.one_hot(torch.tensor(words, dtype=torch.long), max(count, 1))[:, :count].to(blocks)
        blocks = blocks @ onto if side == 0 else (onto / onto.sum(0)).T @ blocks
    return blocks


def with_copies(weights: Tensor, copies: Sequence[tuple[int, int]]) -> Tensor:
    """Word weights [J, I] in which a copied word looks at nothing but what it is a copy of.

    >>> with_copies(torch.tensor([[0.5, 0.5], [0.9, 0.1]]), [(1, 1)])
    tensor([[0.5000, 0.5000],
            [0.0000, 1.0000]])
    """
    shares = torch.zeros_like(weights)
    for source, target in copies:
        shares[target, source] += 1
    total = shares.sum(-1, keepdim=True)
    return torch.where(total > 0, shares / total.clamp(min=1), weights)


def widen_weights(weights: Tensor, part: Attended) -> Tensor:
    """Word weights with rows and columns for the words at the end that have no subwords."""
    rows, columns = len(part.written.split()), len(part.read.split())
    return torch.nn.functional.pad(weights, (0, columns - weights.shape[1], 0, rows - weights.shape[0]))
