"""Traces in files, recorded elsewhere, that the service shows: each by a name made of its file's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from regard.explorer.answers import Answers
from regard.files.whole import Damaged
from regard.trace import load


def opened(paths: Sequence[str | Path], device: str | None = None) -> dict[str, Answers]:
    """What ``regard.trace.load`` reads, by ids that stay the same, so that links to them do."""
    found: dict[str, Answers] = {}
    for path in map(Path, paths):
        found[_free(path.stem, found)] = _opened(path, device or "cpu")
    return found


def _opened(path: Path, device: str) -> Answers:
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


def _free(name: str, taken: dict[str, Answers]) -> str:
    """A name for addresses, with a number behind it where it is taken.

    >>> _free("a book, 100k", {})
    'a-book-100k'
    """
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-")[:48] or "trace"
    wanted, number = plain, 1
    while wanted in taken:
        number += 1
        wanted = f"{plain}-{number}"
    return wanted
