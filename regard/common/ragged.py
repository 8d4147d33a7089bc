"""Rows of different lengths as two arrays of integers: all values, and the offset of each row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

Integers = NDArray[Any]


class Ragged(NamedTuple):
    """Rows of different lengths: row i is values[offsets[i] : offsets[i + 1]].

    >>> rows = Ragged.of([[1, 2], [], [3]])
    >>> rows.take(np.array([2, 0, 0])).lists()
    [[3], [1, 2], [1, 2]]
    """

    values: Integers
    offsets: Integers

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]], dtype: DTypeLike = np.uint32) -> Ragged:
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([len(row) for row in rows], out=offsets[1:])
        return cls(np.array([x for row in rows for x in row], dtype), offsets)

    @property
    def rows(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Integers:
        return np.diff(self.offsets)

    def take(self, rows: Integers) -> Ragged:
        """These rows, in this order."""
        start = self.offsets[rows]
        length = self.offsets[np.asarray(rows, np.int64) + 1] - start
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(length, out=offsets[1:])
        return Ragged(self.values[np.arange(offsets[-1]) + np.repeat(start - offsets[:-1], length)], offsets)

    def spread(self, table: Ragged) -> Ragged:
        """Every value x replaced by row x of ``table``: chunks of lines become subwords of lines."""
        flat = table.take(self.values)
        return Ragged(flat.values, flat.offsets[self.offsets])

    def lists(self) -> list[list[int]]:
        return [self.values[a:b].tolist() for a, b in zip(self.offsets[:-1], self.offsets[1:], strict=True)]
