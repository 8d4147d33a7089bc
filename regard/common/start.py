"""Quick start of commands: no garbage collection while modules are imported and weights are read.

Importing torch creates some hundred thousand objects that live to the end. Python's collector would traverse them
repeatedly, and once more at exit: a quarter of the time of the import.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_own_process = False


def own_process() -> None:
    """Declare that this process only runs a command, so that ``set_aside`` may freeze its objects for good."""
    global _own_process
    _own_process = True


@contextmanager
def quick_start() -> Iterator[None]:
    """A context without garbage collection. Afterwards, a command's objects are set aside."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        set_aside()
        if enabled:
            gc.enable()


def set_aside() -> None:
    """In a command's process, exclude all present objects from garbage collection."""
    if _own_process:
        gc.freeze()


def quick_exit() -> None:
    """Exit without collecting garbage, unless triton was loaded.

    Triton's C++ types count their remaining instances and print a page about them; so they are collected.
    """
    if "triton" in sys.modules:
        gc.unfreeze()
    else:
        set_aside()
