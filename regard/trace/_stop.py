"""Long computations on a trace that can be cancelled between blocks, for instance when the client disconnects."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_WANTED: ContextVar[Callable[[], bool] | None] = ContextVar("regard_trace_wanted", default=None)


class Stopped(Exception):
    """The computation was cancelled."""


@contextmanager
def wanted(still: Callable[[], bool]) -> Iterator[None]:
    """Inside, computations on a trace raise :class:`Stopped` soon after ``still()`` returns False."""
    token = _WANTED.set(still)
    try:
        yield
    finally:
        _WANTED.reset(token)


def check() -> None:
    """Called between blocks."""
    still = _WANTED.get()
    if still is not None and not still():
        raise Stopped("the request was cancelled")
