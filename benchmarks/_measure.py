"""How the benchmarks measure: times in turn, peak memory in a fresh process, exponents, the machine's own ceilings."""

from __future__ import annotations

import importlib.metadata
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
Contenders = dict[str, Callable[[], object]]
SHORT, REPEATS = 50.0, 5  # milliseconds, and how often what takes less is timed in a round

# Peak of a process that first ran something small (what loads once) and then the thing itself.
MEMORY_SCRIPT = """
import sys
sys.path[:0] = {paths!r}
import torch
import _peers

torch.set_num_threads(1)

def peak():  # of the process so far, in bytes; ru_maxrss would count the parent's too
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))

_peers.trained({name!r}, {heads}, 128, {d})()
before = peak()
_peers.trained({name!r}, {heads}, {n}, {d})()
print(peak() - before)
"""


def machine() -> dict[str, object]:
    """What the figures were measured on, and with."""
    packages = {}
    for name in ("torch", "numpy", "numba", "keras", "triton"):
        try:
            packages[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            packages[name] = "not installed"
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "vectors": torch.backends.cpu.get_cpu_capability(),
        **packages,
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
    }


def cpu_name() -> str:
    """As the system calls it: a model name, family and model number."""
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return platform.processor() or platform.machine()
    fields = dict(part.split(":", 1) for part in info.read_text().splitlines() if ":" in part)
    fields = {key.strip(): value.strip() for key, value in fields.items()}
    numbers = f"family {fields.get('cpu family', '?')}, model {fields.get('model', '?')}"
    return f"{fields.get('model name', platform.machine())} ({numbers})"


def medians(contenders: Contenders, rounds: int, budget: float = 20.0) -> dict[str, float]:
    """Median milliseconds of each, run in turn so that a slow moment hits all alike.

    What takes long runs fewer rounds: after ``budget`` seconds no further round begins. What is short runs once before
    it is timed, else it would pay for the caches and sleeping threads that the contender before it left behind, which
    may have written a gigabyte; and then several times, as a shared machine's slow moments are as long as it is.
    """
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for f in contenders.values():
        f()
    short = {name: _milliseconds(f) < SHORT for name, f in contenders.items()}
    began = time.perf_counter()
    for turn in range(rounds):
        if turn and time.perf_counter() - began > budget:
            break
        for name, f in contenders.items():
            if short[name]:
                f()
            times[name] += [_milliseconds(f) for _ in range(REPEATS if short[name] else 1)]
    return {name: statistics.median(t) for name, t in times.items()}


def _milliseconds(f: Callable[[], object]) -> float:
    start = time.perf_counter()
    f()
    return 1e3 * (time.perf_counter() - start)


def exponent(x: Sequence[float], y: Sequence[float]) -> float | None:
    """p of the least-squares line log y = p log x + c; None for fewer than two points."""
    points = [(math.log(a), math.log(b)) for a, b in zip(x, y, strict=True) if b > 0]
    if len(points) < 2:
        return None
    mean_x, mean_y = (statistics.fmean(p[i] for p in points) for i in (0, 1))
    return sum((a - mean_x) * (b - mean_y) for a, b in points) / sum((a - mean_x) ** 2 for a, _ in points)


def added_memory(name: str, heads: int, n: int, d: int) -> int | None:
    """Bytes that ``_peers.trained(name, …)`` at length n adds to the peak of a process that ran a short one."""
    if not Path("/proc/self/status").exists():
        return None
    paths = [str(ROOT / "benchmarks"), str(ROOT)]
    code = MEMORY_SCRIPT.format(paths=paths, name=name, heads=heads, n=n, d=d)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"measuring the memory of {name} at n {n} failed:\n{done.stderr}")
    return int(done.stdout)


def ceilings(quick: bool = False) -> dict[str, Any]:
    """What this machine can do at best, as PyTorch reaches it: multiply-adds by a matrix product, bytes by a copy."""
    size, many = (512, 2**22) if quick else (2048, 2**26)
    a, b = torch.randn(2, size, size)
    source, target = torch.randn(many), torch.empty(many)
    work: Contenders = {"product": lambda: a @ b, "copy": lambda: target.copy_(source)}
    ms = {name: best(f, 5 if quick else 15) for name, f in work.items()}
    return {
        "multiply_adds_per_second": size**3 / ms["product"] * 1e3,
        "bytes_per_second": 2 * 4 * many / ms["copy"] * 1e3,  # read and written
    }


def best(f: Callable[[], object], rounds: int) -> float:
    """Least milliseconds: for a ceiling, noise only ever adds."""
    f()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        f()
        times.append(1e3 * (time.perf_counter() - start))
    return min(times)
