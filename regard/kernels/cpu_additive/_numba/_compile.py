"""How the loops are compiled, and when what is cached of them on disk is out of date."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import njit

FAST = {"contract", "nsz", "reassoc", "arcp"}
STAMP = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))).digest()


def loop(fastmath: set[str] | bool = False) -> Callable[[Any], Any]:
    """Compile a function once for this CPU and keep it on disk until a file of this folder changes.

    A compiled function holds those it calls, and they may stand in other files, where numba does not look for changes:
    it compares a stamp of the function's own file. So the stamp is made of all of them.
    """

    def compiled(function: Any) -> Any:
        dispatcher = njit(fastmath=fastmath, nogil=True, cache=True, error_model="numpy")(function)
        index = getattr(getattr(dispatcher, "_cache", None), "_cache_file", None)
        if index is not None:  # not where numba is told to compile nothing
            index._source_stamp = STAMP
        return dispatcher

    return compiled
