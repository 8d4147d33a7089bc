"""Files of tensors: safetensors with a checksum, written atomically. Nothing is ever unpickled."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from regard.files.bounds import parse_json
from regard.files.text import PathLike
from regard.files.whole import Damaged, write_whole

Shapes = Mapping[str, tuple[int, ...]]


def write_tensors(path: PathLike, tensors: Mapping[str, Tensor], about: Mapping[str, object]) -> None:
    """Write tensors, with a table of plain values as metadata."""
    plain = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    # one entry: safetensors writes several in random order, and equal files would differ
    metadata = {"regard": json.dumps({"crc32": _checksum(plain), "about": about})}
    write_whole(Path(path), save(plain, metadata))


def read_tensors(
    path: PathLike, device: str | torch.device = "cpu", check: Callable[[Shapes], None] | None = None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what ``write_tensors`` wrote; ``check`` receives the shapes before any tensor is read."""
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
        own = parse_json(metadata["regard"])
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
