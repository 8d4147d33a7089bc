"""Read untrusted files within bounds: the limits on time and memory are checked before they are used.

A small TOML, JSON or zip file can be expensive: a key of 200,000 parts, deeply nested lists, zeros that unpack to
gigabytes. All of these raise ValueError here.
"""

from __future__ import annotations

import io
import json
import os
import re
import sys
import zipfile
from collections.abc import Mapping
from typing import Any

TOML_BYTES = 1 << 20
DEPTH = 32  # the most nested tables and lists, and the most parts of a key

# strings and comments, also unterminated ones, so that the scan never backtracks
_STRINGS = re.compile(
    r'"""(?:\\.|[^\\])*?(?:"""|\Z)' r"|'''.*?(?:'''|\Z)" r'|"(?:\\.|[^"\\\n])*"?' r"|'[^'\n]*'?" r"|#[^\n]*", re.DOTALL
)
_PART = re.compile(r"[\w\- \t]*")  # of a dotted key


# --- text ---


def toml(text: str) -> dict[str, Any]:
    """Parse TOML. Too deep nesting is refused before parsing.

    >>> toml("a.b = [1, {c = '[[[['}]")
    {'a': {'b': [1, {'c': '[[[['}]}}
    >>> toml("a" + ".a" * 200_000 + " = 1")
    Traceback (most recent call last):
    ValueError: a key of more than 32 parts
    """
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    bare = _STRINGS.sub("_", text)
    if _depth(bare) > DEPTH:
        raise ValueError(f"lists or tables nested more than {DEPTH} deep")
    if _parts(bare) > DEPTH:
        raise ValueError(f"a key of more than {DEPTH} parts")
    table = tomllib.loads(text)
    _refuse_long(table, "")
    return table


def _depth(text: str) -> int:
    """The most brackets open at once."""
    deepest = depth = 0
    for bracket in re.findall(r"[\[\]{}]", text):
        depth += 1 if bracket in "[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _parts(text: str) -> int:
    """The number of parts of the longest dotted key."""
    longest = run = 0
    for part in text.split(".")[1:-1]:
        run = run + 1 if _PART.fullmatch(part) else 0
        longest = max(longest, run)
    return longest + 2


def _refuse_long(value: object, where: str) -> None:
    """TOML's integers have 64 bits; Python's parser accepts any size."""
    inner = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        _refuse_long(each, f"{where}.{key}" if where else str(key))
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError(f"{where}: a whole number of more than 64 bits")


def parse_json(text: str | bytes) -> Any:
    """Parse JSON; nesting beyond Python's recursion limit raises ValueError too.

    >>> parse_json("[" * 100_000)
    Traceback (most recent call last):
    ValueError: nested too deeply
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


# --- files ---


def bytes_of(path: str | os.PathLike[str], most: int) -> bytes:
    """The content of a file of at most ``most`` bytes."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(size or most + 1) if size <= most else b""  # a device or a pipe has no size
    if max(size, len(data)) > most:
        raise ValueError(f"{path}: more than {most:,} bytes")
    return data


def members(archive: bytes, most: int) -> dict[str, bytes]:
    """All files of a zip archive that unpacks to at most ``most`` bytes. The headers' sizes are enforced.

    >>> members(b"PK", 100)
    Traceback (most recent call last):
    zipfile.BadZipFile: File is not a zip file
    """
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        every = opened.infolist()
        if (size := sum(info.file_size for info in every)) > most:
            raise ValueError(f"it unpacks to {size:,} bytes; the maximum is {most:,}")
        if any(info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for info in every):
            raise ValueError("packed in a way other than deflate")
        found = {}
        for info in every:
            with opened.open(info) as file:
                found[info.filename] = file.read(info.file_size)  # without a size it would unpack everything
        return found
