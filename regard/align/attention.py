"""Word alignments from attention: links, two directions made one, the Pharaoh format, the alignment error rate.

A link is (source word, target word), counted from 0. T and S are subwords of target and source, J and I their words.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from regard.text.graphemes import clusters, width

__all__ = [
    "Alignment",
    "Quality",
    "links",
    "parse",
    "pharaoh",
    "picture",
    "quality",
    "read_naacl",
    "read_pharaoh",
    "swap",
    "symmetrize",
    "word_weights",
    "write_pharaoh",
]

Entry = TypeVar("Entry")
Link = tuple[int, int]
Links = frozenset[Link]
Method = Literal["intersection", "union", "grow-diag-final-and"]


class Alignment(NamedTuple):
    """Links that are sure, and those that are possible, the sure ones among them."""

    sure: Links
    possible: Links


# --- from attention to links ---


def word_weights(
    weights: Tensor,
    source_words: Sequence[int],
    target_words: Sequence[int],
    *,
    layer: int | None = None,
    head: int | None = None,
    shift: bool = True,
    merge: Literal["mean", "max"] = "mean",
) -> Tensor:
    """How much each target word attends to each source word, [J, I].

    ``weights`` [layers, heads, T, S] are those of cross-attention in a forced decode, that is with the target given:
    row t reads <s> y₁ … y_t, its last input being y_t, and predicts y_{t+1}. One ``layer`` and ``head`` are taken, or
    the mean over them. With ``shift`` the row of y_t is that where it is the input, row t, else that where it is
    predicted, row t − 1. In models of real text the first is far better (Chen et al. 2020,
    https://arxiv.org/abs/2004.14837); a small model of text that is easy to predict looks at a word's source when it
    predicts it, so compare both.

    ``source_words`` and ``target_words`` are the word of every subword (``Encoded.words``), −1 for none; they may leave
    out <s> and </s> at the end. The subwords of a source word are added up; those of a target word give their mean, or
    their maximum.
    """
    if weights.ndim != 4:
        raise ValueError(f"weights: expected [layers, heads, T, S], got shape {tuple(weights.shape)}")
    if merge not in ("mean", "max"):
        raise ValueError(f"merge: expected 'mean' or 'max', got {merge!r}")
    picked = _picked(_picked(weights, layer, "layer"), head, "head").double()
    rows, columns = len(target_words), len(source_words)
    if picked.shape[0] < rows + shift or picked.shape[1] < columns:
        raise ValueError(
            f"weights: expected at least {rows + shift} rows (target subwords{' and <s>' if shift else ''}) and "
            f"{columns} columns (source subwords), got {tuple(picked.shape)}"
        )
    own = picked[int(shift) : rows + shift, :columns]
    if merge == "mean":
        return grouped_words(own, source_words, target_words)
    source, target = _groups(source_words, own.device), _groups(target_words, own.device)
    summed = own @ source
    spread = summed[:, None].where(target[:, :, None] > 0, torch.tensor(0.0).to(summed))
    return spread.amax(0) if rows else summed.new_zeros(0, source.shape[1])


def grouped_words(weights: Tensor, source_words: Sequence[int], target_words: Sequence[int]) -> Tensor:
    """Of subwords to words, [..., T, S] → [..., J, I]: those of a source word added up, the mean over a target word."""
    source = _groups(source_words, weights.device).to(weights.dtype)  # [S, I]
    target = _groups(target_words, weights.device).to(weights.dtype)  # [T, J]
    return (target.T @ (weights @ source)) / target.sum(0)[:, None].clamp(min=1)


def by_word(rows: Tensor, words: Sequence[int], count: int) -> Tensor:
    """Columns of subwords added up to columns of ``count`` words, [.., S] → [.., I]; word −1 is none.

    In O(S + I) memory, for documents of any length.

    >>> by_word(torch.tensor([[0.25, 0.5, 0.125, 0.125]]), [0, -1, 2, 2], 3)
    tensor([[0.2500, 0.0000, 0.2500]])
    """
    index = torch.tensor([word if word >= 0 else count for word in words], dtype=torch.long, device=rows.device)
    return rows.new_zeros(*rows.shape[:-1], count + 1).index_add_(-1, index, rows[..., : len(words)])[..., :count]


def links(matrix: Tensor, *, threshold: float | None = None, mutual: bool = False) -> Links:
    """From word weights [J, I]: each target word to the source word it attends to most, or to all with ``threshold``.

    With ``mutual`` a link also has to be the greatest weight of its source word, which leaves one-to-one links, fewer
    and surer; ``threshold`` is then on √(w / Σ_i w · w / Σ_j w), its share of all that its two words give and get. A
    word that attends to nothing has no link.

    >>> sorted(links(torch.tensor([[0.1, 0.6], [0.4, 0.3]])))
    [(0, 1), (1, 0)]
    >>> sorted(links(torch.tensor([[0.1, 0.6], [0.4, 0.3]]), threshold=0.3))
    [(0, 1), (1, 0), (1, 1)]
    >>> sorted(links(torch.tensor([[0.9, 0.1], [0.6, 0.2]]), mutual=True))
    [(0, 0)]
    """
    if not matrix.numel():
        return frozenset()
    if mutual:
        found = _mutual(matrix)
        if threshold is not None:
            found &= _shares(matrix) >= threshold
    elif threshold is not None:
        found = (matrix >= threshold) & (matrix > 0)
    else:
        found = _most(matrix)
    return frozenset((i, j) for j, i in found.nonzero().tolist())


def _most(matrix: Tensor) -> Tensor:
    """Where the greatest weight of each row is, the first of several; nowhere in a row of zeros."""
    most, where = matrix.max(-1, keepdim=True)
    return torch.zeros_like(matrix, dtype=torch.bool).scatter_(-1, where, most > 0)


def _mutual(matrix: Tensor) -> Tensor:
    return _most(matrix) & _most(matrix.T).T


def _shares(matrix: Tensor) -> Tensor:
    """The geometric mean of a weight's shares of its row and of its column."""
    tiny = torch.finfo(matrix.dtype).tiny
    return matrix / (matrix.sum(-1, keepdim=True) * matrix.sum(-2, keepdim=True)).sqrt().clamp_min(tiny)


def _picked(weights: Tensor, index: int | None, what: str) -> Tensor:
    if index is None:
        return weights.mean(0)
    if not -len(weights) <= index < len(weights):
        raise ValueError(f"{what} of cross-attention: expected one of {len(weights)}, counted from 0, got {index}")
    return weights[index]


def _groups(words: Sequence[int], device: torch.device) -> Tensor:
    """[subwords, words], 1 where a subword is of a word."""
    count = max(words, default=-1) + 1
    of = torch.tensor(words, dtype=torch.long, device=device)
    return (of[:, None] == torch.arange(count, device=device)).double()


# --- two directions ---


def swap(one: Iterable[Link]) -> Links:
    """The links seen from the other side: what a model from target to source found, as links of ours."""
    return frozenset((j, i) for i, j in one)


def symmetrize(forward: Iterable[Link], backward: Iterable[Link], method: Method = "grow-diag-final-and") -> Links:
    """One alignment of two, both as (source, target).

    grow-diag-final-and (Koehn, Och and Marcu 2003): from the intersection, neighbours (also diagonal ones) in the union
    are added as long as they give a link to a word that had none; then those links of either direction that join two
    words without one.

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

    # few links may still be added, and only those beside them can make it so
    left = {(i, j) for i, j in union - found if i not in sources or j not in targets}
    beside = {(i + a, j + b) for i, j in left for a, b in _NEIGHBOURS} & union
    order, grown = sorted(beside, key=_by_target), True
    while grown:
        grown = False
        for i, j in (link for link in order if link in found):  # also those added on the way
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


# --- files ---


def parse(line: str, *, base: int = 0) -> Alignment:
    """A line in Pharaoh format: ``0-0 1-2``, source first. ``1p2`` and ``1?2`` are possible links only.

    ``base`` is what words are counted from in the line.

    >>> sorted(parse("1-1 2p1", base=1).possible)
    [(0, 0), (1, 0)]
    """
    sure, possible = set(), set()
    for entry in line.split():
        if not (match := re.fullmatch(r"(\d+)([-p?])(\d+)", entry, re.ASCII)):
            raise ValueError(f"expected links such as 0-1 (sure) or 0p1 (possible), got {entry!r}")
        link = int(match[1]) - base, int(match[3]) - base
        if min(link) < 0:
            raise ValueError(f"expected words counted from {base}, got {entry!r}")
        possible.add(link)
        if match[2] == "-":
            sure.add(link)
    return Alignment(frozenset(sure), frozenset(possible))


def pharaoh(sure: Iterable[Link], possible: Iterable[Link] = (), *, base: int = 0) -> str:
    """Links as a line in Pharaoh format; possible ones that are not sure as ``1p2``.

    >>> pharaoh({(1, 0), (0, 0)}, base=1)
    '1-1 2-1'
    """
    sure = frozenset(sure)
    marked = [(i, j, "-" if (i, j) in sure else "p") for i, j in sorted(sure | frozenset(possible))]
    return " ".join(f"{i + base}{mark}{j + base}" for i, j, mark in marked)


def read_pharaoh(path: str | os.PathLike[str], *, base: int = 0) -> list[Alignment]:
    """A file of Pharaoh lines, one per sentence pair."""
    return list(_parsed(path, lambda line: parse(line, base=base)))


def write_pharaoh(path: str | os.PathLike[str], alignments: Iterable[Iterable[Link]], *, base: int = 0) -> None:
    """Writes a line of links per sentence pair."""
    Path(path).write_text("".join(pharaoh(one, base=base) + "\n" for one in alignments), encoding="utf-8")


def read_naacl(path: str | os.PathLike[str]) -> dict[int, Alignment]:
    """A file of the NAACL 2003 shared task: ``sentence source target [S|P] [confidence]`` per link, all from 1.

    The result is by sentence number, as in the file. (Mihalcea and Pedersen 2003.)
    """
    sure: dict[int, set[Link]] = {}
    possible: dict[int, set[Link]] = {}
    for number, link, mark in _parsed(path, _naacl):
        sure.setdefault(number, set()).update([link] if mark != "P" else [])
        possible.setdefault(number, set()).add(link)
    return {number: Alignment(frozenset(sure[number]), frozenset(possible[number])) for number in sure}


def _naacl(line: str) -> tuple[int, Link, str]:
    match = re.fullmatch(r"\s*(\d+)\s+(\d+)\s+(\d+)(?:\s+([SP]))?(?:\s+[\d.eE+-]+)?\s*", line, re.ASCII)
    if not match or min(int(match[2]), int(match[3])) < 1:
        raise ValueError(f"expected 'sentence source target [S|P] [confidence]', counted from 1, got {line!r}")
    return int(match[1]), (int(match[2]) - 1, int(match[3]) - 1), match[4] or "S"


def _parsed(path: str | os.PathLike[str], parse_line: Callable[[str], Entry]) -> Iterator[Entry]:
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                yield parse_line(line)
            except ValueError as error:
                raise ValueError(f"{path}:{number}: {error}") from None


# --- how good ---


@dataclass(frozen=True)
class Quality:
    """How well links A agree with sure links S and possible links P ⊇ S (Och and Ney 2003)."""

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
    """Over a whole set of sentence pairs. Gold links that are not an ``Alignment`` are all sure.

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


# --- a picture ---


def picture(matrix: Tensor, source: Sequence[str], target: Sequence[str], *, marked: Iterable[Link] = ()) -> str:
    """Word weights [J, I] drawn in characters: a row per target word, source words standing above their columns.

    The darkest cell is the largest weight; ``marked`` links have brackets.

    >>> print(picture(torch.tensor([[0.9, 0.1], [0.0, 1.0]]), ["the", "cat"], ["le", "chat"], marked={(1, 1)}))
             t  c
             h  a
             e  t
      le     █  ░
    chat       [█]
    """
    if tuple(matrix.shape) != (len(target), len(source)):
        raise ValueError(f"expected weights [{len(target)}, {len(source)}] for these words, got {tuple(matrix.shape)}")
    marked, top = frozenset(marked), float(matrix.max()) if matrix.numel() else 0.0
    names = [list(clusters(word)) for word in source]
    margin = max((width(word) for word in target), default=0)
    lines = []
    for level in reversed(range(max(map(len, names), default=0))):
        cells = [_cell(name[len(name) - 1 - level] if level < len(name) else " ", " ", " ") for name in names]
        lines.append(" " * margin + "   " + "".join(cells))
    for j, word in enumerate(target):
        row = [float(w) / top if top > 0 else 0.0 for w in matrix[j]]
        cells = [_cell(_shade(w), *("[]" if (i, j) in marked else "  ")) for i, w in enumerate(row)]
        lines.append(" " * (margin - width(word)) + word + "   " + "".join(cells))
    return "\n".join(line.rstrip() for line in lines)


def _shade(share: float) -> str:
    return " ░▒▓█"[min(4, round(share * 4 + 0.1))]


def _cell(mark: str, left: str, right: str) -> str:
    return left + mark + (right if width(mark) < 2 or right != " " else "")
