"""Traces that are kept for a while: the most recently used ones, in bounded number and memory."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from typing import Generic, TypeVar

Kept = TypeVar("Kept")


class Traces(Generic[Kept]):
    """By ids that cannot be guessed.

    >>> traces = Traces(count=2, size=100)
    >>> first, second, third = (traces.add(name, 10) for name in "abc")
    >>> traces.get(first), traces.get(second), len(traces)
    (None, 'b', 2)
    """

    def __init__(self, *, count: int, size: int) -> None:
        self._count, self._size, self.bytes = count, size, 0
        self._kept: OrderedDict[str, tuple[Kept, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, trace: Kept, size: int) -> str:
        """Its id. Older ones go where there are too many; the newest stays, however large."""
        name = secrets.token_urlsafe(12)
        self._kept[name] = trace, size
        self.bytes += size
        while len(self._kept) > 1 and (len(self._kept) > self._count or self.bytes > self._size):
            _, (_, gone) = self._kept.popitem(last=False)
            self.bytes -= gone
        return name

    def get(self, name: str) -> Kept | None:
        """The trace, or None if it has gone or never was."""
        if name not in self._kept:
            return None
        self._kept.move_to_end(name)
        return self._kept[name][0]
