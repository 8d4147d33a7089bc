"""Readers of text pairs: two files of lines, TSV, JSON lines. Bad lines are reported, never repaired.

Each file may be gzipped or UTF-16: see :mod:`regard.files.text`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, TypeVar

from regard.files.bounds import parse_json
from regard.files.text import PathLike
from regard.files.text import lines as file_lines

Policy = Literal["raise", "skip"]
SHOWN = 5  # bad lines shown in a report
Item = TypeVar("Item")


class Bad(NamedTuple):
    """An unusable line: its place, the kind of error, and details."""

    where: str
    kind: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.kind}{self.detail and f' ({self.detail})'}"


PairRow = tuple[str, str] | Bad


class Reader(Protocol):
    """A source of text pairs; an unusable line gives a ``Bad``."""

    @property
    def name(self) -> str: ...
    @property
    def weight(self) -> float: ...
    @property
    def paths(self) -> tuple[Path, ...]: ...
    def rows(self) -> Iterator[PairRow]: ...


@dataclass(frozen=True)
class Files:
    """Two files; line i of one is a translation of line i of the other."""

    source: PathLike
    target: PathLike
    weight: float = 1.0

    @property
    def name(self) -> str:
        return f"{self.source} + {self.target}"

    @property
    def paths(self) -> tuple[Path, ...]:
        return Path(self.source), Path(self.target)

    def rows(self) -> Iterator[PairRow]:
        counts = [0, 0]
        for number, sides in enumerate(zip_longest(*(file_lines(path) for path in self.paths)), 1):
            counts = [count + (side is not None) for count, side in zip(counts, sides, strict=True)]
            if None in sides:
                continue  # count to the end for the error message
            wheres = [f"{path}:{number}" for path in self.paths]
            decoded = [_decode(side, where) for side, where in zip(sides, wheres, strict=True)]
            bad = next((text for text in decoded if isinstance(text, Bad)), None)
            yield bad or _pair(decoded[0], decoded[1], *wheres)
        if counts[0] != counts[1]:
            raise ValueError(
                f"{self.source} has {counts[0]:,} lines, {self.target} {counts[1]:,}: "
                "expected the same number; line i of one is a translation of line i of the other"
            )


class _OneFile:
    """A file with a pair per line."""

    path: PathLike

    @property
    def name(self) -> str:
        return str(self.path)

    @property
    def paths(self) -> tuple[Path, ...]:
        return (Path(self.path),)

    def rows(self) -> Iterator[PairRow]:
        for where, text in numbered_lines(self.path):
            yield text if isinstance(text, Bad) else self._row(text, where)

    def _row(self, text: str, where: str) -> PairRow:
        raise NotImplementedError


@dataclass(frozen=True)
class Tsv(_OneFile):
    """A file with a pair per line, in two columns between tabs.

    Every line must have ``width`` columns. By default the last column used is the last one, so that an extra tab is
    detected.
    """

    path: PathLike
    columns: tuple[int, int] = (0, 1)
    width: int | None = None
    weight: float = 1.0

    def __post_init__(self) -> None:
        whole = all(isinstance(column, int) for column in self.columns)
        if (
            not whole
            or len({*self.columns}) != 2
            or min(self.columns) < 0
            or max(self.columns) >= (self.width or 2**31)
        ):
            raise ValueError(f"Tsv: expected two different columns, from 0, within the width; got {self.columns}")

    def _row(self, text: str, where: str) -> PairRow:
        width = self.width or max(self.columns) + 1
        cells = text.split("\t")
        if len(cells) != width:
            return Bad(where, "wrong number of columns", f"expected {width}, got {len(cells)}")
        return _pair(cells[self.columns[0]], cells[self.columns[1]], where, where)


@dataclass(frozen=True)
class JsonLines(_OneFile):
    """A file with a JSON object per line, with the texts under two keys."""

    path: PathLike
    keys: tuple[str, str] = ("source", "target")
    weight: float = 1.0

    def _row(self, text: str, where: str) -> PairRow:
        entry = parse_object(text, where)
        if isinstance(entry, Bad):
            return entry
        texts = []
        for key in self.keys:
            value = entry.get(key)
            if not isinstance(value, str):
                got = f"a {type(value).__name__}" if key in entry else "no such key"
                return Bad(where, "no text under a key", f"expected a string under {key!r}, got {got}")
            texts.append(value)
        return _pair(texts[0], texts[1], where, where)


@dataclass(frozen=True)
class Pairs:
    """Pairs in memory."""

    pairs: Sequence[tuple[str, str]]
    name: str = "pairs"
    weight: float = 1.0

    @property
    def paths(self) -> tuple[Path, ...]:
        return ()

    def rows(self) -> Iterator[PairRow]:
        for number, (source, target) in enumerate(self.pairs, 1):
            where = f"{self.name}:{number}"
            yield _pair(source, target, where, where)


@dataclass
class Report:
    """Counts of what one reader read, kept and left out; as text, with the first few bad lines below."""

    name: str
    read: int = 0
    kept: int = 0
    bad: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    shown: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        counts = [f"{n:,} {kind}" for kind, n in [*sorted(self.bad.items()), *sorted(self.left_out.items())]]
        head = f"{self.name}: {self.read:,} lines read, {self.kept:,} pairs kept" + (
            f"; {', '.join(counts)}" if counts else ""
        )
        more = [f"  and {more:,} more"] if (more := self.bad.total() - len(self.shown)) else []
        return "\n".join([head, *(f"  {line}" for line in self.shown), *more])


def read(reader: Reader, *, bad: Policy = "raise", report: Report | None = None) -> Iterator[tuple[str, str]]:
    """The pairs of a reader. A bad line (not UTF-8, an empty side, …) raises an error, or is skipped and counted.

    Files of different lengths always raise an error.
    """
    yield from sift(reader.rows(), bad, Report(reader.name) if report is None else report)


def sift(rows: Iterable[Item | Bad], bad: Policy, report: Report) -> Iterator[Item]:
    """The good rows; a bad one raises an error, or is counted and shown in the report."""
    if bad not in ("raise", "skip"):
        raise ValueError(f"bad: expected 'raise' or 'skip', got {bad!r}")
    for row in rows:
        report.read += 1
        if not isinstance(row, Bad):
            report.kept += 1
            yield row
            continue
        if bad == "raise":
            raise ValueError(
                f'{row}; correct it, or skip bad lines: bad="skip", on the command line --set data.bad=skip'
            )
        report.bad[row.kind] += 1
        if len(report.shown) < SHOWN:
            report.shown.append(str(row))


def texts(readers: Iterable[Reader], *, bad: Policy = "raise") -> Iterator[str]:
    """All lines of both sides, to learn a vocabulary from."""
    for reader in readers:
        for pair in read(reader, bad=bad):
            yield from pair


def numbered_lines(path: PathLike) -> Iterator[tuple[str, str | Bad]]:
    """The lines of a file, each with its place."""
    for number, line in enumerate(file_lines(path), 1):
        where = f"{path}:{number}"
        yield where, _decode(line, where)


def parse_object(line: str, where: str) -> dict[str, object] | Bad:
    """The JSON object of a line."""
    try:
        entry = parse_json(line)
    except ValueError as error:
        return Bad(where, "not JSON", str(error))
    return entry if isinstance(entry, dict) else Bad(where, "not a JSON object", f"got a {type(entry).__name__}")


def _decode(line: bytes, where: str) -> str | Bad:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        return Bad(where, "not UTF-8", f"byte 0x{line[error.start]:02x} at {error.start}")


def _pair(source: str | Bad, target: str | Bad, source_where: str, target_where: str) -> PairRow:
    assert isinstance(source, str) and isinstance(target, str)
    for text, where, side in ((source, source_where, "source"), (target, target_where, "target")):
        if not text.strip():
            return Bad(where, "empty side", side)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            return Bad(where, "not Unicode text", f"a lone surrogate at character {error.start}")
    return source, target
