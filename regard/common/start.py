"""A quick start of commands: while modules are imported and weights are read, nothing is garbage; none is looked for.

Importing torch makes some hundred thousand objects that stay. Python would go through them again and again, and once
more at the end: a fourth of the time that importing it takes.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_own_process = False


def own_process() -> None:
    """Says that this process is a command and nothing else, so that what is there may be set aside for good."""
    global _own_process
    _own_process = True


@contextmanager
def quick_start() -> Iterator[None]:
    """Within it no garbage is collected; after it as before, but for what is there by then in a process of its own."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        set_aside()
        if enabled:
            gc.enable()


def set_aside() -> None:
    """What is there stays to the end, and is not looked through any more."""
    if _own_process:
        gc.freeze()


def quick_exit() -> None:
    """At its end a command leaves everything where it is, unless triton was loaded.

    That has C++ types which count what is left of them and print a page about it; there all is cleared away.
    """
    if "triton" in sys.modules:
        gc.unfreeze()
    else:
        set_aside()
