"""Loops that release the GIL, on as many threads as PyTorch uses.

They run on PyTorch's own OpenMP threads if these are GNU's (its Linux wheels): after an operation those spin for
milliseconds, so threads of our own would compete with them for the cores. Elsewhere, and in forked children, where
OpenMP does not work, we use a thread pool.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch

LITTLE = 2**18  # work below which one thread is faster
_Task = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def spread(count: int, work: int, f: Callable[[int, int], None]) -> None:
    """Run f(i, j) for ranges that cover 0 … count, on as many threads as PyTorch uses."""
    threads = min(torch.get_num_threads(), count)
    if threads <= 1 or work < LITTLE:
        f(0, count)
        return
    pieces = min(count, 8 * threads)
    remaining = iter(list(pairwise(count * n // pieces for n in range(pieces + 1))))
    lock = threading.Lock()
    failures: list[BaseException] = []

    def worker(_: Any = None) -> None:
        while not failures:
            with lock:
                piece = next(remaining, None)
            if piece is None:
                return
            try:
                f(*piece)
            except BaseException as failure:  # it must not propagate into OpenMP's thread
                failures.append(failure)

    parallel = _openmp(os.getpid())
    if parallel is not None:
        parallel(_Task(worker), None, threads, 0)
    else:
        others = [_pool.get(threads - 1).submit(worker) for _ in range(threads - 1)]
        worker()
        for other in others:
            other.result()
    if failures:
        raise failures[0]


_STARTED = os.getpid()


@lru_cache(2)
def _openmp(process: int) -> Any:
    """``GOMP_parallel`` of the GNU OpenMP library that PyTorch has loaded, or None."""
    if process != _STARTED:
        return None
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            paths = {line.split(maxsplit=5)[-1].strip() for line in maps if "libgomp" in line}
        (path,) = paths  # with two libraries, PyTorch's is unknown
        parallel = ctypes.CDLL(path).GOMP_parallel
    except (OSError, ValueError, AttributeError):
        return None
    parallel.argtypes, parallel.restype = (_Task, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint), None
    return parallel


@dataclass
class _Pool:
    """The thread pool of a process; a forked child creates its own."""

    pid: int = 0
    size: int = 0
    executor: ThreadPoolExecutor | None = None
    lock: Any = None

    def get(self, size: int) -> ThreadPoolExecutor:
        if self.pid != os.getpid():
            self.pid, self.executor, self.lock = os.getpid(), None, threading.Lock()
        with self.lock:
            if self.executor is None or self.size < size:
                self.size, self.executor = size, ThreadPoolExecutor(size, thread_name_prefix="regard")
            return self.executor


_pool = _Pool()
