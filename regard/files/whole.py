"""A file is written whole or not at all.

It is written beside its place, forced to disk and then renamed, so that a process killed at any moment leaves the old
file or the new one.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


class Damaged(ValueError):
    """A file that is not what was written: cut short, changed, or of another kind."""


def write_whole(path: Path, data: bytes) -> None:
    """Writes a file so that at any moment the old or the new one is there, whole."""
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
