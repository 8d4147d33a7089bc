"""Lines in and lines out, for the command line: from an argument, files or a stream; to a stream, or to a file that
is written whole or not at all.

A line ends at "\\n" (or "\\r\\n") and nowhere else. A file may be gzipped or UTF-16
(:mod:`regard.files.text`); "-" is the
standard input. What is written to a name that ends in .gz is gzipped.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, NamedTuple, Protocol, TypeVar, cast

from regard.files.text import PathLike
from regard.files.text import lines as file_lines
from regard.files.text import whole as read_whole

T = TypeVar("T")


class Input(Protocol):
    """A piece of input: its origin, and its problem, if there is one."""

    @property
    def where(self) -> str: ...
    @property
    def problem(self) -> str: ...
    @property
    def content(self) -> object: ...


class Line(NamedTuple):
    """A line and where it is from; with a problem it has no text."""

    where: str
    text: str
    problem: str = ""

    @property
    def content(self) -> str:
        return self.text


class LinePair(NamedTuple):
    """Two lines that belong together."""

    where: str
    source: str
    target: str
    problem: str = ""

    @property
    def content(self) -> tuple[str, str]:
        return self.source, self.target


def lines_of(path: PathLike) -> Iterator[Line]:
    """The lines of a file, one at a time; those that are not UTF-8 have a problem."""
    for number, raw in enumerate(file_lines(_name(path), _stdin(path)), 1):
        yield _decode(raw, f"{_name(path)}:{number}")


def document_of(path: PathLike) -> Line:
    """All of a file as one text, its lines ending in "\\n"; what is not UTF-8 has a problem."""
    return _decode(b"\n".join(file_lines(_name(path), _stdin(path))), _name(path))


def text_under_key(line: Line, key: str) -> Line:
    """A line of JSON as the text, or the texts, under a key."""
    from regard.data.documents import texts_of
    from regard.data.readers import Bad, parse_object

    if line.problem:
        return line
    found = parse_object(line.text, line.where)
    texts = found if isinstance(found, Bad) else texts_of(found, key, line.where)
    if isinstance(texts, Bad):
        return line._replace(text="", problem=f"{texts.kind} ({texts.detail})")
    return line._replace(text="\n".join(texts))


def text_of(path: PathLike) -> list[str]:
    """All lines of a file, which must be UTF-8."""
    lines = list(lines_of(path))
    for line in lines:
        if line.problem:
            raise ValueError(f"{line.where}: {line.problem}")
    return [line.text for line in lines]


def whole_text(path: PathLike) -> str:
    """All of a file as one text, line ends as they are. What is not UTF-8 text is refused."""
    raw = read_whole(_name(path), _stdin(path))
    if (at := raw.find(0)) >= 0:
        raise ValueError(f"{_name(path)}: expected a text, got a binary file (a zero byte at {at:,})")
    line = _decode(raw, _name(path))
    if line.problem:
        raise ValueError(f"{line.where}: expected a text, but it is {line.problem}")
    if not line.text.strip():
        raise ValueError(f"{line.where}: expected a text, but it is empty")
    return line.text


def pairs_of(source: PathLike, target: PathLike | None = None) -> list[LinePair]:
    """Pairs of lines: of two files of the same length, or of one, with a tab or " ||| " between the two."""
    if target is None:
        return [_cut(line) for line in lines_of(source)]
    return pair_lines(list(lines_of(source)), list(lines_of(target)), (str(source), str(target)))


def pair_lines(sources: Sequence[Line], targets: Sequence[Line], names: tuple[str, str]) -> list[LinePair]:
    """Line i of one with line i of the other."""
    if len(sources) != len(targets):
        raise ValueError(
            f"{names[0]} has {len(sources):,} lines, {names[1]} {len(targets):,}: expected the same number; "
            "line i of one belongs to line i of the other"
        )
    both = zip(sources, targets, strict=True)
    return [LinePair((s if s.problem else t).where, s.text, t.text, s.problem or t.problem) for s, t in both]


def _cut(line: Line) -> LinePair:
    cells = line.text.split("\t") if "\t" in line.text else line.text.split("|||")
    if line.problem or len(cells) != 2:
        expected = f"expected a source and a target with a tab or ||| between them, got {len(cells)} parts"
        return LinePair(line.where, "", "", line.problem or expected)
    return LinePair(line.where, cells[0].strip(), cells[1].strip())


def windows(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Lists of ``size`` items, the last one shorter."""
    items = iter(items)
    while window := list(islice(items, size)):
        yield window


def _name(path: PathLike) -> str:
    return "standard input" if str(path) == "-" else str(path)


def _decode(raw: bytes, where: str) -> Line:
    try:
        return Line(where, raw.decode())
    except UnicodeDecodeError as error:
        return Line(where, "", f"not UTF-8 (byte 0x{raw[error.start]:02x} at {error.start:,})")


def _stdin(path: PathLike) -> BinaryIO | None:
    if str(path) != "-":
        return None
    if sys.stdin is None:
        raise OSError("standard input: it is closed; give the text as an argument, or a file")
    return sys.stdin.buffer


class Writer:
    """Writes lines: to the standard output as they come, or to a file that replaces an older one at the end, whole.

    It is opened before the work, so that a path that cannot be written is an error immediately. If the work fails, or
    SIGTERM ends it, the old file stays and nothing else.
    """

    def __init__(self, path: PathLike | None = None) -> None:
        self.path = None if path is None or str(path) == "-" else Path(path).resolve()
        self._part: Path | None = None
        self._signals = contextlib.ExitStack()
        if self.path is None and sys.stdout is None:
            raise OSError("standard output: it is closed; name a file with --output")
        self._stream: BinaryIO = sys.stdout.buffer if self.path is None else None  # type: ignore[assignment]
        self._file: BinaryIO = self._stream  # beneath it, where the stream packs

    def __enter__(self) -> Writer:
        if self.path is None:
            return self
        if self.path.is_dir():
            raise IsADirectoryError(f"{self.path}: expected a file to write to, got a folder")
        special = self.path.exists() and not self.path.is_file()  # a device or a pipe: nothing to replace
        self._part = None if special else self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            if self._part and self.path.exists():
                open(self.path, "ab").close()  # may it be written to?
            self._signals.enter_context(_exit_on_sigterm())
            self._file = open(self._part or self.path, "wb")
        except OSError as error:
            self._signals.close()
            raise OSError(f"{self.path}: cannot be written: {error.strerror}") from error
        self._stream = self._file
        if self.path.suffix == ".gz":  # without name and time: the same lines are the same bytes
            self._stream = cast(BinaryIO, gzip.GzipFile("", "wb", fileobj=self._file, mtime=0))
        return self

    def write(self, lines: Iterable[str]) -> None:
        """Lines, each made to be one: a line end inside becomes a space."""
        whole = [" ".join(line.replace("\r", "\n").split("\n")) for line in lines]
        with self._name_errors():
            self._stream.write("".join(f"{line}\n" for line in whole).encode(errors="replace"))

    def flush(self) -> None:
        """Flush, so that a waiting reader sees the lines."""
        with self._name_errors():
            self._stream.flush()

    @contextlib.contextmanager
    def _name_errors(self) -> Iterator[None]:
        """An error of writing says where, but for a reader that has gone: that is none of ours."""
        try:
            yield
        except BrokenPipeError:
            raise
        except OSError as error:
            where = str(self.path or "standard output")
            raise OSError(error.errno, f"could not be written: {error.strerror}", where) from error

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.path is None:
            if kind is None:
                self.flush()
            return
        try:
            if kind is None:
                with self._name_errors():
                    self._end()
        finally:
            with contextlib.suppress(OSError):
                self._stream.close()
                self._file.close()
            if self._part:
                self._part.unlink(missing_ok=True)
            self._signals.close()

    def _end(self) -> None:
        if self._stream is not self._file:
            self._stream.close()  # what a gzip file ends with
        self._file.flush()
        if self._part and self.path:
            os.fsync(self._file.fileno())
            os.replace(self._part, self.path)


@contextlib.contextmanager
def _exit_on_sigterm() -> Iterator[None]:
    """SIGTERM, if it has no other handler, ends the program like an error: unfinished files are removed."""

    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
