"""Speed and memory on a CPU as ratios against named peers, measured side by side in one run. `make bench` runs it.

Peers: PyTorch's scaled_dot_product_attention (the same shape, a dot product; for relative position also with the dense
bias that it needs), the textbook formula in eager PyTorch, torch.compile of that, Keras' AdditiveAttention on its torch
backend, and the limit: the multiplications that cannot be saved, or the bytes that must be read, at the rate this
machine shows for a large matrix product or copy. Every row times all its contenders in turn, warm, several rounds, and
reports medians; the ratio is the peer's time over regard's, so more than 1 is faster than the peer (and the limit's
ratio is the share of it that is reached).

    python benchmarks/run.py [--quick] [--threads 1] [--only rows,offsets] [--json [benchmarks/results/cpu.json]]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _peers
import sweeps
import torch
import torch.nn.functional as F
from _measure import RESULTS, Contenders, ceilings, machine, medians
from _peers import Attention, agree, inputs, sdpa, textbook, with_backward

import regard
from regard.mask import Causal, Documents, Lengths
from regard.nn import Cache, KeyValues
from regard.score import Additive, ALiBi, Dot, Location, PerHead, Relative, Rotary, Score, T5Bias

Rows = list[dict[str, Any]]


def report(title: str, times: dict[str, float], rows: Rows, **more: object) -> None:
    ours = times["regard"]
    line = f"{title:52s} regard {ours:9.2f} ms"
    for name, ms in times.items():
        if name != "regard":
            line += f"   {name} {ms:9.2f} ms = {ms / ours:6.2f}×"
    print(line, flush=True)
    ratios = {name: ms / ours for name, ms in times.items() if name != "regard"}
    rows.append({"what": title, "ms": times, "ratio": ratios, **more})


def overhead(lengths: tuple[int, ...]) -> Rows:
    print("\nA dot product through regard.attend, against PyTorch's own (1.00× = no overhead)")
    rows: Rows = []
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
    return rows


def keras_peer(score: Additive) -> dict[str, Attention]:
    """Keras' layer, found to agree with regard; or nothing, and a line that says why."""
    found = _peers.keras_additive(score)
    if isinstance(found, str):
        print(f"(Keras is left out: {found})")
        return {}
    agree(found, _peers.fused(score), 8, 64)
    return {"Keras": found}


def against_textbook(n: int, compiled: bool, ceiling: dict[str, float]) -> Rows:
    print(f"\nOther scores against the textbook formula: 8 heads, n {n}, d 64, float32")
    additive = Additive(64, 64, 64)
    scores: dict[str, Score] = {
        "additive": additive,
        "relative (Shaw keys)": Relative(64, _peers.REACH),
        "dot + ALiBi": Dot() + ALiBi(8),
        "rotary": Rotary(Dot()),
        "per head: 4 dot, 4 additive": PerHead((4, Dot()), (4, Additive(64, 64, 64))),
    }
    rows: Rows = []
    data = inputs(8, n, 64)
    for name, score in scores.items():
        peers: dict[str, Attention] = {"regard": _peers.fused(score), "eager": textbook(score)}
        if compiled:
            torch._dynamo.reset()
            peers["compiled"] = torch.compile(textbook(score))
        peers |= keras_peer(additive) if score is additive else {}
        peers["SDPA dot"] = sdpa
        kind = {"additive": "additive", "relative (Shaw keys)": "relative"}.get(name)
        with torch.no_grad():
            times = medians({peer: lambda f=f: f(*data) for peer, f in peers.items()}, 7)
        report(f"{name}, forward", with_limit(times, kind, n, ceiling), rows)
        both = medians({peer: with_backward(f, *data) for peer, f in peers.items()}, 5)
        report(f"{name}, forward + backward", with_limit(both, kind, n, ceiling, backward=True), rows)
    return rows


def with_limit(
    times: dict[str, float], kind: str | None, n: int, ceiling: dict[str, float], backward: bool = False
) -> dict[str, float]:
    if kind is None:
        return times
    work = _peers.multiply_adds(kind, 8, n, 64, backward)
    return {**times, "limit": 1e3 * work / ceiling["multiply_adds_per_second"]}


def offsets(lengths: tuple[int, ...]) -> Rows:
    print("\nRelative position against a dense bias: 8 heads, d 64, float32; gradients of q, k, v and the table")
    scores: dict[str, Score] = {
        "relative": Relative(64, _peers.REACH),
        "dot + ALiBi": Dot() + ALiBi(8),
        "dot + T5": Dot() + T5Bias(8),
        "location": Location(64, _peers.REACH),
    }
    rows: Rows = []
    for n in lengths:
        data = inputs(8, n, 64)
        for name, score in scores.items():
            peers = {
                "regard": _peers.fused(score),
                "dense bias": _peers.sdpa_with_bias(score),
                "eager": textbook(score),
            }
            learned = list(score.parameters())
            with torch.no_grad():
                times = medians({peer: lambda f=f: f(*data) for peer, f in peers.items()}, 7)
            report(f"{name}, n {n}, forward", times, rows)
            both = {peer: with_backward(f, *data, parameters=learned) for peer, f in peers.items()}
            report(f"{name}, n {n}, forward + backward", medians(both, 5), rows)
    return rows


def per_head(n: int) -> Rows:
    print("\nDifferent scores per head, against the sum of the groups alone (1.00× = no overhead)")
    groups = [(4, Dot()), (4, Additive(64, 64, 64))]
    whole, data = PerHead(*groups), inputs(8, n, 64)
    halves = [[x[:, heads] for x in data] for heads in (slice(0, 4), slice(4, 8))]
    rows: Rows = []
    for backward in (False, True):
        parts = [(whole, data), *((score, half) for (_, score), half in zip(groups, halves, strict=True))]
        cases: Contenders = {}
        for name, (score, x) in zip(("regard", "dot", "additive"), parts, strict=True):
            f = _peers.fused(score)
            learned = list(score.parameters())
            cases[name] = with_backward(f, *x, parameters=learned) if backward else lambda f=f, x=x: f(*x)
        with torch.set_grad_enabled(backward):
            times = medians(cases, 15)
        what = f"4 dot, 4 additive, n {n}, forward{' + backward' * backward}"
        report(what, {"regard": times["regard"], "sum of the parts": times["dot"] + times["additive"]}, rows)
    return rows


def skipping(n: int) -> Rows:
    print("\nPacked sequences: empty tiles are skipped")
    score = Additive(64, 64, 32)
    q, k, v = inputs(2, n, 64)
    documents = Documents.packed(list(range(0, n + 1, n // 8)))
    cases: Contenders = {
        "regard": lambda: regard.attend(q, k, v, score=score, mask=documents),
        "without mask": lambda: regard.attend(q, k, v, score=score),
    }
    rows: Rows = []
    with torch.no_grad():
        report(f"additive, 2 heads, n {n}, 8 documents", medians(cases, 3), rows)
    return rows


def decode(n: int, ceiling: dict[str, float]) -> Rows:
    """One query against a cache of n keys. The limit reads the cache once: 2 d numbers per key and head."""
    print(f"\nDecoding: one query, a cache of {n} keys, 8 heads, d 64; the limit reads the cache once")
    q, (_, k, v) = torch.randn(1, 8, 1, 64), inputs(8, n, 64)
    limit = 1e3 * 4 * (k.numel() + v.numel()) / ceiling["bytes_per_second"]
    rows: Rows = []
    scores: dict[str, Score] = {"additive": Additive(64, 64, 64), "relative": Relative(64, _peers.REACH), "dot": Dot()}
    with torch.no_grad():
        for name, score in scores.items():
            known = Cache().append(KeyValues(score.cached_keys(k), v))
            cases: Contenders = {
                "regard": lambda: regard.attend(q, known.keys, known.values, score=score, offset=n - 1),
                "eager": lambda: textbook_step(score, q, k, v),
                "SDPA dot": lambda: sdpa(q, k, v),
            }
            report(f"{name}, one step", {**medians(cases, 25), "limit": limit}, rows, bytes=4 * 2 * k.numel())
    return rows


def textbook_step(score: Score, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(score(q, k, offset=k.shape[-2] - 1), -1) @ v


def measure(quick: bool, only: list[str] | None) -> dict[str, Any]:
    torch.manual_seed(0)
    about, ceiling = machine(), ceilings(quick)
    print(f"{about['cpu']}, {about['threads']} threads, {about['vectors']}, torch {about['torch']}, float32")
    print(
        f"ceilings: {ceiling['multiply_adds_per_second'] / 1e9:.0f} billion multiply-adds a second (matrix product), "
        f"{ceiling['bytes_per_second'] / 1e9:.1f} GB/s (copy, read and written)"
    )
    parts: dict[str, Callable[[], Any]] = {
        "overhead": lambda: overhead((128,) if quick else (512, 1024, 2048)),
        "rows": lambda: against_textbook(64 if quick else 512, not quick, ceiling),
        "offsets": lambda: offsets((128,) if quick else (1024, 2048)),
        "per head": lambda: per_head(64 if quick else 1024),
        "skipping": lambda: skipping(256 if quick else 2048),
        "decode": lambda: decode(512 if quick else 16384, ceiling),
    }
    results = {name: part() for name, part in parts.items() if only is None or name in only}
    more = sweeps.run(quick=quick) if only is None or "sweeps" in only else {}
    return {"machine": about, "ceilings": ceiling, **results, **more}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller sizes and no torch.compile, to see that it runs")
    parser.add_argument(
        "--json", type=Path, nargs="?", const=RESULTS / "cpu.json", help="also write the figures, here or there"
    )
    parser.add_argument("--threads", type=int, help="how many PyTorch may use")
    parser.add_argument("--only", help="some parts: overhead, rows, offsets, per head, skipping, decode, sweeps")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    start = time.perf_counter()
    results = measure(args.quick, args.only.split(",") if args.only else None)
    print(f"\n{time.perf_counter() - start:.0f} s")
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        print(f"written to {args.json}")


if __name__ == "__main__":
    main()
