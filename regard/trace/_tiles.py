"""Tiles: a part of the weights, pooled to the size of a picture, from queries, keys and logsumexp alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.trace._call import BLOCK

TileReader = Callable[[Tensor, slice], Iterable[Tensor]]
"""Weights of some rows and columns, a few rows at a time."""


@dataclass(frozen=True)
class Cells:
    """A span cut into cells of ``size`` each, the last one maybe smaller."""

    start: int
    stop: int
    size: int

    @property
    def count(self) -> int:
        return -(-(self.stop - self.start) // self.size)

    @classmethod
    def of(cls, name: str, span: tuple[int, int] | None, most: int | None, length: int) -> Cells:
        """The cells of a span, at most so many."""
        first, end = (0, length) if span is None else span
        if not 0 <= first <= end <= length:
            raise ValueError(f"{name}: expected (first, end) within 0…{length}, got {(first, end)}")
        return cls(int(first), int(end), 1 if most is None else max(-(-(end - first) // most), 1))

    def indices(self, samples: int | None, device: torch.device) -> Tensor:
        """All indices, or ``samples`` of each cell, spread evenly; cells are padded to equal size by repeating."""
        if samples is None or samples >= self.size:
            samples = self.size
        inside = (torch.arange(samples, device=device) * 2 + 1) * self.size // (2 * samples)
        firsts = self.start + torch.arange(self.count, device=device) * self.size
        every: Tensor = (firsts[:, None] + inside).clamp(max=self.stop - 1)
        return every.flatten()


def pool_tile(
    read: TileReader,
    like: Tensor,
    rows: tuple[int, int] | None,
    cols: tuple[int, int] | None,
    size: tuple[int, int] | None,
    pool: str,
    samples: int | None,
) -> Tensor:
    """The weights of rows × cols, pooled to at most ``size`` cells, [h, w]; ``like`` is any tensor like all, [L, S]."""
    if pool not in ("max", "sum"):
        raise ValueError(f"pool: expected 'max' or 'sum', got {pool!r}")
    if size is not None and min(size) < 1:
        raise ValueError(f"size: expected (height, width) of at least 1, got {size}")
    if samples is not None and samples < 1:
        raise ValueError(f"samples: expected at least 1 row of each cell, got {samples}")
    queries, keys = like.shape
    down = Cells.of("rows", rows, None if size is None else size[0], queries)
    across = Cells.of("cols", cols, None if size is None else size[1], keys)
    if not down.count or not across.count:
        return like.new_zeros(down.count, across.count)
    chosen = down.indices(samples, like.device)
    each = len(chosen) // down.count
    parts = []
    columns = slice(across.start, across.stop)
    for some in chosen.split(max(BLOCK // (columns.stop - columns.start) // each, 1) * each):
        narrow = torch.cat([_across(w, across, pool) for w in read(some, columns)])
        cells = narrow.unflatten(0, (-1, each))
        if pool == "max":
            parts.append(cells.amax(1))
        else:
            parts.append(cells.mean(1) if each < down.size else _sum(cells, some, each))
    out = torch.cat(parts)
    if pool == "sum" and each < down.size:  # an estimate: the mean of the sampled rows, times the rows there are
        heights = torch.full((down.count, 1), down.size, device=out.device, dtype=out.dtype)
        heights[-1] = down.stop - down.start - (down.count - 1) * down.size
        out = out * heights
    return out


def _sum(cells: Tensor, rows: Tensor, each: int) -> Tensor:
    """Every row of a cell once: the last cell's padding repeats its last row."""
    again = F.pad((rows[1:] == rows[:-1]), (1, 0)).unflatten(0, (-1, each))
    once: Tensor = cells.masked_fill(again[..., None], 0.0).sum(1)
    return once


def _across(w: Tensor, cells: Cells, pool: str) -> Tensor:
    """Pool the columns of some rows, [r, columns] → [r, cells]."""
    if cells.size == 1:
        return w
    wide = F.pad(w, (0, cells.count * cells.size - w.shape[1])).unflatten(1, (-1, cells.size))
    out: Tensor = wide.amax(-1) if pool == "max" else wide.sum(-1)
    return out
