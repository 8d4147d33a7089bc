"""Read text files as UTF-8: gzip is unpacked, UTF-16 is converted, a byte order mark is dropped.

The first bytes of a file decide its format, not its name. A line ends only at "\\n" or "\\r\\n".
"""

from __future__ import annotations

import codecs
import contextlib
import gzip
import io
import os
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO, cast

PathLike = str | os.PathLike[str]
DAMAGED = (EOFError, gzip.BadGzipFile, zlib.error)
LINE = 1 << 26  # the most bytes of a line: a book has fewer
WHOLE = 1 << 29  # the most bytes of a file read at once
HEAD = 64  # bytes that tell whether a text without a byte order mark is UTF-16


def lines(path: PathLike, stream: BinaryIO | None = None) -> Iterator[bytes]:
    """The lines of a file, without line ends; with a ``stream``, its lines, and ``path`` is its name."""
    number = 0
    with _open(path, stream) as text:
        try:
            for number, line in enumerate(iter(partial(_utf8(text).readline, LINE + 1), b""), 1):
                if len(line) > LINE:
                    raise ValueError(f"{path}:{number}: a line of more than {LINE:,} bytes: is it a file of text?")
                start = 3 if number == 1 and line.startswith(codecs.BOM_UTF8) else 0
                yield line[start:].removesuffix(b"\n").removesuffix(b"\r")
        except DAMAGED as error:
            raise ValueError(f"{path}:{number + 1}: the gzip file is cut short or damaged: {error}") from error


def whole(path: PathLike, stream: BinaryIO | None = None) -> bytes:
    """A whole file, line ends unchanged."""
    with _open(path, stream) as text:
        try:
            return _all(_utf8(text), path).removeprefix(codecs.BOM_UTF8)
        except DAMAGED as error:
            raise ValueError(f"{path}: the gzip file is cut short or damaged: {error}") from error


def _all(stream: io.BufferedReader, path: PathLike) -> bytes:
    """Read a stream to its end; stop once it exceeds the limit, before memory runs out."""
    parts, size = [], 0
    while part := stream.read(1 << 20):
        parts.append(part)
        if (size := size + len(part)) > WHOLE:
            raise ValueError(f"{path}: more than {WHOLE:,} bytes when unpacked; split the file")
    return b"".join(parts)


@contextlib.contextmanager
def _open(path: PathLike, stream: BinaryIO | None) -> Iterator[io.BufferedReader]:
    if stream is not None:  # its owner closes it
        yield stream if isinstance(stream, io.BufferedReader) else io.BufferedReader(cast(io.RawIOBase, stream))
        return
    if Path(path).is_dir():
        raise IsADirectoryError(f"{path}: expected a file, got a folder")
    if not Path(path).exists():
        raise FileNotFoundError(f"{path}: there is no such file")
    with open(path, "rb") as file:
        yield file


def _utf8(stream: io.BufferedReader) -> io.BufferedReader:
    if stream.peek(3)[:3] == b"\x1f\x8b\x08":
        stream = io.BufferedReader(cast(io.RawIOBase, gzip.GzipFile(fileobj=stream)))
    encoding = _utf16(stream.peek(HEAD)[:HEAD])
    return stream if encoding is None else io.BufferedReader(_Utf8Stream(stream, encoding))


def _utf16(head: bytes) -> str | None:
    """UTF-16 or None, by the byte order mark, else by zeros in every second byte.

    >>> _utf16("a".encode("utf-16")), _utf16("a cat".encode("utf-16-be")), _utf16(b"a cat"), _utf16(b"\\1\\0" * 9)
    ('utf-16', 'utf-16-be', None, None)
    """
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    zeros = head[0::2].count(0), head[1::2].count(0)
    if min(zeros) or max(zeros) <= len(head) // 4:
        return None
    encoding = "utf-16-be" if zeros[0] else "utf-16-le"
    signs = head.decode(encoding, "ignore")
    return encoding if all(sign >= " " or sign in "\t\r\n" for sign in signs) else None


class _Utf8Stream(io.RawIOBase):
    """A stream of UTF-16 as UTF-8.

    Invalid UTF-16 (half a surrogate pair, half a unit at the end) becomes invalid UTF-8, so that its line is reported
    like any other bad line.
    """

    def __init__(self, stream: io.BufferedReader, encoding: str) -> None:
        self._stream, self._left = stream, b""
        self._decoder = codecs.getincrementaldecoder(encoding)("surrogatepass")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        room = memoryview(cast(bytearray, buffer))
        while not self._left and (some := self._stream.read(1 << 16)):
            self._left = self._decoder.decode(some).encode(errors="surrogatepass")
        if not self._left and self._decoder.getstate()[0]:
            self._decoder.reset()
            self._left = b"\xff"
        part, self._left = self._left[: len(room)], self._left[len(room) :]
        room[: len(part)] = part
        return len(part)
