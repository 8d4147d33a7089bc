"""Draw word weights with characters, for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor

from regard.align.link import Link
from regard.text.graphemes import clusters, width


def picture(matrix: Tensor, source: Sequence[str], target: Sequence[str], *, marked: Iterable[Link] = ()) -> str:
    """Draw word weights [J, I]: a row per target word, the source words above their columns.

    The darkest cell has the largest weight; ``marked`` links are in brackets.

    >>> import torch
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
