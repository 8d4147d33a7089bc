"""TOML files of settings, read within bounds and written atomically."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from regard.files.bounds import TOML_BYTES, bytes_of, toml
from regard.files.text import PathLike
from regard.files.whole import Damaged, write_whole


def read_toml(path: PathLike) -> dict[str, Any]:
    """Read a TOML file as a table."""
    data = bytes_of(path, TOML_BYTES)
    try:
        return toml(data.decode())
    except ValueError as error:  # also invalid UTF-8
        raise Damaged(f"{path}: not a TOML file: {error}") from error


def parse_value(text: str) -> Any:
    """A TOML value from a command line; invalid TOML is taken as a string.

    >>> parse_value("1e-3"), parse_value("[1, 2]"), parse_value("dot")
    (0.001, [1, 2], 'dot')
    """
    try:
        table = toml(f"x = {text}")
    except ValueError:
        return text
    return table["x"] if len(table) == 1 else text


def write_toml(path: PathLike, table: Mapping[str, object]) -> None:
    """Write a table of plain values and nested tables; None is omitted, since TOML has no null."""
    write_whole(Path(path), to_toml(table).encode())


def to_toml(table: Mapping[str, object]) -> str:
    """
    >>> print(to_toml({"name": "x", "model": {"dim": 8, "score": [[1, "dot"], [1, {"kind": "general"}]]}}), end="")
    name = "x"
    <BLANKLINE>
    [model]
    dim = 8
    score = [[1, "dot"], [1, {kind = "general"}]]
    """
    return "\n".join(_sections("", table)).lstrip("\n") + "\n"


def _sections(name: str, table: Mapping[str, object]) -> list[str]:
    lines = [f"\n[{name}]"] if name else []
    inner = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    lines += [f"{_key(key)} = {_value(v)}" for key, v in table.items() if v is not None and key not in inner]
    for key, value in inner.items():
        lines += _sections(f"{name}.{_key(key)}" if name else _key(key), value)
    return lines


def _key(key: str) -> str:
    plain = key.replace("_", "").replace("-", "")
    return key if plain.isascii() and plain.isalnum() else json.dumps(key)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (str, os.PathLike)):
        return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items() if v is not None) + "}"
    if isinstance(value, Sequence):
        return "[" + ", ".join(map(_value, value)) + "]"
    raise TypeError(f"TOML has no {type(value).__name__}: {value!r}")
