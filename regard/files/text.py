"""Files of text as UTF-8: gzip is unpacked, UTF-16 decoded, a byte order mark left out. What a file is, its first
bytes tell, not its name.

A line ends at "\\n" (or "\\r\\n") and nowhere else.
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
LINE = 1 << 26  # bytes of a line at most: a book has less
WHOLE = 1 << 29  # bytes of what is read at once
HEAD = 64  # bytes that tell whether a text without a byte order mark is UTF-16


def lines(path: PathLike, stream: BinaryIO | None = None) -> Iterator[bytes]:
    """The lines of a file, without their ends; those of a ``stream`` if there is one, ``path`` then being its name."""
    number = 0
    with _opened(path, stream) as text:
        try:
            for number, line in enumerate(iter(partial(_utf8(text).readline, LINE + 1), b""), 1):
                if len(line) > LINE:
                    raise ValueError(f"{path}:{number}: a line of more than {LINE:,} bytes: is it a file of text?")
                start = 3 if number == 1 and line.startswith(codecs.BOM_UTF8) else 0
                yield line[start:].removesuffix(b"\n").removesuffix(b"\r")
        except DAMAGED as error:
            raise ValueError(f"{path}:{number + 1}: the gzip file is cut short or damaged: {error}") from error


def whole(path: PathLike, stream: BinaryIO | None = None) -> bytes:
    """All of a file, line ends as they are."""
    with _opened(path, stream) as text:
        try:
            return _all(_utf8(text), path).removeprefix(codecs.BOM_UTF8)
        except DAMAGED as error:
            raise ValueError(f"{path}: the gzip file is cut short or damaged: {error}") from error


def _all(stream: io.BufferedReader, path: PathLike) -> bytes:
    """What unpacks to more than a computer may hold is told when it is too much, not when memory has run out."""
    parts, size = [], 0
    while part := stream.read(1 << 20):
        parts.append(part)
        if (size := size + len(part)) > WHOLE:
            raise ValueError(f"{path}: unpacked it has more than {WHOLE:,} bytes: give it in parts")
    return b"".join(parts)


@contextlib.contextmanager
def _opened(path: PathLike, stream: BinaryIO | None) -> Iterator[io.BufferedReader]:
    if stream is not None:  # whose it is, closes it
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
    return stream if encoding is None else io.BufferedReader(_Recoded(stream, encoding))


def _utf16(head: bytes) -> str | None:
    """By the byte order mark; without one, by the zeros that every second byte of most texts is.

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


class _Recoded(io.RawIOBase):
    """A stream of UTF-16 as one of UTF-8. What is no character, half a pair or half a unit at the end, is not UTF-8
    either: so the line that it is in is told as any other bad line."""

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
