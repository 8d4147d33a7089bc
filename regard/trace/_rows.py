"""Rows of recorded calls: the ones that a question is about, and what is read of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.trace._call import Call

RowIndex = int | slice | range | Sequence[int] | Tensor | None
CallRows = tuple[Call, Tensor]
RowReader = Callable[[Call, int, int, Tensor], Tensor]
"""From a call, a head, a batch item and rows [r] to numbers [r, …]."""
Measure = Callable[[Tensor, Call, int, Tensor], Tensor]
"""From weights [r, keys] of a call, the batch item and the rows [r] to numbers [r]."""


class Where(TypedDict, total=False):
    """Which attention of a layer: the batch item (0), the kind ("self"), the call (−1: the last; None: all of them)."""

    item: int
    kind: str
    call: int | None


def check_place(call: Call, head: int, item: int) -> None:
    """Raises where a call has no such head or batch item."""
    batch, heads, _, _ = call.shape
    if not 0 <= head < heads:
        raise ValueError(f"head: there are {heads}, from 0; got {head}")
    if not 0 <= item < batch:
        raise ValueError(f"item: the batch has {batch}, from 0; got {item}")


@dataclass(frozen=True)
class Selection:
    """Some rows of a layer's calls: of one batch item, and of one head (None: of all)."""

    pieces: list[CallRows]
    heads: Sequence[int]
    keys: int  # the most that a call has
    item: int
    one_head: bool
    one_row: bool

    @classmethod
    def of(cls, calls: Sequence[Call], head: int | None, rows: RowIndex, item: int) -> Selection:
        heads = range(calls[-1].shape[1]) if head is None else [head]
        keys = max(c.shape[3] for c in calls)
        return cls(split_rows(calls, rows), heads, keys, item, head is not None, isinstance(rows, int))

    def read(self, read: RowReader, *, empty: float = 0.0) -> Tensor:
        """Numbers of every pair, [(heads,) (rows,) keys]; ``empty`` where a call has fewer keys than another."""

        def wide(call: Call, head: int, item: int, rows: Tensor) -> Tensor:
            part = read(call, head, item, rows)
            return F.pad(part, (0, self.keys - part.shape[1]), value=empty)

        whole = self._join(wide, torch.zeros(0, self.keys))
        return whole[..., 0, :] if self.one_row else whole

    def numbers(self, read: RowReader) -> Tensor:
        """A number per row, [(heads,) rows]."""
        return self._join(read, torch.zeros(0))

    def measure(self, measure: Measure) -> Tensor:
        """A number per row, of its weights, [(heads,) rows]; a few rows at a time."""

        def read(c: Call, head: int, item: int, rows: Tensor) -> Tensor:
            return torch.cat([measure(w, c, item, some) for some, w in c.weight_blocks(head, item, rows)])

        return self.numbers(read)

    def _join(self, read: RowReader, none: Tensor) -> Tensor:
        """What is read of all calls, one after the other; ``none`` is what it is of no rows."""
        by_head = []
        for head in self.heads:
            parts = [none]
            for call, rows in self.pieces:
                check_place(call, head, self.item)
                parts.append(read(call, head, self.item, rows).cpu())
            by_head.append(torch.cat([part.to(parts[-1].dtype) for part in parts]))
        return by_head[0] if self.one_head else torch.stack(by_head)


def split_rows(calls: Sequence[Call], rows: RowIndex) -> list[CallRows]:
    """The rows, counted through all calls, by the calls that have them; neighbours of one call stay together."""
    counts = [c.shape[2] for c in calls]
    index = row_index(rows, sum(counts))
    if len(calls) == 1:
        return [(calls[0], index.to(calls[0].problems[0].device))]
    ends = torch.tensor(counts).cumsum(0)
    pieces: list[tuple[int, list[int]]] = []
    for row in index.tolist():
        at = int((ends <= row).sum())
        local = row - (int(ends[at - 1]) if at else 0)
        if pieces and pieces[-1][0] == at:
            pieces[-1][1].append(local)
        else:
            pieces.append((at, [local]))
    return [(calls[at], torch.tensor(some, device=calls[at].problems[0].device)) for at, some in pieces]


def row_index(rows: RowIndex, count: int) -> Tensor:
    """Indices of rows, from what people write."""
    if rows is None:
        return torch.arange(count)
    if isinstance(rows, slice):
        return torch.arange(count)[rows]
    if isinstance(rows, (bool, float, str)):
        raise TypeError(f"rows: expected a number, several, or None for all; got {rows!r}")
    index = torch.as_tensor([rows] if isinstance(rows, int) else list(rows) if isinstance(rows, range) else rows).cpu()
    if index.is_floating_point() or index.dtype == torch.bool or index.ndim != 1:
        raise TypeError(f"rows: expected whole numbers, got {index.dtype} of shape {list(index.shape)}")
    if index.numel() and not -count <= int(index.min()) <= int(index.max()) < count:
        raise ValueError(f"rows: there are {count} queries, from 0; got {int(index.min())}…{int(index.max())}")
    return index.long() % max(count, 1)
