"""The number of PyTorch's threads: limited by the work, and by the processors available to this process.

PyTorch's threads synchronise after every operation and spin while they wait. A decoding step is a hundred small
operations; with more threads than the work needs or the processors allow, most of its time is waiting.

Nothing here imports PyTorch before it is used.
"""

from __future__ import annotations

import math
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

WORTH = 2**28  # multiply-adds of a step per thread
SPINS = "1000"  # spins before a thread sleeps: some microseconds; libgomp's default of 300,000 takes milliseconds

_lock = threading.Lock()
_inside = 0  # number of calls now inside `threads`, over all Python threads ...
_usual = 1  # ... and PyTorch's number of threads before the first of them


@contextmanager
def threads(work: int) -> Iterator[None]:
    """A context in which PyTorch uses one thread per ``WORTH`` multiply-adds of a step of ``work`` multiply-adds.

    Never more than :func:`torch.set_num_threads` allows; that number is restored afterwards. Do not nest it.
    """
    import torch

    global _inside, _usual
    with _lock:
        if not _inside:  # while another call is inside, the current number is its number, not the usual one
            _usual = torch.get_num_threads()
        _inside += 1
        usual = _usual
    try:
        torch.set_num_threads(max(1, min(usual, usable(), work // WORTH)))
        yield
    finally:
        torch.set_num_threads(usual)
        with _lock:
            _inside -= 1


def usable(root: Path = Path("/")) -> int:
    """The processors this process may use: those of its affinity mask, or its container's quota if that is less."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(bound, quota(root))))


def quota(root: Path = Path("/")) -> float:
    """The processors that Linux control groups grant, as CPU time per wall time; infinite without a limit."""
    try:
        groups = [line.split(":", 2) for line in (root / "proc/self/cgroup").read_text().splitlines()]
    except (OSError, ValueError):
        return math.inf
    top, found = root / "sys/fs/cgroup", [math.inf]
    for _, controllers, path in (group for group in groups if len(group) == 3):
        if controllers and "cpu" not in controllers.split(","):
            continue
        place = top / "cpu" if controllers else top  # version 1 has a tree for each controller
        # Inside a container the path may be the host's: then only the top folder exists.
        folders = [place, *(place.joinpath(*parts) for parts in _prefixes(Path(path).parts[1:]))]
        found += [_quota_of(folder) for folder in folders]
    return min(found)


def _prefixes(parts: tuple[str, ...]) -> list[tuple[str, ...]]:
    return [parts[: n + 1] for n in range(len(parts))]


def _quota_of(folder: Path) -> float:
    """The quota of one group: "max 100000", or microseconds per period in microseconds."""
    try:
        if (folder / "cpu.max").exists():
            time, period = (folder / "cpu.max").read_text().split()
        else:
            time, period = ((folder / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
        return int(time) / int(period) if time != "max" and int(time) > 0 else math.inf
    except (OSError, ValueError, ZeroDivisionError):
        return math.inf


def limit() -> None:
    """Set OpenMP's variables for a process of our own, before PyTorch is imported.

    PyTorch ignores a container's quota, so it is set here. Threads must not spin for long: if another process takes the
    processor of one of them, the others would spin after each operation until it returns.
    """
    if quota() < math.inf:
        os.environ.setdefault("OMP_NUM_THREADS", str(usable()))
    if not os.environ.keys() & {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}:
        os.environ.update(OMP_WAIT_POLICY="PASSIVE", GOMP_SPINCOUNT=SPINS)


def _after_fork() -> None:
    """Limit a forked child to one thread: it has none of PyTorch's threads and would wait for them forever."""
    global _lock, _inside
    _lock, _inside = threading.Lock(), 0
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "set_num_threads"):
        torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
