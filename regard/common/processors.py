"""How many threads PyTorch computes on: as many as the work is worth, and as there are processors for this process.

Its threads wait for each other after every operation, and spin meanwhile. A step of decoding is a hundred small
operations; spread over more threads than it is worth, or than there are processors left, it mostly waits.

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
from typing import Any

WORTH = 2**28  # multiply-adds of a step that are worth a thread
SPINS = "1000"  # how often a thread looks before it sleeps: some microseconds; libgomp's own 300,000 are milliseconds

_lock = threading.Lock()
_inside = 0  # how many calls are within `threads` now, in all threads ...
_usual = 1  # ... and PyTorch's number of threads before the first of them


@contextmanager
def threads(work: int) -> Iterator[None]:
    """Within it PyTorch computes steps of so many multiply-adds on the threads that they are worth, and no more.

    Never more than :func:`torch.set_num_threads` was told, which holds again afterwards. One is not within another.
    """
    import torch

    global _inside, _usual
    with _lock:
        if not _inside:  # a thread that begins while others are within would take their number for the usual one
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
    """The processors that this process may use: those it is bound to, or a container's share if that is less."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(bound, quota(root))))


def quota(root: Path = Path("/")) -> float:
    """The processors' time that Linux control groups grant, per time that passes; infinite without a limit."""
    try:
        groups = [line.split(":", 2) for line in (root / "proc/self/cgroup").read_text().splitlines()]
    except (OSError, ValueError):
        return math.inf
    top, found = root / "sys/fs/cgroup", [math.inf]
    for _, controllers, path in (group for group in groups if len(group) == 3):
        if controllers and "cpu" not in controllers.split(","):
            continue
        place = top / "cpu" if controllers else top  # version 1 has a tree for each controller
        # Within a container the path may be one of the world outside: then only the top is there.
        folders = [place, *(place.joinpath(*parts) for parts in _beginnings(Path(path).parts[1:]))]
        found += [_granted(folder) for folder in folders]
    return min(found)


def _beginnings(parts: tuple[str, ...]) -> list[tuple[str, ...]]:
    return [parts[: n + 1] for n in range(len(parts))]


def _granted(folder: Path) -> float:
    """What one group grants: "max 100000", or microseconds in a period of so many."""
    try:
        if (folder / "cpu.max").exists():
            time, period = (folder / "cpu.max").read_text().split()
        else:
            time, period = ((folder / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
        return int(time) / int(period) if time != "max" and int(time) > 0 else math.inf
    except (OSError, ValueError, ZeroDivisionError):
        return math.inf


def limit() -> None:
    """For a process of our own, before PyTorch is imported: it does not look at a container's share itself.

    And its threads are not to spin for long. Where another process has the processor of one of them, the others would
    spin until it comes back, after each operation anew.
    """
    if quota() < math.inf:
        os.environ.setdefault("OMP_NUM_THREADS", str(usable()))
    if not os.environ.keys() & {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}:
        os.environ.update(OMP_WAIT_POLICY="PASSIVE", GOMP_SPINCOUNT=SPINS)


def _forked() -> None:
    """A child of a fork has none of PyTorch's threads, and waits for them forever if it is not told so."""
    global _lock, _inside
    _lock, _inside = threading.Lock(), 0
    torch: Any = sys.modules.get("torch")
    if hasattr(torch, "set_num_threads"):
        torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
