"""Atomic writes of files.

A file is written under a temporary name, synced to disk and then renamed. A process killed at any moment leaves the old
file or the new one.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


class Damaged(ValueError):
    """A file that was truncated or changed, or is of another kind."""


def write_whole(path: Path, data: bytes) -> None:
    """Write a file atomically."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(part, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        raise OSError(error.errno, f"could not be written: {error.strerror}", str(path)) from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
