"""File formats of word alignments: Pharaoh, and the NAACL 2003 shared task."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from regard.align.link import Alignment, Link

Entry = TypeVar("Entry")


def parse(line: str, *, base: int = 0) -> Alignment:
    """A line in Pharaoh format: ``0-0 1-2``, source first. ``1p2`` and ``1?2`` are possible links only.

    ``base`` is the number of the first word.

    >>> sorted(parse("1-1 2p1", base=1).possible)
    [(0, 0), (1, 0)]
    """
    sure, possible = set(), set()
    for entry in line.split():
        if not (match := re.fullmatch(r"(\d+)([-p?])(\d+)", entry, re.ASCII)):
            raise ValueError(f"expected links such as 0-1 (sure) or 0p1 (possible), got {entry!r}")
        link = int(match[1]) - base, int(match[3]) - base
        if min(link) < 0:
            raise ValueError(f"expected words counted from {base}, got {entry!r}")
        possible.add(link)
        if match[2] == "-":
            sure.add(link)
    return Alignment(frozenset(sure), frozenset(possible))


def pharaoh(sure: Iterable[Link], possible: Iterable[Link] = (), *, base: int = 0) -> str:
    """Links as a line in Pharaoh format; links that are only possible as ``1p2``.

    >>> pharaoh({(1, 0), (0, 0)}, base=1)
    '1-1 2-1'
    """
    sure = frozenset(sure)
    marked = [(i, j, "-" if (i, j) in sure else "p") for i, j in sorted(sure | frozenset(possible))]
    return " ".join(f"{i + base}{mark}{j + base}" for i, j, mark in marked)


def read_pharaoh(path: str | os.PathLike[str], *, base: int = 0) -> list[Alignment]:
    """A file of Pharaoh lines, one per sentence pair."""
    return list(_parse_lines(path, lambda line: parse(line, base=base)))


def write_pharaoh(path: str | os.PathLike[str], alignments: Iterable[Iterable[Link]], *, base: int = 0) -> None:
    """Write a line of links per sentence pair."""
    Path(path).write_text("".join(pharaoh(one, base=base) + "\n" for one in alignments), encoding="utf-8")


def read_naacl(path: str | os.PathLike[str]) -> dict[int, Alignment]:
    """A file of the NAACL 2003 shared task: ``sentence source target [S|P] [confidence]`` per link, counted from 1.

    The result is keyed by the file's sentence numbers (Mihalcea and Pedersen 2003).
    """
    sure: dict[int, set[Link]] = {}
    possible: dict[int, set[Link]] = {}
    for number, link, mark in _parse_lines(path, _naacl):
        sure.setdefault(number, set()).update([link] if mark != "P" else [])
        possible.setdefault(number, set()).add(link)
    return {number: Alignment(frozenset(sure[number]), frozenset(possible[number])) for number in sure}


def _naacl(line: str) -> tuple[int, Link, str]:
    match = re.fullmatch(r"\s*(\d+)\s+(\d+)\s+(\d+)(?:\s+([SP]))?(?:\s+[\d.eE+-]+)?\s*", line, re.ASCII)
    if not match or min(int(match[2]), int(match[3])) < 1:
        raise ValueError(f"expected 'sentence source target [S|P] [confidence]', counted from 1, got {line!r}")
    return int(match[1]), (int(match[2]) - 1, int(match[3]) - 1), match[4] or "S"


def _parse_lines(path: str | os.PathLike[str], parse_line: Callable[[str], Entry]) -> Iterator[Entry]:
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                yield parse_line(line)
            except ValueError as error:
                raise ValueError(f"{path}:{number}: {error}") from None
