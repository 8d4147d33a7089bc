"""Traces in files, recorded elsewhere, that the service shows: each by a name made of its file's."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Sequence
from pathlib import Path

from regard.explorer.answers import Answers
from regard.files.whole import Damaged
from regard.trace import load


def open_traces(paths: Sequence[str | Path], device: str | None = None) -> dict[str, Answers]:
    """What ``regard.trace.load`` reads, by ids that stay the same, so that links to them do."""
    found: dict[str, Answers] = {}
    for path in map(Path, paths):
        found[_address_of(path.stem, found)] = _open(path, device or "cpu")
    return found


def _open(path: Path, device: str) -> Answers:
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file; traces are written by trace.save({path.name!r})")
    answers = Answers(load(path, device), name=path.name)
    try:
        kinds = answers.kinds()
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise Damaged(f"{path}: a trace that cannot be read: {error!r}") from error
    if not kinds:
        raise ValueError(f"{path}: no attention was recorded in this trace, so there is nothing to show")
    return answers


def _address_of(name: str, taken: Collection[str]) -> str:
    """A name for addresses that no other trace has.

    >>> _address_of("a book, 100k", {})
    'a-book-100k'
    """
    return unique(re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-")[:48] or "trace", taken)


def unique(name: str, taken: Collection[str]) -> str:
    """The name, with a number behind it where it is taken.

    >>> unique("model", ["model", "model-2"])
    'model-3'
    """
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return next(each for each in names if each not in taken)
