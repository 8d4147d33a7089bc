"""Additive attention on a GPU: correctness, time and memory against the textbook, torch.compile of it and SDPA's dot.

    python benchmarks/gpu_additive.py --out results.json [--no-sweep]

Every step is tried on its own, so that one failure does not lose the rest. The sweep over block sizes first compiles
all of them in several processes (Triton keeps what it compiled on disk). The table of results comes last.
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
from torch import Tensor

from regard.kernels import _op
from regard.kernels import triton_additive as fused
from regard.kernels.triton_additive import Config, Rows, Tiles, TritonAdditive
from regard.mask import Causal
from regard.terms import Problem, TanhTerm, Terms

HEADS, N, D = 16, 2048, 64
LONG = 131_072
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
BEGAN = time.perf_counter()
RESULTS: dict[str, Any] = {}
SUMMARY: list[str] = []

SWEEP: dict[str, tuple[str, str, list[Tiles | Rows]]] = {  # what of the Config: dtype, kernel, candidates
    "forward_exact": (
        "fp32",
        "forward",
        [
            Tiles(64, 64, 8, 4),
            Tiles(64, 64, 16, 4),
            Tiles(64, 64, 8, 4, 1, 168),
            Tiles(64, 32, 8, 4),
            Tiles(64, 32, 8, 4, 1, 128),
            Tiles(128, 64, 8, 8),
            Tiles(128, 32, 8, 4),
            Tiles(128, 64, 8, 4),
            Tiles(64, 128, 8, 8),
            Tiles(128, 128, 8, 8),
        ],
    ),
    "forward_series": (
        "bf16",
        "forward",
        [
            Tiles(128, 128, 64, 8, 3),
            Tiles(128, 128, 64, 8, 4),
            Tiles(128, 256, 64, 8, 3),
            Tiles(128, 256, 64, 8, 2),
            Tiles(128, 128, 128, 8, 3),
            Tiles(64, 128, 64, 4, 4),
            Tiles(64, 256, 64, 4, 3),
            Tiles(64, 256, 64, 8, 3),
            Tiles(128, 64, 64, 4, 4),
            Tiles(128, 128, 64, 4, 3),
            Tiles(128, 128, 64, 8, 3, 128),
        ],
    ),
    "scores_exact": (
        "fp32",
        "score_gradients",
        [
            Tiles(64, 64, 8, 4),
            Tiles(64, 32, 8, 4),
            Tiles(64, 32, 8, 4, 1, 168),
            Tiles(64, 64, 16, 4),
            Tiles(128, 64, 8, 8),
            Tiles(128, 32, 8, 4),
            Tiles(64, 64, 8, 8),
        ],
    ),
    "scores_series": (
        "bf16",
        "score_gradients",
        [
            Tiles(128, 128, 64, 8, 3),
            Tiles(128, 128, 64, 8, 2),
            Tiles(128, 64, 64, 8, 3),
            Tiles(128, 64, 64, 4, 3),
            Tiles(64, 128, 64, 4, 3),
            Tiles(64, 128, 64, 8, 3),
            Tiles(64, 64, 64, 4, 4),
            Tiles(128, 128, 128, 8, 2),
        ],
    ),
    "pairs": (
        "fp32",
        "pair_gradients",
        [
            Rows(64, 64, 4),
            Rows(64, 64, 4, 1, 1, 1, 128),
            Rows(32, 64, 4),
            Rows(128, 64, 8),
            Rows(128, 64, 4),
            Rows(64, 32, 4),
            Rows(64, 32, 2),
            Rows(32, 64, 2),
        ],
    ),
    "features": (
        "bf16",
        "feature_gradients",
        [
            Rows(128, 64, 8, 64, 1, 3),
            Rows(128, 64, 8, 64, 1, 4),
            Rows(128, 64, 8, 64, 2, 3),
            Rows(128, 64, 4, 64, 1, 3),
            Rows(64, 64, 4, 64, 1, 4),
            Rows(64, 64, 4, 64, 2, 3),
            Rows(64, 64, 8, 64, 2, 3),
        ],
    ),
}


# --- problems and peers ---


def make(dtype: str, heads: int = HEADS, n: int = N, mask: Any = None) -> tuple[Problem, Tensor]:
    """Fresh numbers for every call, and a gradient of the context."""
    kind = DTYPES[dtype]

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, device="cuda").to(kind)

    a, b, w = draw(1, heads, n, D), draw(1, heads, n, D), draw(1, heads, D)
    v, grad = draw(1, heads, n, D), draw(1, heads, n, D)
    return Problem(Terms((TanhTerm(a, w, b),)), v, heads, n, mask), grad


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


def errors(p: Problem, grad: Tensor, config: Config | None = None) -> dict[str, float]:
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
    say(name)
    try:
        RESULTS[name] = f()
    except Exception as error:
        RESULTS[name] = {"failed": f"{type(error).__name__}: {error}"[:600]}
        say(f"  FAILED {type(error).__name__}: {str(error)[:300]}")
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
        self.kernels = fused._kernels()
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
    recorder, real = Recorder(), fused._kernels
    fused._kernels = lambda: recorder  # type: ignore[assignment]
    try:
        f()
    finally:
        fused._kernels = real
    return recorder.launches


def calls(dtype: str, config: Config | None) -> tuple[Callable[[], Any], Callable[[], Any]]:
    p, grad = make(dtype)
    kernel = TritonAdditive(config)
    out, lse = kernel.forward(p)
    return lambda: kernel.forward(p), lambda: kernel.backward(p, out, lse, grad)


def profile(dtype: str, config: Config | None) -> dict[str, Any]:
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


def jobs() -> Iterator[tuple[str, Tiles | Rows]]:
    for field, (_, _, candidates) in SWEEP.items():
        for candidate in candidates:
            yield field, candidate


def run_job(field: str, candidate: Tiles | Rows) -> list[tuple[str, dict[str, Any], Callable[[], Any]]]:
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


def warm(share: int, shares: int) -> None:
    """Compile a share of all candidates."""
    for i, (field, candidate) in enumerate(jobs()):
        if i % shares == share:
            try:
                run_job(field, candidate)
            except Exception as error:
                print(f"  {field} {candidate}: {type(error).__name__} {str(error)[:100]}", flush=True)


def compile_all() -> None:
    processes = max(2, min(12, (os.cpu_count() or 4) - 3))
    command = [sys.executable, str(Path(__file__).resolve()), "--warm"]
    children = [subprocess.Popen([*command, f"{i}/{processes}"]) for i in range(processes)]
    deadline = time.perf_counter() + 120
    for child in children:
        try:
            child.wait(timeout=max(1.0, deadline - time.perf_counter()))
        except subprocess.TimeoutExpired:
            child.terminate()


def sweep() -> dict[str, Any]:
    """The fastest candidate for each kernel, as the milliseconds of that kernel alone."""
    best: dict[str, Any] = {}
    for field, (_, kernel, candidates) in SWEEP.items():
        rows: list[tuple[float, Tiles | Rows]] = []
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


def best_config(best: dict[str, Any]) -> Config:
    p, _ = make("bf16", 1, 64)
    config = replace(fused.configure(p), **best)
    say(f"  best: {config}")
    return config


# --- what is measured ---


def check(dtype: str, config: Config | None) -> dict[str, float]:
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


def ours(dtype: str, config: Config | None) -> dict[str, float]:
    forward, backward = calls(dtype, config)
    p, _ = make(dtype)
    return {
        "forward": bench(forward),
        "forward again": bench(forward),
        "backward": bench(backward),
        "forward through the operator": bench(lambda: _op.run(fused.NAME, p)),
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


def terms(config: Config | None) -> dict[str, Any]:
    """Time and error of the series by its number of terms, each forced upon the same data."""
    rows: dict[str, Any] = {}
    real, table = fused._series, fused._series(torch.device("cuda", torch.cuda.current_device()), 4e-3)
    p, grad = make("bf16")
    exact = reference(p, grad, 0, torch.float64)[0]
    for row in range(3, len(table)):
        forced = table[row:].clone()
        forced[0, 0] = max(float(forced[0, 0]), 11.5) if row >= 4 else math.inf
        forced = torch.cat((forced, forced[-1:].expand(row, -1))).contiguous()
        fused._series = lambda device, tolerance, forced=forced: forced  # type: ignore[assignment]
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
            fused._series = real
    return rows


def long(dtype: str, config: Config | None) -> dict[str, float]:
    p, grad = make(dtype, 1, LONG)
    kernel = TritonAdditive(config)
    results: list[Any] = []

    def timed(f: Callable[[], Any]) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        results.append(f())
        torch.cuda.synchronize()
        return 1e3 * (time.perf_counter() - start)

    rows = {"forward GiB": peak(lambda: kernel.forward(p)), "forward": timed(lambda: kernel.forward(p))}
    out, lse = results[-1]
    rows["backward"] = timed(lambda: kernel.backward(p, out, lse, grad))  # compiles once for the number of shares
    rows["backward GiB"] = peak(lambda: results.append(timed(lambda: kernel.backward(p, out, lse, grad))))
    rows["backward"] = min(rows["backward"], results[-1])
    return rows


def causal(dtype: str, config: Config | None) -> dict[str, float]:
    p, grad = make(dtype, mask=Causal())
    kernel = TritonAdditive(config)
    out, lse = kernel.forward(p)
    return {"forward": bench(lambda: kernel.forward(p)), "backward": bench(lambda: kernel.backward(p, out, lse, grad))}


def wide(dtype: str, config: Config | None) -> dict[str, float]:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="also write all figures here, as JSON")
    parser.add_argument("--no-sweep", action="store_true", help="only the block sizes that would be chosen")
    parser.add_argument("--warm", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.manual_seed(time.time_ns() % 2**31)
    if args.warm:
        warm(*map(int, args.warm.split("/")))
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
    if not args.no_sweep:
        step("compile candidates", compile_all)
    for dtype in DTYPES:
        step(f"correct {dtype}", lambda: check(dtype, None))
    config: Config | None = None
    if not args.no_sweep:
        best = step("sweep", sweep)
        if best:
            config = best_config(best)
            RESULTS["best"] = str(config)
            RESULTS["sweep"] = None
            SUMMARY.clear()
            for dtype in DTYPES:
                if step(f"correct {dtype}, best blocks", lambda: check(dtype, config)) is None:
                    config = None
                    break
    for dtype in DTYPES:
        step(f"ours {dtype}", lambda: ours(dtype, config))
        step(f"dot {dtype}", lambda: dot(dtype))
    for dtype in ("fp32", "bf16"):
        step(f"profile {dtype}", lambda: profile(dtype, config))
        step(f"eager {dtype}", lambda: eager(dtype))
    step("terms", lambda: terms(config))
    for dtype in ("fp32", "bf16"):
        step(f"long {dtype}", lambda: long(dtype, config))
        step(f"causal {dtype}", lambda: causal(dtype, config))
        step(f"wide {dtype}", lambda: wide(dtype, config))
    for dtype in ("fp32", "bf16"):
        if time.perf_counter() - BEGAN < 200:
            step(f"compiled {dtype}", lambda: compiled(dtype))
    report()
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(RESULTS, indent=1, default=str))
    print(f"\n{machine['gpu']}, {HEADS} heads, n {N}, d {D}; times over ours\n" + "\n".join(SUMMARY), flush=True)


def report() -> None:
    def value(step_name: str, key: str) -> float | None:
        rows = RESULTS.get(step_name)
        return rows.get(key) if isinstance(rows, dict) else None

    for dtype in ("fp32", "bf16"):
        rows = {k: value(f"long {dtype}", k) for k in ("forward", "forward GiB", "backward", "backward GiB")}
        text = "  ".join(f"{k} {v:.2f}" if v is not None else f"{k} failed" for k, v in rows.items())
        SUMMARY.append(f"{dtype} one head, n {LONG}: {text}")
        extra = {k: value(f"{k} {dtype}", "forward") for k in ("causal", "wide")}
        text = "  ".join(f"{k} forward {v:.3f}" if v is not None else f"{k} failed" for k, v in extra.items())
        back = value(f"causal {dtype}", "backward")
        SUMMARY.append(f"{dtype}: {text}" + (f"  causal backward {back:.3f}" if back is not None else ""))
    for dtype in DTYPES:
        gib = {k: value(f"{w} {dtype}", f"{k} GiB") for k in ("forward", "backward") for w in ("ours",)}
        theirs = {k: value(f"eager {dtype}", f"{k} GiB") for k in ("forward", "backward")}
        text = "  ".join(
            f"{k} {gib[k]:.2f} GiB" + (f" (eager {theirs[k]:.1f})" if theirs[k] is not None else "")
            for k in gib
            if gib[k] is not None
        )
        SUMMARY.append(f"{dtype} peak memory: {text}")
        through = value(f"ours {dtype}", "forward through the operator")
        if through is not None:
            SUMMARY.append(f"{dtype} forward through the operator: {through:.4f} ms")
    for dtype in DTYPES:
        base = "bf16" if dtype == "fp16" else dtype
        for what in ("forward", "backward"):
            peers = {peer: value(f"{peer} {base}", what) for peer in ("eager", "compiled")}
            line(dtype, what, value(f"ours {dtype}", what), {**peers, "SDPA dot": value(f"dot {dtype}", what)})


if __name__ == "__main__":
    main()
