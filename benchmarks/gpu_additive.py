"""Additive attention on a GPU: errors, time and memory against the textbook, torch.compile of it and SDPA's dot.

    python benchmarks/gpu_additive.py [benchmarks/results/h200-additive.json] [--no-sweep]

Every step is tried on its own, so that one failure does not lose the rest. What compiles is compiled first, in several
processes (Triton and PyTorch keep what they compiled on disk). Figures go to the file, the table of results comes last.
It takes about five minutes; a step that would begin later than that is left out and listed as such.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.nn.functional as F
from _gpu import replayed
from torch import Tensor

from regard.kernels import operator
from regard.kernels.gpu import additive as fused
from regard.kernels.gpu.additive import AdditiveConfig, RowTiles, Tiles, TritonAdditive, _arguments
from regard.mask import Causal
from regard.score.terms import Problem, TanhTerm, Terms

HEADS, N, D = 16, 2048, 64
LONG = 131_072
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
BEGAN = time.perf_counter()
RESULTS: dict[str, Any] = {}
SUMMARY: list[str] = []

LAST_START = 200.0  # seconds after which no step begins
LENGTHS, DIMS = (512, 1024, 2048, 4096, 8192, 16384), (32, 64, 128, 256)
CACHE = 65_536  # keys of a decoding step
BANDWIDTH, CLOCK = 4.0e12, 1.755e9  # of an H200: bytes and cycles per second
OPERATIONS = 3.0  # multiply-adds per pair and hidden dim, by fractions

SWEEP: dict[str, tuple[str, str, list[Tiles | RowTiles]]] = {  # what of the AdditiveConfig: dtype, kernel, candidates
    "forward_exact": (
        "fp32",
        "forward",
        [
            Tiles(64, 32, 8, 4, 1, 128),
            Tiles(64, 32, 8, 4, 1, 128, 3),
            Tiles(64, 64, 8, 4, 1, 168),
            Tiles(64, 64, 8, 4, 1, 168, 3),
            Tiles(64, 64, 8, 4),
            Tiles(128, 64, 8, 8),
        ],
    ),
    "scores_exact": (
        "fp32",
        "score_gradients",
        [
            Tiles(64, 32, 8, 4, 1, 168),
            Tiles(64, 32, 8, 4, 1, 128),
            Tiles(64, 32, 8, 4, 1, 168, 3),
            Tiles(64, 32, 8, 4),
            Tiles(64, 64, 8, 4),
        ],
    ),
    "pairs": (
        "fp32",
        "pair_gradients",
        [
            RowTiles(64, 64, 4, registers=128),
            RowTiles(64, 64, 4),
            RowTiles(32, 64, 4),
            RowTiles(32, 64, 2, registers=128),
        ],
    ),
    "forward_series": (
        "bf16",
        "forward",
        [Tiles(128, 256, 64, 8, 3), Tiles(128, 128, 64, 8, 3), Tiles(128, 128, 128, 8, 3)],
    ),
    "scores_series": ("bf16", "score_gradients", [Tiles(128, 64, 64, 4, 3), Tiles(128, 128, 64, 8, 3)]),
    "features": ("bf16", "feature_gradients", [RowTiles(128, 64, 8, 64, 1, 4), RowTiles(128, 64, 8, 64, 1, 3)]),
}


# --- problems and peers ---


def make(
    dtype: str, heads: int = HEADS, n: int = N, mask: Any = None, d: int = D, queries: int | None = None
) -> tuple[Problem, Tensor]:
    """Fresh numbers for every call, and a gradient of the context."""
    kind, queries = DTYPES[dtype], n if queries is None else queries

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, device="cuda").to(kind)

    a, b, w = draw(1, heads, queries, d), draw(1, heads, n, d), draw(1, heads, d)
    v, grad = draw(1, heads, n, d), draw(1, heads, queries, d)
    return Problem(Terms((TanhTerm(a, w, b),)), v, heads, queries, mask), grad


def textbook(a: Tensor, b: Tensor, w: Tensor, v: Tensor) -> Tensor:
    e = (torch.tanh(a[..., :, None, :] + b[..., None, :, :]) * w[..., None, None, :]).sum(-1)
    return torch.softmax(e, -1) @ v


def leaves(p: Problem) -> list[Tensor]:
    (term,) = p.terms.tanhs
    assert term.b is not None
    return [x.detach().requires_grad_() for x in (term.a, term.b, term.w, p.v)]


def reference(p: Problem, grad: Tensor, head: int, dtype: torch.dtype) -> list[Tensor]:
    """Context and gradients of one head, by autograd of the textbook, a few rows at a time."""
    inputs = [x[:, head].to(dtype).detach().requires_grad_() for x in leaves(p)]
    a, b, w, v = inputs
    out = []
    rows = 256 if dtype == torch.float64 else a.shape[1]
    for i in range(0, a.shape[1], rows):
        part = textbook(a[:, i : i + rows], b, w, v)
        part.backward(grad[:, head, i : i + rows].to(dtype))
        out.append(part.detach())
    return [torch.cat(out, 1), *(x.grad for x in inputs if x.grad is not None)]


def distance(x: Tensor, exact: Tensor) -> float:
    return float((x.double() - exact).norm() / exact.norm())


def errors(p: Problem, grad: Tensor, config: AdditiveConfig | None = None) -> dict[str, float]:
    """Of context and gradients against float64, of the first and the last head, the larger; and the textbook's."""
    kernel = TritonAdditive(config)
    torch.use_deterministic_algorithms(True)  # what is allocated is NaN
    out, lse = kernel.forward(p)
    grads = kernel.backward(p, out, lse, grad)
    torch.use_deterministic_algorithms(False)
    (term,) = grads.terms.tanhs
    assert term.b is not None
    names = ("out", "da", "db", "dw", "dv")
    found: dict[str, float] = {}
    for head in (0, p.heads - 1):
        exact = reference(p, grad, head, torch.float64)
        eager = reference(p, grad, head, p.dtype)
        ours = [x[:, head] for x in (out.to(p.dtype), term.a, term.b, term.w, grads.v)]
        for name, x, y, z in zip(names, ours, exact, eager, strict=True):
            found[name] = max(found.get(name, 0.0), distance(x, y))
            found[f"eager {name}"] = max(found.get(f"eager {name}", 0.0), distance(z, y))
        del exact, eager
    return found


# --- measuring ---


def say(text: str) -> None:
    print(f"[{time.perf_counter() - BEGAN:6.1f} s] {text}", flush=True)


def step(name: str, f: Callable[[], Any]) -> Any:
    if time.perf_counter() - BEGAN > LAST_START:
        SUMMARY.append(f"left out for lack of time: {name}")
        return None
    say(name)
    try:
        RESULTS[name] = f()
    except Exception as error:
        RESULTS[name] = {"failed": f"{type(error).__name__}: {error}"[:600]}
        say(f"  FAILED {type(error).__name__}: {str(error)[:300]}")
        SUMMARY.append(f"FAILED {name}: {type(error).__name__} {str(error)[:120]}")
        traceback.print_exc(limit=-3)
        return None
    finally:
        torch.cuda.empty_cache()
    return RESULTS[name]


def bench(f: Callable[[], Any], rep: int = 100) -> float:
    """Median milliseconds."""
    import triton

    return float(triton.testing.do_bench(f, warmup=20, rep=rep, return_mode="median"))


def peak(f: Callable[[], Any]) -> float:
    """GiB allocated at most beyond what was there."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    start = torch.cuda.memory_allocated()
    f()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - start) / 2**30


class Recorder:
    """The kernels' module, remembering every launch so that it can be timed alone."""

    def __init__(self) -> None:
        self.kernels = _arguments._kernels()
        self.launches: list[tuple[str, dict[str, Any], Callable[[], Any]]] = []

    def __getattr__(self, name: str) -> Any:
        kernel, launches = getattr(self.kernels, name), self.launches

        class At:
            def __getitem__(self, grid: Any) -> Callable[..., None]:
                def launch(*args: Any, **kwargs: Any) -> None:
                    launches.append((name, kwargs, lambda: kernel[grid](*args, **kwargs)))
                    kernel[grid](*args, **kwargs)

                return launch

        return At()


def recorded(f: Callable[[], Any]) -> list[tuple[str, dict[str, Any], Callable[[], Any]]]:
    recorder, real = Recorder(), _arguments._kernels
    _arguments._kernels = lambda: recorder  # type: ignore[assignment]
    try:
        f()
    finally:
        _arguments._kernels = real
    return recorder.launches


def calls(dtype: str, config: AdditiveConfig | None, **shape: Any) -> tuple[Callable[[], Any], Callable[[], Any]]:
    p, grad = make(dtype, **shape)
    kernel = TritonAdditive(config)
    out, lse = kernel.forward(p)
    return lambda: kernel.forward(p), lambda: kernel.backward(p, out, lse, grad)


def profile(dtype: str, config: AdditiveConfig | None) -> dict[str, Any]:
    """Every launch of a forward and a backward pass, timed alone."""
    rows: dict[str, Any] = {}
    for name, f in zip(("forward", "backward"), calls(dtype, config), strict=True):
        for kernel, kwargs, again in recorded(f):
            form = {k: kwargs[k] for k in ("SERIES", "SIDE") if k in kwargs}
            rows[f"{name}: {kernel} {form or ''}".strip()] = bench(again, 30)
    for row, ms in rows.items():
        if ms > 0.004:
            say(f"    {row:60s} {ms:.4f} ms")
    return rows


# --- block sizes ---


def jobs() -> Iterator[tuple[str, Tiles | RowTiles]]:
    for field, (_, _, candidates) in SWEEP.items():
        for candidate in candidates:
            yield field, candidate


def run_job(field: str, candidate: Tiles | RowTiles) -> list[tuple[str, dict[str, Any], Callable[[], Any]]]:
    dtype, kernel, _ = SWEEP[field]
    p, grad = make(dtype)
    config = replace(fused.configure(p), **{field: candidate})  # type: ignore[arg-type]
    run = TritonAdditive(config)
    if kernel == "forward":
        launches = recorded(lambda: run.forward(p))
    else:
        out, lse = TritonAdditive().forward(p)
        launches = recorded(lambda: run.backward(p, out, lse, grad))
    series = field.endswith("series")
    return [x for x in launches if x[0] == kernel and x[1].get("SERIES", series) == series]


def warm(share: int, shares: int, swept: bool) -> None:
    """Compile a share of all that will run."""
    tasks: list[tuple[str, Callable[[], Any]]] = [
        (f"torch.compile {dtype}", lambda dtype=dtype: compiled(dtype)) for dtype in ("fp32", "bf16")
    ]
    for dtype in DTYPES:
        for d in (D, *(d for d in DIMS if d != D and dtype != "fp16")):
            for k in (0, 1):
                tasks.append((f"{dtype} {d}", lambda dtype=dtype, d=d, k=k: calls(dtype, None, heads=1, d=d)[k]()))
    if swept:
        tasks += [(f"{field} {x}", lambda field=field, x=x: run_job(field, x)) for field, x in jobs()]
    for i, (name, task) in enumerate(tasks):
        if i % shares == share:
            try:
                task()
            except Exception as error:
                print(f"  {name}: {type(error).__name__} {str(error)[:100]}", flush=True)


def compile_all(swept: bool) -> None:
    processes = max(2, min(14, (os.cpu_count() or 4) - 2))
    command = [sys.executable, str(Path(__file__).resolve()), "--warm"]
    children = [subprocess.Popen([*command, f"{i}/{processes}/{int(swept)}"]) for i in range(processes)]
    deadline = time.perf_counter() + 90
    for child in children:
        try:
            child.wait(timeout=max(1.0, deadline - time.perf_counter()))
        except subprocess.TimeoutExpired:
            child.terminate()


def sweep() -> dict[str, Any]:
    """The fastest candidate for each kernel, as the milliseconds of that kernel alone."""
    best: dict[str, Any] = {}
    for field, (_, kernel, candidates) in SWEEP.items():
        rows: list[tuple[float, Tiles | RowTiles]] = []
        for candidate in candidates:
            try:
                ms = sum(bench(again, 30) for _, _, again in run_job(field, candidate))
            except Exception as error:
                say(f"  {field} {candidate}: {type(error).__name__} {str(error)[:80]}")
                continue
            rows.append((ms, candidate))
        rows.sort(key=lambda row: row[0])
        say(f"  {field} ({kernel}):")
        for ms, candidate in rows:
            say(f"    {ms:8.4f} ms {candidate}")
        if rows:
            best[field] = rows[0][1]
        RESULTS[f"sweep {field}"] = [{"ms": ms, **asdict(candidate)} for ms, candidate in rows]
        torch.cuda.empty_cache()
    return best


def best_config(best: dict[str, Any]) -> AdditiveConfig:
    p, _ = make("bf16", 1, 64)
    config = replace(fused.configure(p), **best)
    say(f"  best: {config}")
    return config


# --- what is measured ---


def check(dtype: str, config: AdditiveConfig | None) -> dict[str, float]:
    found = errors(*make(dtype), config)
    line = "  ".join(f"{k} {v:.1e}" for k, v in found.items())
    say(f"    {line}")
    worst = [
        k
        for k in ("out", "da", "db", "dw", "dv")
        if not found[k] <= 2 * found[f"eager {k}"] + 2e-2 * (dtype != "fp32") + 1e-6
    ]
    if worst:
        say(f"    WRONG: {worst}")
    SUMMARY.append(
        f"error {dtype}: "
        + "  ".join(f"{k} {found[k]:.1e} ({found['eager ' + k]:.1e})" for k in ("out", "da", "db", "dw", "dv"))
    )
    return found


def ours(dtype: str, config: AdditiveConfig | None) -> dict[str, float]:
    forward, backward = calls(dtype, config)
    p, _ = make(dtype)
    return {
        "forward": bench(forward),
        "forward again": bench(forward),
        "backward": bench(backward),
        "forward graph": replayed(forward),
        "backward graph": replayed(backward),
        "forward through the operator": bench(lambda: operator.run(fused.NAME, p)),
        "forward GiB": peak(forward),
        "backward GiB": peak(backward),
    }


def eager(dtype: str) -> dict[str, float]:
    p, grad = make(dtype)
    with torch.no_grad():
        inputs = leaves(p)
        rows = {"forward": bench(lambda: textbook(*inputs), 200), "forward GiB": peak(lambda: textbook(*inputs))}
    inputs = leaves(p)
    out = textbook(*inputs)
    rows["backward"] = bench(lambda: torch.autograd.grad(out, inputs, grad, retain_graph=True), 200)
    rows["backward GiB"] = peak(lambda: torch.autograd.grad(out, inputs, grad, retain_graph=True))
    return rows


def compiled(dtype: str) -> dict[str, float]:
    p, grad = make(dtype)
    f = torch.compile(textbook)
    with torch.no_grad():
        inputs = leaves(p)
        rows = {"forward": bench(lambda: f(*inputs))}
    inputs = leaves(p)
    out = f(*inputs)
    rows["backward"] = bench(lambda: torch.autograd.grad(out, inputs, grad, retain_graph=True))
    return rows


def dot(dtype: str) -> dict[str, float]:
    p, grad = make(dtype)
    q, k, _, v = leaves(p)
    with torch.no_grad():
        forward = bench(lambda: F.scaled_dot_product_attention(q, k, v))
    out = F.scaled_dot_product_attention(q, k, v)
    return {"forward": forward, "backward": bench(lambda: torch.autograd.grad(out, (q, k, v), grad, retain_graph=True))}


def terms(config: AdditiveConfig | None) -> dict[str, Any]:
    """Time and error of the series by its number of terms, each forced upon the same data."""
    rows: dict[str, Any] = {}
    real, table = _arguments._series, _arguments._series(torch.device("cuda", torch.cuda.current_device()), 4e-3)
    p, grad = make("bf16")
    exact = reference(p, grad, 0, torch.float64)[0]
    for row in range(3, len(table)):
        forced = table[row:].clone()
        forced[0, 0] = max(float(forced[0, 0]), 11.5) if row >= 4 else math.inf
        forced = torch.cat((forced, forced[-1:].expand(row, -1))).contiguous()
        _arguments._series = lambda device, tolerance, forced=forced: forced  # type: ignore[assignment]
        try:
            run = TritonAdditive(config)
            out, _ = run.forward(p)
            ms = [
                bench(again, 30)
                for name, k, again in recorded(lambda: run.forward(p))
                if name == "forward" and k["SERIES"]
            ]
            rows[str(int(table[row, 1]))] = {"ms": ms[0], "error": distance(out[:, 0], exact)}
            say(f"    {int(table[row, 1])} terms: {ms[0]:.4f} ms, output error {distance(out[:, 0], exact):.1e}")
        finally:
            _arguments._series = real
    return rows


def once(f: Callable[[], Any]) -> float:
    """Milliseconds of one call."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    f()
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - start)


def measured(dtype: str, config: AdditiveConfig | None, **shape: Any) -> dict[str, float]:
    forward, backward = calls(dtype, config, **shape)
    rows = {}
    for name, f in (("forward", forward), ("backward", backward)):
        rows[f"{name} GiB"] = peak(f)
        first = once(f)
        rows[name] = bench(f, 60) if first < 40 else min(first, once(f))
    return rows


def exponent(x: tuple[int, ...], y: list[float]) -> float:
    """k of y ~ x^k, by least squares of the logarithms of the larger half."""
    pairs = [(math.log(a), math.log(b)) for a, b in zip(x, y, strict=True)][len(x) // 2 - 1 :]
    mean_x, mean_y = (sum(p[i] for p in pairs) / len(pairs) for i in (0, 1))
    return sum((a - mean_x) * (b - mean_y) for a, b in pairs) / sum((a - mean_x) ** 2 for a, _ in pairs)


def grown(dtype: str, config: AdditiveConfig | None, name: str, sizes: tuple[int, ...]) -> dict[str, Any]:
    """Time and memory over n or d."""
    rows = {str(size): measured(dtype, config if name == "n" else None, **{name: size}) for size in sizes}
    fits = {key: exponent(sizes, [row[key] for row in rows.values()]) for key in rows[str(sizes[0])]}
    for size, row in rows.items():
        say(f"    {name} {size:>6s}: " + "  ".join(f"{k} {v:.3f}" for k, v in row.items()))
    SUMMARY.append(f"{dtype} grows with {name} as " + "  ".join(f"{k} {name}^{v:.2f}" for k, v in fits.items()))
    return {"rows": rows, "exponents": fits}


def long(dtype: str, config: AdditiveConfig | None) -> dict[str, float]:
    rows = measured(dtype, config, heads=1, n=LONG)
    SUMMARY.append(f"{dtype} one head, n {LONG}: " + "  ".join(f"{k} {v:.2f}" for k, v in rows.items()))
    return rows


def decode(dtype: str) -> dict[str, float]:
    """One query against a long cache, and the same as a dot product."""
    p, _ = make(dtype, n=CACHE, queries=1)
    (term,) = p.terms.tanhs
    assert term.b is not None
    exact = reference(p, torch.zeros_like(p.v[:, :, :1]), 0, torch.float64)[0]
    out, _ = TritonAdditive().forward(p)
    limit = 1e3 * (term.b.nbytes + p.v.nbytes) / BANDWIDTH
    dot_ms = bench(lambda: F.scaled_dot_product_attention(term.a, term.b, p.v))
    rows = {
        "ms": bench(lambda: TritonAdditive().forward(p)),
        "limit": limit,
        "dot": dot_ms,
        "error": distance(out[:, 0], exact),
    }
    SUMMARY.append(
        f"{dtype} decode, 1 query, {HEADS} heads, n {CACHE}: {rows['ms']:.4f} ms  memory alone {limit:.4f} = "
        f"{rows['ms'] / limit:.2f}x  SDPA dot {dot_ms:.4f}  error {rows['error']:.1e}"
    )
    return rows


def host(dtype: str) -> dict[str, float]:
    """Launches of our kernels and of all kernels, and the host's time per call where the GPU has little to do."""
    rows: dict[str, float] = {}
    p, _ = make(dtype, n=64)
    both = calls(dtype, None, n=64)
    for name, f in zip(("forward", "backward"), both, strict=True):
        rows[f"{name} launches of ours"] = len(recorded(f))
        activities = [torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as found:
            f()
            torch.cuda.synchronize()
        rows[f"{name} launches"] = sum(e.count for e in found.key_averages() if e.device_type.name == "CUDA")
    for name, f in (("forward", both[0]), ("backward", both[1]), ("operator", lambda: operator.run(fused.NAME, p))):
        once(f)
        rows[f"{name} host ms"] = once(lambda f=f: [f() for _ in range(50)]) / 50
    SUMMARY.append(f"{dtype} host: " + "  ".join(f"{k} {v:.3g}" for k, v in rows.items()))
    return rows


def limits(dtype: str, rows: dict[str, Any] | None) -> None:
    """What the arithmetic alone would take."""
    pairs = HEADS * N * N * D
    lanes = 128 * torch.cuda.get_device_properties(0).multi_processor_count
    ms = 1e3 * OPERATIONS * pairs / (lanes * CLOCK)
    if dtype != "fp32":
        p, _ = make(dtype)
        given = _arguments.AdditiveArguments(p, fused.configure(p), fused.configure(p).forward_exact)
        given.setup()
        terms_used = int(given.params[0].item())
        ms = 1e3 * (4 * terms_used + 4) * pairs / 790e12
    ours_ms = (rows or {}).get("forward")
    ratio = f" = ours / {ours_ms / ms:.2f}" if ours_ms else ""
    SUMMARY.append(f"{dtype} forward, arithmetic alone: {ms:.3f} ms{ratio}")
    RESULTS[f"limit {dtype}"] = ms


def causal(dtype: str, config: AdditiveConfig | None) -> dict[str, float]:
    p, grad = make(dtype, mask=Causal())
    kernel = TritonAdditive(config)
    out, lse = kernel.forward(p)
    return {"forward": bench(lambda: kernel.forward(p)), "backward": bench(lambda: kernel.backward(p, out, lse, grad))}


def wide(dtype: str, config: AdditiveConfig | None) -> dict[str, float]:
    """A range too wide for the series and for products of exponentials."""
    p, _ = make(dtype)
    (term,) = p.terms.tanhs
    assert term.b is not None
    p = replace(p, terms=Terms((TanhTerm(term.a * 40, term.w, term.b * 40),)))
    return {"forward": bench(lambda: TritonAdditive(config).forward(p))}


def line(name: str, what: str, ms: float | None, peers: dict[str, float | None]) -> None:
    if ms is None:
        SUMMARY.append(f"{name:6s} {what:9s} failed")
        return
    ratios = "  ".join(f"{k} {v:8.3f} ms = {v / ms:6.1f}x" for k, v in peers.items() if v is not None)
    SUMMARY.append(f"{name:6s} {what:9s} {ms:8.4f} ms   {ratios}")


def measure(config: AdditiveConfig | None) -> None:
    for dtype in DTYPES:
        rows = step(f"ours {dtype}", lambda: ours(dtype, config))
        step(f"limit {dtype}", lambda: limits(dtype, rows))
        step(f"dot {dtype}", lambda: dot(dtype))
        step(f"eager {dtype}", lambda: eager(dtype))
    for dtype in ("bf16", "fp32"):
        step(f"compiled {dtype}", lambda: compiled(dtype))
        step(f"decode {dtype}", lambda: decode(dtype))
        step(f"long {dtype}", lambda: long(dtype, config))
        step(f"over n, {dtype}", lambda: grown(dtype, config, "n", LENGTHS))
        step(f"over d, {dtype}", lambda: grown(dtype, config, "d", DIMS))
        step(f"profile {dtype}", lambda: profile(dtype, config))
        step(f"host {dtype}", lambda: host(dtype))
        step(f"causal {dtype}", lambda: causal(dtype, config))
    step("wide fp32", lambda: wide("fp32", config))
    step("terms", lambda: terms(config))


def main() -> None:
    default = Path(__file__).resolve().parent / "results" / "h200-additive.json"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", type=Path, default=default, help="where all figures go, as JSON")
    parser.add_argument("--no-sweep", action="store_true", help="only the block sizes that would be chosen")
    parser.add_argument("--warm", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.manual_seed(time.time_ns() % 2**31)
    if args.warm:
        share, shares, swept = map(int, args.warm.split("/"))
        warm(share, shares, bool(swept))
        return
    import triton

    machine = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
    }
    RESULTS["machine"] = machine
    say(str(machine))
    step("compile", lambda: compile_all(not args.no_sweep))
    for dtype in DTYPES:
        step(f"correct {dtype}", lambda: check(dtype, None))
    config = None if args.no_sweep else tuned()
    measure(config)
    report()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps({**RESULTS, "summary": SUMMARY}, indent=1, default=str) + "\n")
    print(f"\n{machine['gpu']}, {HEADS} heads, n {N}, d {D}; times over ours\n" + "\n".join(SUMMARY), flush=True)


def tuned() -> AdditiveConfig | None:
    """The fastest block sizes, if results are right with these too."""
    best = step("sweep", sweep)
    if not best:
        return None
    config = best_config(best)
    SUMMARY.append(f"best blocks: {config}")
    RESULTS["sweep"], RESULTS["best"] = None, str(config)
    for dtype in DTYPES:
        if step(f"correct {dtype}, best blocks", lambda: check(dtype, config)) is None:
            return None
    return config


def report() -> None:
    def value(step_name: str, key: str) -> float | None:
        rows = RESULTS.get(step_name)
        return rows.get(key) if isinstance(rows, dict) else None

    for dtype in DTYPES:
        memory = {f"{k} GiB": value(f"{who} {dtype}", f"{k} GiB") for who in ("ours",) for k in ("forward", "backward")}
        theirs = {f"{k} GiB": value(f"eager {dtype}", f"{k} GiB") for k in ("forward", "backward")}
        through = value(f"ours {dtype}", "forward through the operator")
        text = "  ".join(f"{k} {v:.2f} (eager {theirs[k] or math.nan:.1f})" for k, v in memory.items() if v is not None)
        SUMMARY.append(f"{dtype} {text}  through the operator {through or math.nan:.3f} ms")
    for name, key in (("causal fp32", "forward"), ("causal bf16", "forward"), ("wide fp32", "forward")):
        SUMMARY.append(f"{name} {key} {value(name, key) or math.nan:.3f} ms")
    for dtype in DTYPES:
        for what in ("forward", "backward"):
            peers = {"eager": value(f"eager {dtype}", what), "compiled": value(f"compiled {dtype}", what)}
            peers |= {"eager bf16": value("eager bf16", what)} if dtype == "fp16" else {}
            peers["SDPA dot"] = value(f"dot {dtype}", what)
            line(dtype, what, value(f"ours {dtype}", what), peers)
            line(dtype, f"{what} graph", value(f"ours {dtype}", f"{what} graph"), peers)


if __name__ == "__main__":
    main()
