"""Relative position on a GPU: right first, then how fast, against FlexAttention, SDPA's dot product and the textbook.

    python3 benchmarks/gpu_offset.py [--out results.json] [--only warm,speed,flex,lengths,decode,...] [--limit seconds]

It takes about two minutes: after ``--limit`` seconds no further piece begins, and one that fails is reported and left
out. Every score is checked against the textbook in float64, on inputs drawn afresh, before anything is timed; that and
all compiling is done by several processes at once ("warm"). Times are medians in milliseconds: "fwd" is the forward
pass without gradients, replayed as a CUDA graph, "bwd" the backward pass alone, as the host launches it. Ratios are
within one run.
"kernel" is our operator alone, "attend" the whole call with the score's own projections (Shaw: q·r and, in the backward
pass, its two gradients), which is what a model pays; FlexAttention is given the finished table, as the operator is.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.nn.functional as F
from _gpu import host_us, replayed
from torch import Tensor

import regard
from regard.kernels.gpu import offset as triton_offset
from regard.kernels.gpu.offset import OffsetConfig, _arguments, _gradients
from regard.mask import Causal, Mask
from regard.score import ALiBi, Dot, Location, Relative, Score, T5Bias
from regard.score.terms import Keys, OffsetTerm, Problem

DEVICE = "cuda"
BATCH, HEADS, LENGTH, DIM = 4, 16, 4096, 64
SCORES: dict[str, Callable[[], Score]] = {
    "shaw 16": lambda: Relative(DIM, 16),
    "shaw 128": lambda: Relative(DIM, 128),
    "t5 128": lambda: Dot() + T5Bias(HEADS, 32, 128),
    "alibi": lambda: Dot() + ALiBi(HEADS),
    "location 16": lambda: Location(DIM, 16, scale=DIM**-0.5),
    "shaw+values 16": lambda: Relative(DIM, 16, values=True),
}
FLEX = ["shaw 16", "t5 128", "alibi"]  # of these FlexAttention is timed as well; it cannot say a value term
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
MEMORY = 4.0e12  # bytes per second that an H200 can be made to read
SWEEP = {
    name: [OffsetConfig(*tile) for tile in tiles]
    for name, tiles in {
        "forward": [
            (128, 128, 8, 3), (128, 128, 8, 2), (128, 64, 4, 3), (128, 64, 4, 2),
            (128, 64, 8, 3), (128, 64, 8, 3, 128), (64, 128, 4, 3), (64, 64, 4, 3),
            (256, 64, 8, 3), (128, 128, 4, 3), (128, 32, 4, 4),
        ],
        "keys": [
            (64, 128, 8, 2), (64, 128, 8, 3), (64, 64, 4, 2), (64, 64, 4, 2, 168),
            (64, 64, 4, 3), (128, 128, 8, 2), (32, 128, 8, 3), (128, 64, 4, 2),
            (64, 128, 4, 2),
        ],
        "queries": [
            (128, 64, 8, 2), (128, 64, 8, 3), (128, 64, 8, 2, 128), (64, 64, 4, 2),
            (64, 64, 4, 2, 168), (128, 128, 8, 2), (128, 32, 8, 3), (128, 32, 4, 3),
            (64, 128, 4, 2),
        ],
    }.items()
}  # fmt: skip
SWEEP_TASKS = 6  # processes among which the sweep's compiling is divided

RESULTS: dict[str, Any] = {
    "machine": {}, "checks": [], "rows": [], "lengths": [], "exponents": {}, "decode": [], "sweep": [], "errors": [],
}  # fmt: skip
START = time.time()
LIMIT = 125.0


def say(*words: object) -> None:
    print(f"[{time.time() - START:5.1f}s]", *words, flush=True)


def late() -> bool:
    return time.time() - START > LIMIT


def attempt(what: str, f: Callable[[], Any]) -> Any:
    """Run one piece; say what went wrong and go on."""
    try:
        return f()
    except Exception as error:
        say(f"{what}: FAILED {type(error).__name__}: {str(error)[-300:]}")
        RESULTS["errors"].append({"what": what, "error": traceback.format_exc()[-2000:]})
        return None


def bench(f: Callable[[], Any], warmup: int = 10, rep: int = 40) -> float:
    from triton.testing import do_bench

    return float(do_bench(f, warmup=warmup, rep=rep, return_mode="median"))


def peak_bytes(f: Callable[[], Any]) -> int:
    """Most memory allocated by f beyond what was there."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = f()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before
    del result
    return int(peak)


def inputs(
    batch: int = BATCH, heads: int = HEADS, n: int = LENGTH, dim: int = DIM, dtype: torch.dtype = torch.bfloat16
) -> list[Tensor]:
    """q, k, v and a gradient."""
    return [torch.randn(batch, heads, n, dim, device=DEVICE, dtype=dtype) for _ in range(4)]


def ready(score: Score, dtype: torch.dtype = torch.bfloat16) -> Score:
    for parameter in score.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return score.to(DEVICE, dtype)


def problem_of(score: Score, q: Tensor, k: Tensor, v: Tensor, mask: Mask | None) -> Problem:
    (choice,) = regard.plan(q, k, v, score=score, mask=mask, backend="triton_offset").choices
    return choice.problem


def alone(problem: Problem) -> tuple[Problem, Tensor]:
    """The problem with a table of its own, so that the score's projections are not part of it."""
    (offset,) = problem.terms.offsets
    table = offset.table.detach().requires_grad_()
    terms = tuple(replace(t, table=table) if t is offset else t for t in problem.terms.terms)
    return replace(problem, terms=replace(problem.terms, terms=terms)), table


# --- right ---


def relative_error(x: Tensor, exact: Tensor) -> float:
    return float((x.double() - exact).norm() / exact.norm().clamp(min=1e-300))


def textbook(score: Score, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    e = score(q, k)
    n = e.shape[-1]
    if causal:
        e = e.masked_fill(torch.ones(n, n, dtype=torch.bool, device=e.device).triu(1), -torch.inf)
    weights = torch.softmax(e, -1)
    context = weights @ v
    if getattr(score, "rv", None) is not None:
        reach = score.rv.shape[-2] // 2
        at = torch.arange(n, device=e.device)
        index = ((at - at[:, None]).clamp(-reach, reach) + reach).expand(weights.shape)
        by_distance = weights.new_zeros(*weights.shape[:-1], 2 * reach + 1).scatter_add(-1, index, weights)
        context = context + by_distance @ score.rv
    return context


def check(name: str, causal: bool, dtype: torch.dtype, n: int) -> dict[str, Any]:
    """Context and all gradients of one batch item, against the textbook in float64 and in the same dtype."""
    torch.manual_seed(time.time_ns() % 2**31)
    score = ready(SCORES[name](), dtype)
    q, k, v, grad = inputs(1, HEADS, n, DIM, dtype)

    def results(f: Callable[..., Tensor], kind: torch.dtype) -> list[Tensor]:
        module = copy.deepcopy(score).to(kind)
        leaves = [x.to(kind).requires_grad_() for x in (q, k, v)]
        out = f(module, *leaves)
        grads = torch.autograd.grad(out, [*leaves, *module.parameters()], grad.to(kind), allow_unused=True)
        return [out.detach(), *(g for g in grads if g is not None)]

    mask = Causal() if causal else None
    exact = results(lambda m, *x: textbook(m, *x, causal), torch.float64)
    eager = results(lambda m, *x: textbook(m, *x, causal), dtype)
    torch.use_deterministic_algorithms(True, warn_only=True)  # memory is NaN until it is written
    ours = results(lambda m, *x: regard.attend(*x, score=m, mask=mask, backend="triton_offset"), dtype)
    torch.use_deterministic_algorithms(False)
    errors = [relative_error(x, y) for x, y in zip(ours, exact, strict=True)]
    floor = 1e-5 if dtype == torch.float32 else 4e-3
    allowed = [2 * relative_error(x, y) + floor for x, y in zip(eager, exact, strict=True)]
    right = all(e <= a for e, a in zip(errors, allowed, strict=True))  # NaN is not right
    kind = str(dtype).removeprefix("torch.")
    return {"what": name, "causal": causal, "dtype": kind, "n": n, "errors": errors, "allowed": allowed, "right": right}


# --- many processes: checks, and compiling ahead of timing ---


def tasks() -> list[str]:
    """The slowest first."""
    flex = [f"flex:{name}:{causal}" for name in ("dot", *FLEX) for causal in (0, 1)]
    half = [f"check:{name}:1:bfloat16:1024" for name in SCORES]
    rest = ["check:shaw 16:0:bfloat16:2048", "check:shaw 16:1:float16:777", "check:shaw 16:1:float32:500"]
    return [*flex, *half, *rest, *(f"sweep:{i}" for i in range(SWEEP_TASKS))]


def work(task: str) -> dict[str, Any]:
    """What one of many processes does."""
    kind, *args = task.split(":")
    if kind == "check":
        name, causal, dtype, n = args
        return check(name, causal == "1", getattr(torch, dtype), int(n))
    if kind == "flex":
        flex(args[0], args[1] == "1", timing=False)
    if kind == "sweep":
        for causal in (False, True):
            runs = launches("shaw 16", causal, batch=1, n=512)
            configs = [(kernel, c) for kernel, some in SWEEP.items() for c in some]
            for kernel, config in configs[int(args[0]) :: SWEEP_TASKS]:
                attempt(task, lambda: runs[kernel](config))
    torch.cuda.synchronize()
    return {"done": task}


def warm() -> None:
    count = max(min(14, (os.cpu_count() or 4) - 2), 2)
    say(f"checking and compiling in {count} processes")
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(count) as pool:
        results = [pool.submit(start, task, Path(folder) / f"{i}.json") for i, task in enumerate(tasks())]
        for future in results:
            attempt("warm", lambda: record(*future.result()))


def start(task: str, path: Path) -> tuple[str, Path, str]:
    command = [sys.executable, __file__, "--worker", task, "--out", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90)
    return task, path, done.stderr


def record(task: str, path: Path, log: str) -> None:
    if not path.exists():
        raise RuntimeError(f"{task}: {log[-1500:]}")
    result = json.loads(path.read_text())
    if "right" in result:
        RESULTS["checks"].append(result)
        verdict = "right" if result["right"] else "WRONG"
        pairs = zip(result["errors"], result["allowed"], strict=True)
        say(f"{task}: {verdict}", " ".join(f"{e:.1e}/{a:.1e}" for e, a in pairs))


# --- fast ---


def timed(name: str, causal: bool, f: Callable[[], Tensor], leaves: list[Tensor], grad: Tensor) -> None:
    """Forward without gradients, backward alone, and the memory of both."""
    with torch.no_grad():
        forward = replayed(f)
        memory = peak_bytes(f)
    out = f()
    backward = bench(lambda: torch.autograd.grad(out, leaves, grad, retain_graph=True, allow_unused=True))
    out = None
    both = peak_bytes(lambda: torch.autograd.grad(f(), leaves, grad, allow_unused=True))
    row = {"what": name, "causal": causal, "fwd": forward, "bwd": backward, "fwd_bytes": memory, "both_bytes": both}
    RESULTS["rows"].append(row)
    size = f"{memory / 2**20:.0f} / {both / 2**20:.0f} MiB"
    say(f"{name:28s} causal={causal!s:5} fwd {forward:7.3f} bwd {backward:7.3f} ms; {size}")


def ours(name: str, causal: bool) -> None:
    score = ready(SCORES[name]())
    q, k, v, grad = inputs()
    leaves = [x.requires_grad_() for x in (q, k, v)]
    mask = Causal() if causal else None
    everything = [*leaves, *score.parameters()]

    def attend() -> Tensor:
        return regard.attend(q, k, v, score=score, mask=mask)

    attempt(f"attend {name}", lambda: timed(f"attend {name}", causal, attend, everything, grad))
    problem, table = alone(problem_of(score, q, k, v, mask))

    def kernel() -> Tensor:
        return triton_offset.run(problem)[0]

    attempt(f"kernel {name}", lambda: timed(f"kernel {name}", causal, kernel, [*leaves, table], grad))


def sdpa(causal: bool) -> None:
    q, k, v, grad = inputs()
    leaves = [x.requires_grad_() for x in (q, k, v)]
    timed("SDPA dot", causal, lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal), leaves, grad)


def speed() -> None:
    for causal in (False, True):
        attempt("SDPA", lambda: sdpa(causal))
        for name in SCORES:
            attempt(f"ours {name}", lambda: ours(name, causal))


def flex(name: str, causal: bool, timing: bool = True) -> None:
    """FlexAttention with the table captured by its score_mod, as its own examples do."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    q, k, v, grad = inputs()
    leaves = [x.requires_grad_() for x in (q, k, v)]
    block_mask = None
    if causal:
        block_mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, LENGTH, LENGTH, device=DEVICE)
    score_mod = None if name == "dot" else score_mod_of(name, q.detach(), leaves)
    torch._dynamo.reset()
    torch._functorch.config.donated_buffer = False  # the backward pass is timed many times over one forward pass
    attention = torch.compile(flex_attention, dynamic=False)

    def run() -> Tensor:
        return attention(q, k, v, score_mod=score_mod, block_mask=block_mask)

    if timing:
        timed(f"flex {name}", causal, run, leaves, grad)
        return
    with torch.no_grad():
        run()
    torch.autograd.grad(run(), leaves, grad, allow_unused=True)


def score_mod_of(name: str, q: Tensor, leaves: list[Tensor]) -> Callable[..., Any]:
    """The offset term as FlexAttention takes it; a table that is learned joins the leaves."""
    (term,) = [t for t in ready(SCORES[name]()).queries(q).terms if isinstance(t, OffsetTerm)]
    table, reach = term.table.detach(), term.reach
    if term.slope is not None:
        slopes = term.slope[0]
        return lambda e, b, h, i, j: e - slopes[h] * (j - i).abs()
    if table.shape[2] == 1:
        per_head = table[0, :, 0].float().contiguous().requires_grad_()
        leaves.append(per_head)
        return lambda e, b, h, i, j: e + per_head[h, (j - i).clamp(-reach, reach) + reach]
    per_query = table.contiguous().requires_grad_()
    leaves.append(per_query)
    if name.startswith("location"):
        return lambda e, b, h, i, j: e * 0 + per_query[b, h, i, (j - i).clamp(-reach, reach) + reach]
    return lambda e, b, h, i, j: e + per_query[b, h, i, (j - i).clamp(-reach, reach) + reach]


def flexes() -> None:
    for causal in (False, True):
        for name in ("dot", *FLEX):
            if late():
                say(f"flex {name}: left out, time is up")
                continue
            attempt(f"flex {name}", lambda: flex(name, causal))


def eager(n: int = 1024) -> None:
    """The textbook formula at a length whose n×n matrices fit, against ours at the same length."""
    for name in SCORES:
        score = ready(SCORES[name]())
        q, k, v, grad = inputs(n=n)
        leaves = [x.requires_grad_() for x in (q, k, v)]
        everything = [*leaves, *score.parameters()]
        contenders: dict[str, Callable[[], Tensor]] = {
            f"eager {name} n={n}": lambda: textbook(score, q, k, v, False),
            f"attend {name} n={n}": lambda: regard.attend(q, k, v, score=score),
        }
        for title, f in contenders.items():
            attempt(title, lambda: timed(title, False, f, everything, grad))


def lengths() -> None:
    """One batch item: how time and memory grow with the length, the kernel alone and the whole call."""
    for name in ("SDPA dot", "attend shaw 16", "kernel shaw 16"):
        for n in LENGTHS:
            attempt(f"{name} n={n}", lambda: length(name, n))
        rows = [r for r in RESULTS["lengths"] if r["what"] == name and r["n"] >= 2048]
        fits = {key: exponent([r["n"] for r in rows], [r[key] for r in rows]) for key in ("fwd", "bwd", "both_bytes")}
        RESULTS["exponents"][name] = fits
        say(f"{name}: grows as n to the power of", fits)


def length(name: str, n: int) -> None:
    score = ready(Relative(DIM, 16))
    q, k, v, grad = inputs(1, HEADS, n)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    run: Callable[[], Tensor] = lambda: F.scaled_dot_product_attention(q, k, v)  # noqa: E731
    if name.startswith("attend"):
        run = lambda: regard.attend(q, k, v, score=score)  # noqa: E731
    elif name.startswith("kernel"):
        problem, table = alone(problem_of(score, q, k, v, None))
        leaves.append(table)
        run = lambda: triton_offset.run(problem)[0]  # noqa: E731
    with torch.no_grad():
        forward, host = replayed(run), host_us(run)
    both = peak_bytes(lambda: torch.autograd.grad(run(), leaves, grad))
    out = run()
    backward = bench(lambda: torch.autograd.grad(out, leaves, grad, retain_graph=True))
    row = {"what": name, "n": n, "fwd": forward, "bwd": backward, "both_bytes": both, "host_us": host}
    RESULTS["lengths"].append(row)
    say(f"{name:16s} n={n:6d} fwd {forward:.4f} bwd {backward:.4f} ms, {both / 2**20:.1f} MiB, host {host:.0f} µs")


def exponent(xs: list[int], ys: list[float]) -> float:
    """Least squares of log y against log x."""
    lx, ly = (torch.tensor(z, dtype=torch.float64).log() for z in (xs, ys))
    lx, ly = lx - lx.mean(), ly - ly.mean()
    return round(float((lx * ly).sum() / lx.square().sum()), 3)


def decode() -> None:
    """One query against a long cache; the floor is reading keys and values once at MEMORY bytes per second."""
    for batch, n in ((1, 65536), (8, 32768)):
        q, k, v, _ = inputs(batch, HEADS, n, DIM)
        q, score = q[:, :, :1], ready(Relative(DIM, 16))
        cache = Keys(score.keys(k).tensors, trusted=True)
        calls: dict[str, Callable[[], Any]] = {
            "SDPA dot": lambda: F.scaled_dot_product_attention(q, k, v),
            "shaw 16": lambda: regard.attend(q, k, v, score=score, offset=n - 1),
            "shaw 16, causal, guarded": lambda: regard.attend(q, k, v, score=score, offset=n - 1, mask=Causal()),
            "shaw 16, causal, cached keys": lambda: regard.attend(
                q, cache, v, score=score, offset=n - 1, mask=Causal()
            ),
        }
        size = 2 * k.numel() * k.element_size()
        floor = 1e3 * size / MEMORY
        for name, call in calls.items():
            attempt(f"decode {name}", lambda: decode_row(f"{name}, {batch}x{HEADS} heads, {n} keys", call, size, floor))


def decode_row(name: str, call: Callable[[], Any], size: int, floor: float) -> None:
    with torch.no_grad():
        ms = replayed(call)
    RESULTS["decode"].append({"what": name, "ms": ms, "floor_ms": floor, "TB/s": size / ms / 1e9})
    say(f"decode {name}: {ms:.4f} ms, {ms / floor:.2f} of the floor, {size / ms / 1e9:.2f} TB/s")


def float32() -> None:
    """Exact float32 products against three TF32 ones on tensor cores."""
    before = _arguments.PRECISION
    q, k, v, grad = inputs(1, HEADS, 2048, DIM, torch.float32)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    score = ready(Relative(DIM, 16), torch.float32)

    def attend() -> Tensor:
        return regard.attend(q, k, v, score=score)

    exact = textbook(copy.deepcopy(score).double(), q.double(), k.double(), v.double(), False).detach()
    try:
        for precision in ("ieee", "tf32x3"):
            _arguments.PRECISION = precision
            error = attempt(precision, lambda: relative_error(attend(), exact))
            say(f"float32 {precision}: error {error:.1e}")
            title = f"float32 {precision} 1x{HEADS} n=2048"
            attempt(title, lambda: timed(title, False, attend, [*leaves, *score.parameters()], grad))
    finally:
        _arguments.PRECISION = before


# --- configurations ---


def launches(name: str, causal: bool, batch: int = BATCH, n: int = LENGTH) -> dict[str, Callable[[OffsetConfig], Any]]:
    """Each kernel alone as a function of its configuration."""
    score = ready(SCORES[name]())
    q, k, v, grad = inputs(batch, n=n)
    with torch.no_grad():
        problem = problem_of(score, q, k, v, Causal() if causal else None)
    kernel, given = triton_offset.TritonOffset(), _arguments.OffsetArguments(problem)
    out, lse = kernel.forward(problem)
    stats = kernel.statistics(given, out, lse, grad)
    room = _gradients.Gradients(problem, given)
    (table,) = [t for _, _, t in room.tables(problem)]
    return {
        "forward": lambda c: kernel.launch_forward(given, c, out, lse, None),
        "keys": lambda c: kernel.launch_keys(given, c, grad, stats, room),
        "queries": lambda c: kernel.launch_queries(given, c, grad, stats, room, 0, batch * HEADS, table, None),
        "default": lambda c: problem,
    }


def sweep() -> None:
    for causal in (False, True):
        runs = launches("shaw 16", causal)
        problem = runs.pop("default")(SWEEP["forward"][0])
        for kernel, configs in SWEEP.items():
            if late():
                say(f"sweep {kernel}: left out, time is up")
                continue
            times = {c: attempt(f"sweep {kernel} {c}", lambda: bench(lambda: runs[kernel](c), 5, 20)) for c in configs}
            note_sweep("shaw 16", causal, kernel, {c: ms for c, ms in times.items() if ms is not None}, problem)


def note_sweep(name: str, causal: bool, kernel: str, times: dict[OffsetConfig, float], problem: Problem) -> None:
    if not times:
        return
    order = sorted(times, key=times.__getitem__)
    default = times.get(triton_offset.configure(kernel, problem))
    row = {"what": name, "causal": causal, "kernel": kernel, "best": astuple(order[0]), "ms": times[order[0]]}
    RESULTS["sweep"].append({**row, "default_ms": default, "all": [[*astuple(c), times[c]] for c in order]})
    say(f"sweep {name} causal={causal} {kernel}:", " ".join(f"{label(c)}:{times[c]:.3f}" for c in order))


def label(c: OffsetConfig) -> str:
    return f"{c.q}x{c.k}w{c.warps}s{c.stages}" + ("" if c.registers is None else f"r{c.registers}")


# --- the table ---


def table() -> None:
    rows = {(r["what"], r.get("causal")): r for r in RESULTS["rows"]}
    print(f"\n{RESULTS['machine']}\n{BATCH}x{HEADS} heads, n {LENGTH}, d {DIM}, bfloat16: ms; × = times faster than")
    print(f"{'':23s}{'causal':>6s} {'fwd':>7s} {'bwd':>7s}  ×flex f/b     of flex's dot f/b   of SDPA's dot f/b   MiB")
    names = ("SDPA dot", "flex dot", *(f"{kind} {name}" for name in SCORES for kind in ("kernel", "attend", "flex")))
    for causal in (False, True):
        for what in names:
            r, peer = rows.get((what, causal)), rows.get((f"flex {what.split(' ', 1)[1]}", causal))
            if r is None:
                continue
            cells = [ratio(peer, r), ratio(r, rows.get(("flex dot", causal))), ratio(r, rows.get(("SDPA dot", causal)))]
            size = r["both_bytes"] / 2**20
            print(f"{what:23s}{causal!s:>6s} {r['fwd']:7.3f} {r['bwd']:7.3f}  {'      '.join(cells)} {size:8.0f}")
    for r in RESULTS["rows"]:
        peer = rows.get((r["what"].replace("eager", "attend", 1), r.get("causal")))
        if r["what"].startswith("eager") and peer:
            more = r["both_bytes"] / max(peer["both_bytes"], 1)
            print(
                f"{r['what']:28s} attend is {ratio(r, peer)} times faster (fwd / bwd); eager takes {more:.1f}× memory"
            )
        elif r["what"].startswith("float32"):
            print(f"{r['what']:28s} fwd {r['fwd']:.3f} bwd {r['bwd']:.3f} ms")
    for s in RESULTS["sweep"]:
        default = "-" if s["default_ms"] is None else f"{s['default_ms']:.3f}"
        best = f"{label(OffsetConfig(*s['best']))} {s['ms']:.3f} ms (default {default})"
        print(f"best {s['kernel']:8s} {s['what']:9s} causal={s['causal']!s:5}: {best}")
    for r in RESULTS["lengths"]:
        size = f"{r['both_bytes'] / 2**20:.1f} MiB, host {r['host_us']:.0f} µs"
        print(f"{r['what']:16s} n={r['n']:6d} fwd {r['fwd']:8.4f} bwd {r['bwd']:8.4f} ms, {size}")
    print("exponents of n:", RESULTS["exponents"])
    for r in RESULTS["decode"]:
        print(f"decode {r['what']}: {r['ms']:.4f} ms, floor {r['floor_ms']:.4f}, {r['TB/s']:.2f} TB/s")
    wrong = [c for c in RESULTS["checks"] if not c["right"]]
    print(f"checks: {len(RESULTS['checks']) - len(wrong)} right, {len(wrong)} wrong; errors: {len(RESULTS['errors'])}")
    for c in wrong:
        pairs = [f"{e:.1e}/{a:.1e}" for e, a in zip(c["errors"], c["allowed"], strict=True)]
        print("  WRONG", c["what"], c["causal"], c["dtype"], c["n"], *pairs)
    for e in RESULTS["errors"]:
        print("  failed:", e["what"], "|", e["error"].strip().splitlines()[-1][:160])


def ratio(x: dict[str, Any] | None, y: dict[str, Any] | None) -> str:
    if x is None or y is None or x is y:
        return " " * 13
    return f"{x['fwd'] / y['fwd']:5.2f} / {x['bwd'] / y['bwd']:5.2f}"


def main() -> None:
    global LIMIT
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts: dict[str, Callable[[], None]] = {
        "warm": warm,
        "speed": speed,
        "decode": decode,
        "lengths": lengths,
        "flex": flexes,
        "sweep": sweep,
        "float32": float32,
        "eager": eager,
    }
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/<gpu>-offset.json")
    parser.add_argument("--only", default=",".join(parts), help="which parts to run, in that order")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds after which no further part begins")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    LIMIT = args.limit
    if args.worker:
        args.out.write_text(json.dumps(work(args.worker)))
        return
    import triton

    gpu = torch.cuda.get_device_name().split()[-1].lower()
    path = args.out or Path(__file__).parent / "results" / f"{gpu}-offset.json"
    RESULTS["machine"] = {
        "gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__,
        "cuda": torch.version.cuda, "python": platform.python_version(), "date": time.strftime("%Y-%m-%d"),
    }  # fmt: skip
    say(RESULTS["machine"])
    try:
        for part in args.only.split(","):
            if late():
                say(f"{part}: left out, time is up")
            else:
                attempt(part, parts[part])
    finally:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(RESULTS, indent=1, default=str) + "\n")
        table()


if __name__ == "__main__":
    main()
