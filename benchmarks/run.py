"""Speed and memory on a CPU as ratios against named peers, measured side by side in one run. `make bench` runs it.

Peers: PyTorch's scaled_dot_product_attention (the same shape, a dot product), the textbook formula in eager PyTorch,
torch.compile of that, Keras' AdditiveAttention on its torch backend, and the limit: the multiplications that cannot be
saved, or the bytes that must be read, at the rate this machine shows for a large matrix product or copy. Every row
times all its contenders in turn, several rounds, and reports medians; the ratio is the peer's time over regard's, so
more than 1 is faster than the peer (and the limit's ratio is the share of it that is reached).

    python benchmarks/run.py [--quick] [--json [benchmarks/results/cpu.json]]
"""

from __future__ import annotations

import argparse
import json
import time
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
from regard.score import Additive, ALiBi, Dot, PerHead, Relative, Rotary, Score

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
            known = Cache().append(KeyValues(score.keys(k), v))
            cases: Contenders = {
                "regard": lambda: regard.attend(q, known.keys, known.values, score=score, offset=n - 1),
                "eager": lambda: textbook_step(score, q, k, v),
                "SDPA dot": lambda: sdpa(q, k, v),
            }
            report(f"{name}, one step", {**medians(cases, 25), "limit": limit}, rows, bytes=4 * 2 * k.numel())
    return rows


def textbook_step(score: Score, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(score(q, k, offset=k.shape[-2] - 1), -1) @ v


def measure(quick: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    about, ceiling = machine(), ceilings(quick)
    print(f"{about['cpu']}, {about['threads']} threads, {about['vectors']}, torch {about['torch']}, float32")
    print(
        f"ceilings: {ceiling['multiply_adds_per_second'] / 1e9:.0f} billion multiply-adds a second (matrix product), "
        f"{ceiling['bytes_per_second'] / 1e9:.1f} GB/s (copy, read and written)"
    )
    return {
        "machine": about,
        "ceilings": ceiling,
        "overhead": overhead((128,) if quick else (512, 1024, 2048)),
        "rows": against_textbook(64 if quick else 512, not quick, ceiling),
        "skipping": skipping(256 if quick else 2048),
        "decode": decode(512 if quick else 16384, ceiling),
        **sweeps.run(quick=quick),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller sizes and no torch.compile, to see that it runs")
    parser.add_argument(
        "--json", type=Path, nargs="?", const=RESULTS / "cpu.json", help="also write the figures, here or there"
    )
    args = parser.parse_args()
    start = time.perf_counter()
    results = measure(args.quick)
    print(f"\n{time.perf_counter() - start:.0f} s")
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        print(f"written to {args.json}")


if __name__ == "__main__":
    main()
