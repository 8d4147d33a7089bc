"""Relative positions of a tile without a gather: table entries laid out by diagonals and read by strides.

A tile has rows i < l and columns j < s; its relative positions are δ = base + j − i. They are constant on a diagonal
x = j − i + l − 1, and there are l + s − 1 diagonals. A matrix ext [l, l + s − 1] that holds the diagonals of each row
becomes the tile if it is read with a row stride that is one less:

    tile[i, j] = ext[i, j − i + l − 1]

Reading is the look-up in a table; writing is its transpose, for the table's gradient. The table entry of δ is
clip(δ, −m, m) + m of R = 2m + 1, so the diagonals of a row are the first entry repeated, then entries one by one, then
the last entry repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Make = Callable[[tuple[int, ...]], Tensor]  # allocates a tensor of a shape


@dataclass(frozen=True)
class Diagonals:
    """The diagonals of a tile whose upper left corner is at relative position ``base``."""

    base: int
    rows: int
    cols: int

    @property
    def count(self) -> int:
        return self.rows + self.cols - 1

    def distances(self, like: Tensor) -> Tensor:
        """δ of each diagonal, [count]."""
        first = self.base - self.rows + 1
        return torch.arange(first, first + self.count, device=like.device, dtype=like.dtype)

    def beyond(self, reach: int, like: Tensor) -> Tensor:
        """How far outside ±reach each diagonal lies, [count]."""
        return self.distances(like).abs_().sub_(reach).clamp_(min=0)

    def near(self, reach: int) -> slice:
        """The columns with a pair within ±reach; earlier ones are at −reach or less, later ones at reach or more."""
        start = min(max(1 - reach - self.base, 0), self.cols)
        return slice(start, min(max(reach + self.rows - 1 - self.base, start), self.cols))

    def columns(self, some: slice) -> Diagonals:
        """The diagonals of some of the columns."""
        return Diagonals(self.base + some.start, self.rows, some.stop - some.start)

    def look_up(self, table: Tensor, slope: Tensor | None, make: Make) -> Tensor:
        """table[i, entry(i, j)] − slope · beyond(i, j) of a table [..., l|1, R] and slope [...], [..., l, s].

        A read-only view of memory from ``make``.
        """
        left, start, near, right = self._pieces(table.shape[-1])
        own = table.shape[-2] == self.rows
        ext = (make if own else table.new_empty)((*table.shape[:-1], self.count))
        ext[..., :left] = table[..., :1]
        ext[..., left : left + near] = table[..., start : start + near]
        ext[..., self.count - right :] = table[..., -1:]
        if slope is not None:
            ext = ext - slope[..., None, None] * self.beyond(table.shape[-1] // 2, table)
        if not own:
            ext = make((*ext.shape[:-2], self.rows, self.count)).copy_(ext)
        return self._tile(ext)

    def spread(self, x: Tensor, make: Make) -> Tensor:
        """A tile [..., l, s] by diagonals, [..., l, count], zero where a row has none; in memory from ``make``."""
        ext = make((*x.shape[:-1], self.count)).zero_()
        self._tile(ext).copy_(x)
        return ext

    def fold(self, ext: Tensor, out: Tensor) -> None:
        """Add diagonals [..., count] to their table entries [..., R]: after ``spread``, the transpose of look_up."""
        left, start, near, right = self._pieces(out.shape[-1])
        out[..., start : start + near] += ext[..., left : left + near]
        out[..., 0] += ext[..., :left].sum(-1)
        out[..., -1] += ext[..., self.count - right :].sum(-1)

    def _pieces(self, size: int) -> tuple[int, int, int, int]:
        """Diagonals left of the table; the first entry within it; diagonals within it; diagonals right of it."""
        entry = self.base - self.rows + 1 + size // 2  # of the first diagonal, in an unbounded table
        left = min(max(-entry, 0), self.count)
        right = min(max(entry + self.count - size, 0), self.count)
        return left, min(max(entry, 0), size), self.count - left - right, right

    def _tile(self, ext: Tensor) -> Tensor:
        stride = ext.stride()
        return ext.as_strided(
            (*ext.shape[:-1], self.cols), (*stride[:-2], stride[-2] - 1, 1), ext.storage_offset() + self.rows - 1
        )
