"""Long computations on a trace that can be stopped between blocks, as when nobody waits for them any more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_WANTED: ContextVar[Callable[[], bool] | None] = ContextVar("regard_trace_wanted", default=None)


class Stopped(Exception):
    """The computation was told to stop."""


@contextmanager
def wanted(still: Callable[[], bool]) -> Iterator[None]:
    """Inside, what is computed from a trace raises :class:`Stopped` soon after ``still()`` turns False."""
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
