"""Compilation of the loops, and invalidation of their cache on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import njit

FAST = {"contract", "nsz", "reassoc", "arcp"}
STAMP = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))).digest()


def loop(fastmath: set[str] | bool = False) -> Callable[[Any], Any]:
    """Compile a function once for this CPU and cache it on disk until a file of this folder changes.

    A decorate function includes those it calls, also from other files. numba only compares a stamp of the function's
    own file; so the stamp is a hash of all files.
    """

    def decorate(function: Any) -> Any:
        dispatcher = njit(fastmath=fastmath, nogil=True, cache=True, error_model="numpy")(function)
        index = getattr(getattr(dispatcher, "_cache", None), "_cache_file", None)
        if index is not None:  # None if numba's compilation is disabled
            index._source_stamp = STAMP
        return dispatcher

    return decorate
