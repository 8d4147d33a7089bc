"""Times on a GPU: without the host in between, and in turn so that a clock that falls hits all alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch


def replayed(f: Callable[[], Any], rep: int = 40) -> float:
    """Milliseconds of f replayed as a CUDA graph; if it cannot be captured, launched by the host as usual."""
    from triton.testing import do_bench, do_bench_cudagraph

    try:
        return float(do_bench_cudagraph(f, rep=rep, return_mode="median"))
    except RuntimeError:
        torch.cuda.synchronize()
        return float(do_bench(f, warmup=10, rep=rep, return_mode="median"))


def host_us(f: Callable[[], Any], count: int = 50) -> float:
    """What a call costs before the GPU has anything to do, in microseconds."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(count):
        f()
    spent = time.perf_counter() - begin
    torch.cuda.synchronize()
    return 1e6 * spent / count


def in_turn(cases: dict[str, Callable[[], Any]], rounds: int = 15, span: float = 2.0) -> dict[str, float]:
    """Median milliseconds of each, as CUDA graphs of about ``span`` ms that are replayed one after the other."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    times: dict[str, list[float]] = {name: [] for name in cases}
    with torch.cuda.stream(stream):
        counts = {name: max(1, round(span / _once(f))) for name, f in cases.items()}
        graphs = {name: _capture(f, counts[name], stream) for name, f in cases.items()}
        for i in range(rounds + 2):
            order = list(cases) if i % 2 else list(reversed(cases))
            for name in order:
                ms = _elapsed(graphs[name].replay) / counts[name]
                if i >= 2:
                    times[name].append(ms)
    torch.cuda.synchronize()
    return {name: statistics.median(t) for name, t in times.items()}


def _once(f: Callable[[], Any]) -> float:
    f()
    return max(min(_elapsed(f) for _ in range(3)), 0.005)


def _capture(f: Callable[[], Any], count: int, stream: torch.cuda.Stream) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(count):
            f()
    return graph


def _elapsed(f: Callable[[], Any]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    f()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)
