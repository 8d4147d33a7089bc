"""A cache of traces: the most recently used, in bounded number and memory."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

Kept = TypeVar("Kept")


class Recent(Generic[Kept]):
    """Values by key; those not used for longest go first.

    >>> recent = Recent(count=2, size=100)
    >>> for name in "abc":
    ...     recent.put(name, name.upper(), 10)
    >>> recent.get("a"), recent.get("b"), len(recent)
    (None, 'B', 2)
    """

    def __init__(self, *, count: int, size: int) -> None:
        self._count, self._size, self.bytes = count, size, 0
        self._kept: OrderedDict[Hashable, tuple[Kept, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def put(self, key: Hashable, value: Kept, size: int) -> None:
        """Older ones go where there are too many; the newest stays, however large."""
        if key in self._kept:
            self.bytes -= self._kept.pop(key)[1]
        self._kept[key] = value, size
        self.bytes += size
        while len(self._kept) > 1 and (len(self._kept) > self._count or self.bytes > self._size):
            _, (_, gone) = self._kept.popitem(last=False)
            self.bytes -= gone

    def get(self, key: Hashable) -> Kept | None:
        """The value, or None if it has gone or never was."""
        if key not in self._kept:
            return None
        self._kept.move_to_end(key)
        return self._kept[key][0]


class Traces(Recent[Kept]):
    """By ids that cannot be guessed."""

    def add(self, trace: Kept, size: int) -> str:
        """Its id."""
        name = secrets.token_urlsafe(12)
        self.put(name, trace, size)
        return name
