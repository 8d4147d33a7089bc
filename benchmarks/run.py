"""Speed as ratios against named peers, measured side by side in one run. `make bench` runs it.

Peers: PyTorch's scaled_dot_product_attention (the same shape, a dot product), the textbook formula in eager PyTorch,
and torch.compile of that. Every row times all its contenders in turn, several rounds, and reports medians; the ratio is
the peer's time over regard's, so more than 1 is faster than the peer.

    python benchmarks/run.py [--quick] [--json out/bench.json]
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

import regard
from regard.mask import Causal, Documents, Lengths
from regard.score import Additive, ALiBi, Dot, PerHead, Relative, Rotary, Score

Contenders = dict[str, Callable[[], object]]


def medians(contenders: Contenders, rounds: int) -> dict[str, float]:
    """Median milliseconds of each, run in turn so that a slow moment hits all alike."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for f in contenders.values():
        f()
    for _ in range(rounds):
        for name, f in contenders.items():
            start = time.perf_counter()
            f()
            times[name].append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(t) for name, t in times.items()}


def textbook(score: Score) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """softmax(E) v with E from the score's dense formula."""

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        e: Tensor = score(q, k)
        return torch.softmax(e, -1) @ v

    return attention


def sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def with_backward(f: Callable[[Tensor, Tensor, Tensor], Tensor], *inputs: Tensor) -> Callable[[], object]:
    leaves = [x.detach().requires_grad_() for x in inputs]
    return lambda: torch.autograd.grad(f(*leaves).sum(), leaves)


def inputs(heads: int, n: int, d: int, kv_heads: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
    return (
        torch.randn(1, heads, n, d),
        torch.randn(1, kv_heads or heads, n, d),
        torch.randn(1, kv_heads or heads, n, d),
    )


def report(title: str, times: dict[str, float], rows: list[dict[str, object]]) -> None:
    ours = times["regard"]
    line = f"{title:58s} regard {ours:9.2f} ms"
    for name, ms in times.items():
        if name != "regard":
            line += f"   {name} {ms:9.2f} ms = {ms / ours:6.2f}×"
    print(line, flush=True)
    rows.append({"what": title, "ms": times, "ratio": {n: ms / ours for n, ms in times.items() if n != "regard"}})


def overhead(rows: list[dict[str, object]], lengths: list[int]) -> None:
    print("\nA dot product through regard.attend, against PyTorch's own (1.00× = no overhead)")
    for n in lengths:
        for heads in (1, 8):
            q, k, v = inputs(heads, n, 64)
            cases: Contenders = {"regard": lambda: regard.attend(q, k, v), "SDPA": lambda: sdpa(q, k, v)}
            report(f"dot, {heads} heads, n {n}, d 64", medians(cases, 30), rows)
        causal: Contenders = {
            "regard": lambda: regard.attend(q, k, v, mask=Causal()),
            "SDPA": lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        }
        report(f"dot, 8 heads, n {n}, Causal (guarded against NaN)", medians(causal, 30), rows)
        seen = (torch.arange(n) < n - 5)[None, None, None]
        padded: Contenders = {
            "regard": lambda: regard.attend(q, k, v, mask=Lengths(n - 5)),
            "SDPA": lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=seen),
        }
        report(f"dot, 8 heads, n {n}, Lengths (guarded against NaN)", medians(padded, 30), rows)


def against_textbook(rows: list[dict[str, object]], n: int, compiled: bool) -> None:
    print(f"\nOther scores against the textbook formula: 8 heads, n {n}, d 64, float32")
    scores: dict[str, Score] = {
        "additive": Additive(64, 64, 64),
        "relative (Shaw keys)": Relative(64, 16),
        "dot + ALiBi": Dot() + ALiBi(8),
        "rotary": Rotary(Dot()),
        "per head: 4 dot, 4 additive": PerHead((4, Dot()), (4, Additive(64, 64, 64))),
    }
    q, k, v = inputs(8, n, 64)
    for name, score in scores.items():
        dense = textbook(score)
        with torch.no_grad():
            cases: Contenders = {
                "regard": lambda score=score: regard.attend(q, k, v, score=score),
                "eager": lambda dense=dense: dense(q, k, v),
            }
            if compiled:
                torch._dynamo.reset()
                fast = torch.compile(dense)
                cases["compiled"] = lambda fast=fast: fast(q, k, v)
            cases["SDPA dot"] = lambda: sdpa(q, k, v)
            report(f"{name}, forward", medians(cases, 5), rows)
        both: Contenders = {
            "regard": with_backward(lambda *x, score=score: regard.attend(*x, score=score), q, k, v),
            "eager": with_backward(dense, q, k, v),
            "SDPA dot": with_backward(sdpa, q, k, v),
        }
        report(f"{name}, forward + backward", medians(both, 3), rows)


def skipping(rows: list[dict[str, object]], n: int) -> None:
    print("\nPacked sequences: empty tiles are skipped")
    score = Additive(64, 64, 32)
    q, k, v = inputs(2, n, 64)
    documents = Documents.packed(list(range(0, n + 1, n // 8)))
    cases: Contenders = {
        "regard": lambda: regard.attend(q, k, v, score=score, mask=documents),
        "without mask": lambda: regard.attend(q, k, v, score=score),
    }
    with torch.no_grad():
        report(f"additive, 2 heads, n {n}, 8 documents", medians(cases, 3), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller sizes and no torch.compile, to see that it runs")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    args = parser.parse_args()
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {platform.machine()} CPU, float32")
    rows: list[dict[str, object]] = []
    overhead(rows, [128] if args.quick else [512, 1024, 2048])
    against_textbook(rows, 64 if args.quick else 512, compiled=not args.quick)
    skipping(rows, 256 if args.quick else 2048)
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps({"torch": torch.__version__, "rows": rows}, indent=1))
        print(f"\nwritten to {args.json}")


if __name__ == "__main__":
    main()
