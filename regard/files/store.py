"""Files of tensors and settings, written whole or not at all: safetensors with a checksum, and TOML.

A file is written beside its place, forced to disk and then renamed, so that a process killed at any moment leaves the
old file or the new one. Nothing is ever unpickled.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from regard.files.bounds import TOML_BYTES, bytes_of, parsed_json, toml
from regard.files.whole import write_whole

PathLike = str | os.PathLike[str]
Shapes = Mapping[str, tuple[int, ...]]
BUNDLED = Path(__file__).parents[1] / "bundled"
DEFAULT = "en-fr-small"


class Damaged(ValueError):
    """A file that is not what was written: cut short, changed, or of another kind."""


# --- tensors ---


def write_tensors(path: PathLike, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Tensors, and a table of plain values beside them."""
    plain = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    # one entry: of several, safetensors would write the order by chance, and equal files would differ
    metadata = {"regard": json.dumps({"crc32": _checksum(plain), "about": about})}
    write_whole(Path(path), save(plain, metadata))


def read_tensors(
    path: PathLike, device: str | torch.device = "cpu", check: Callable[[Shapes], None] | None = None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What ``write_tensors`` wrote; ``check`` is given the shapes before any tensor is read."""
    try:
        with safe_open(str(path), "pt") as file:
            metadata, names = file.metadata() or {}, file.keys()
            if check is not None:
                check({name: tuple(file.get_slice(name).get_shape()) for name in names})
            tensors = {name: file.get_tensor(name) for name in names}
    except FileNotFoundError:
        raise
    except (SafetensorError, OSError) as error:
        raise Damaged(f"{path}: cut short, or not a safetensors file ({error})") from error
    try:
        own = parsed_json(metadata["regard"])
        crc32, about = own["crc32"], dict(own["about"])
    except (KeyError, TypeError, ValueError):
        raise Damaged(f"{path}: a safetensors file, but not one of regard's") from None
    if _checksum(tensors) != crc32:
        raise Damaged(f"{path}: its contents have changed since it was written (the checksum differs)")
    return {name: t.to(device) for name, t in tensors.items()}, about


def _checksum(tensors: Mapping[str, Tensor]) -> int:
    crc = 0
    for name in sorted(tensors):
        flat = tensors[name].contiguous().reshape(-1).view(torch.uint8)
        crc = zlib.crc32(flat.numpy(), zlib.crc32(name.encode(), crc))  # type: ignore[arg-type]
    return crc


# --- TOML ---


def read_toml(path: PathLike) -> dict[str, Any]:
    """A TOML file as a table."""
    data = bytes_of(path, TOML_BYTES)
    try:
        return toml(data.decode())
    except ValueError as error:  # also what is not UTF-8
        raise Damaged(f"{path}: not a TOML file: {error}") from error


def parse_value(text: str) -> Any:
    """A TOML value, as on a command line: what is none is taken as a string.

    >>> parse_value("1e-3"), parse_value("[1, 2]"), parse_value("dot")
    (0.001, [1, 2], 'dot')
    """
    try:
        table = toml(f"x = {text}")
    except ValueError:
        return text
    return table["x"] if len(table) == 1 else text


def write_toml(path: PathLike, table: Mapping[str, Any]) -> None:
    """A table of plain values and of tables of them; what is None is left out, since TOML has no null."""
    write_whole(Path(path), to_toml(table).encode())


def to_toml(table: Mapping[str, Any]) -> str:
    """
    >>> print(to_toml({"name": "x", "model": {"dim": 8, "score": [[1, "dot"], [1, {"kind": "general"}]]}}), end="")
    name = "x"
    <BLANKLINE>
    [model]
    dim = 8
    score = [[1, "dot"], [1, {kind = "general"}]]
    """
    return "\n".join(_sections("", table)).lstrip("\n") + "\n"


def _sections(name: str, table: Mapping[str, Any]) -> list[str]:
    lines = [f"\n[{name}]"] if name else []
    inner = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    lines += [f"{_key(key)} = {_value(v)}" for key, v in table.items() if v is not None and key not in inner]
    for key, value in inner.items():
        lines += _sections(f"{name}.{_key(key)}" if name else _key(key), value)
    return lines


def _key(key: str) -> str:
    plain = key.replace("_", "").replace("-", "")
    return key if plain.isascii() and plain.isalnum() else json.dumps(key)


def _value(value: Any) -> str:
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


# --- model folders ---


def find(name: PathLike) -> Path:
    """The folder of a model: a path, or the name of a bundled one."""
    path = Path(name)
    if path.is_dir():
        return path
    if path.exists():
        raise ValueError(f"{path}: expected a model folder, as `regard train` leaves it, got a file")
    bundled = sorted(p.name for p in BUNDLED.iterdir() if p.is_dir()) if BUNDLED.is_dir() else []
    if str(name) in bundled:
        return BUNDLED / str(name)
    known = f"bundled models: {', '.join(bundled)}" if bundled else "no model is bundled with this version"
    raise FileNotFoundError(f"{name}: there is no such model folder ({known}); train one with `regard train`")
