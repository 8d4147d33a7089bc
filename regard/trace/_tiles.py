"""Tiles: a part of the weights, pooled to the size of a picture, from queries, keys and logsumexp alone."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.trace._call import BLOCK, Call


def pooled(
    call: Call,
    head: int,
    item: int,
    rows: tuple[int, int] | None,
    cols: tuple[int, int] | None,
    size: tuple[int, int] | None,
    pool: str,
) -> Tensor:
    """The weights of rows × cols, pooled to at most ``size`` cells, [h, w]."""
    if pool not in ("max", "sum"):
        raise ValueError(f"pool: expected 'max' or 'sum', got {pool!r}")
    _, _, queries, keys = call.shape
    rows, cols = _span("rows", rows, queries), _span("cols", cols, keys)
    height, width = rows[1] - rows[0], cols[1] - cols[0]
    if size is not None:
        if min(size) < 1:
            raise ValueError(f"size: expected (height, width) of at least 1, got {size}")
        height, width = min(height, size[0]), min(width, size[1])
    p = call.problems[0]
    out = torch.zeros(height, width, dtype=p.compute_dtype, device=p.device)
    if not out.numel():
        return out
    by_row, by_col = _cells(rows, height, p.device), _cells(cols, width, p.device)
    every = torch.arange(*rows, device=p.device)
    step = max(BLOCK // max(len(every), 1), width, 1)
    for start in range(cols[0], cols[1], step):
        columns = slice(start, min(start + step, cols[1]))
        cells = by_col[columns.start - cols[0] : columns.stop - cols[0]]
        for some, w in call.weight_blocks(head, item, every, columns):
            _add(out, w, by_row[some - rows[0]], cells, pool)
    return out


def _add(out: Tensor, w: Tensor, by_row: Tensor, by_col: Tensor, pool: str) -> None:
    """Pool a block into the picture: along the columns, then along the rows."""
    how = "amax" if pool == "max" else "sum"
    narrow = w.new_zeros(len(w), out.shape[1]).scatter_reduce(1, by_col.expand_as(w), w, how)
    out.scatter_reduce_(0, by_row[:, None].expand_as(narrow), narrow, how)


def _span(name: str, span: tuple[int, int] | None, count: int) -> tuple[int, int]:
    if span is None:
        return 0, count
    if not 0 <= span[0] <= span[1] <= count:
        raise ValueError(f"{name}: expected (first, end) within 0…{count}, got {tuple(span)}")
    return int(span[0]), int(span[1])


def _cells(span: tuple[int, int], count: int, device: torch.device) -> Tensor:
    """The cell of each index of a span cut into ``count`` cells of sizes that differ by one at most."""
    return torch.arange(span[1] - span[0], device=device) * count // (span[1] - span[0])
