"""The calls that people make every day, against PyTorch's own attention in the same run: time, memory and host time.

    python benchmarks/everyday.py [--device cuda] [--quick] [--json benchmarks/results/everyday-cpu.json]

Every row has regard, forward and with backward, the peer of the same meaning (SDPA, on a GPU also compiled
FlexAttention) and, as the measure of all rows of a shape, SDPA's causal call. Host time is what a call costs before any
arithmetic counts: one head, 8 positions, processor time of one thread. On a CPU the type is float32, on a GPU bfloat16;
there, times are those of CUDA events around calls launched from Python.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from _measure import RESULTS, Contenders, machine, medians
from torch import Tensor

import regard
from regard.mask import Causal, Dense, Documents, Lengths, Mask, Window
from regard.score import Additive, ALiBi, Dot, Relative, Rotary, Score, Softcap

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


def attention(score: Score | None = None, mask: Mask | None = None, **options: Any) -> Attention:
    made = Dot() if score is None else score
    return lambda q, k, v: regard.attend(q, k, v, score=made, mask=mask, **options)


def sdpa(**options: Any) -> Attention:
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **options)


def rotated(n: int, d: int, like: Tensor) -> Attention:
    """Rotary positions as people write them by hand, then SDPA."""
    angle = torch.outer(torch.arange(n), 10000.0 ** (-torch.arange(0, d, 2) / d))
    cos, sin = (torch.cat((x, x), -1).to(like) for x in (angle.cos(), angle.sin()))

    def turn(x: Tensor) -> Tensor:
        one, two = x.chunk(2, -1)
        return x * cos + torch.cat((-two, one), -1) * sin

    return lambda q, k, v: F.scaled_dot_product_attention(turn(q), turn(k), v, is_causal=True)


def flex(mask: Callable[..., Tensor] | None, n: int, edit: Callable[..., Tensor] | None = None) -> Attention:
    """Compiled FlexAttention, with its block mask made beforehand."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    blocks = None if mask is None else create_block_mask(mask, None, None, n, n)
    compiled = torch.compile(flex_attention)
    return lambda q, k, v: compiled(q, k, v, score_mod=edit, block_mask=blocks)  # type: ignore[return-value]


def cases(heads: int, n: int, d: int, like: Tensor) -> dict[str, dict[str, Attention]]:
    """By name: regard's call and its peers."""
    device, size = like.device, n // 16
    ids, index = torch.arange(n, device=device) // size, torch.arange(n, device=device)
    near = (index <= index[:, None]) & (index > index[:, None] - size)
    short = torch.tensor([n - n // 4], device=device)
    dense = torch.rand(1, 1, n, n, device=device) < 0.5
    found: dict[str, dict[str, Attention]] = {
        "causal": {"regard": attention(mask=Causal()), "SDPA": sdpa(is_causal=True)},
        "rotary, causal": {"regard": attention(Rotary(Dot()), Causal()), "by hand + SDPA": rotated(n, d, like)},
        f"window {size}, causal": {
            "regard": attention(mask=Causal() & Window(size - 1, 0)),
            "SDPA, dense mask": sdpa(attn_mask=near),
        },
        f"documents of {size}, causal": {
            "regard": attention(mask=Causal() & Documents(ids)),
            "SDPA, dense mask": sdpa(attn_mask=(ids == ids[:, None]) & (index <= index[:, None])),
        },
        "lengths": {
            "regard": attention(mask=Lengths(short)),
            "SDPA, bool mask": sdpa(attn_mask=(index < short)[None, None, None]),
        },
        "dense mask": {"regard": attention(mask=Dense(dense)), "SDPA, same mask": sdpa(attn_mask=dense)},
        "softcap 50, causal": {"regard": attention(Softcap(Dot(), 50.0), Causal())},
        "sink, causal": {"regard": attention(mask=Causal(), sink=0.0)},
        "dropout 0.1, causal": {
            "regard": attention(mask=Causal(), dropout=0.1, seed=1),
            "SDPA, dropout 0.1": sdpa(is_causal=True, dropout_p=0.1),
        },
        "ALiBi, causal": {"regard": attention(Dot() + ALiBi(heads).to(device), Causal())},
        "Shaw ±16, causal": {"regard": attention(Relative(d, 16).to(like), Causal())},
        "additive": {"regard": attention(Additive(d, d, d).to(like))},
    }
    if device.type == "cuda":
        found[f"window {size}, causal"]["Flex"] = flex(lambda b, h, i, j: (j <= i) & (j > i - size), n)
        found[f"documents of {size}, causal"]["Flex"] = flex(lambda b, h, i, j: (ids[i] == ids[j]) & (j <= i), n)
        found["softcap 50, causal"]["Flex"] = flex(
            lambda b, h, i, j: j <= i, n, lambda s, b, h, i, j: 50 * torch.tanh(s / 50)
        )
    return found


def inputs(heads: int, n: int, d: int, device: str, dtype: torch.dtype) -> list[Tensor]:
    return [torch.randn(1, heads, n, d, device=device, dtype=dtype, requires_grad=True) for _ in range(3)]


def run(heads: int, n: int, d: int, device: str, rounds: int) -> list[dict[str, Any]]:
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    data = inputs(heads, n, d, device, dtype)
    clock = medians if device == "cpu" else gpu_medians
    causal, rows = sdpa(is_causal=True), []
    for name, peers in cases(heads, n, d, data[0].detach()).items():
        contenders = {**peers, "SDPA causal": causal}
        with torch.no_grad():
            forward = clock({peer: lambda f=f: f(*data) for peer, f in contenders.items()}, rounds)
        both = clock({peer: backward(f, data) for peer, f in contenders.items()}, rounds)
        row: dict[str, Any] = {"what": name, "heads": heads, "n": n, "d": d, "forward": forward, "both": both}
        row["kernel"] = kernel_of(peers["regard"], data)
        if device == "cuda":
            row["added MiB"] = added_on_gpu(peers["regard"], data)
        rows.append(row)
        print(line(row), flush=True)
    return rows


def backward(f: Attention, data: list[Tensor]) -> Callable[[], object]:
    def call() -> object:
        out = f(*data)
        return torch.autograd.grad(out, data, torch.ones_like(out))

    return call


def line(row: dict[str, Any]) -> str:
    def ms(which: str) -> str:
        ours = row[which]["regard"]
        return f"{ours:9.2f}  " + "  ".join(f"{p} {t / ours:.2f}×" for p, t in row[which].items() if p != "regard")

    return f"{row['what']:28s} {row['kernel']:14s} forward {ms('forward')}\n{'':43s} both    {ms('both')}"


def kernel_of(f: Attention, data: list[Tensor]) -> str:
    """The kernel that a call runs."""
    found: list[str] = []
    original, regard.attend = regard.attend, lambda *args, **options: found.append(regard.plan(*args, **options).kernel)
    try:
        f(*data)
    finally:
        regard.attend = original
    return found[0]


def gpu_medians(contenders: Contenders, rounds: int) -> dict[str, float]:
    """Median milliseconds by CUDA events around ten calls each, in turn."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for f in contenders.values():
        f()
    for _ in range(rounds):
        for name, f in contenders.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            f()
            start.record()
            for _ in range(10):
                f()
            end.record()
            torch.cuda.synchronize()
            times[name].append(start.elapsed_time(end) / 10)
    return {name: sorted(t)[len(t) // 2] for name, t in times.items()}


def added_on_gpu(f: Attention, data: list[Tensor]) -> float:
    """MiB beyond inputs and output of a forward pass at its peak."""
    with torch.no_grad():
        out = f(*data)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        f(*data)
        return (torch.cuda.max_memory_allocated() - before - out.numel() * out.element_size()) / 2**20


# --- host time ---


def host_times(device: str, calls: int) -> dict[str, float]:
    """Microseconds of processor time of a tiny call, least of five rounds; SDPA's first."""
    q, k, v = (x.detach() for x in inputs(1, 8, 16, device, torch.float32))
    lengths = torch.tensor([5], device=device)
    work = {
        "SDPA, causal": sdpa(is_causal=True),
        "dot": attention(),
        "causal": attention(mask=Causal()),
        "lengths": attention(mask=Lengths(lengths)),
        "window": attention(mask=Causal() & Window(3, 0)),
        "rotary": attention(Rotary(Dot()), Causal()),
        "ALiBi": attention(Dot() + ALiBi(1).to(device), Causal()),
        "additive": attention(Additive(16, 16, 16).to(device)),
        "softcap": attention(Softcap(Dot(), 50.0), Causal()),
        "dropout": attention(mask=Causal(), dropout=0.1, seed=1),
    }
    with torch.no_grad():
        return {name: min(host_time(f, (q, k, v), calls) for _ in range(5)) for name, f in work.items()}


def host_time(f: Attention, data: tuple[Tensor, ...], calls: int) -> float:
    f(*data)
    start = time.process_time()
    for _ in range(calls):
        f(*data)
    return 1e6 * (time.process_time() - start) / calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--json", type=Path, nargs="?", const=True, help="write the figures there")
    args = parser.parse_args()
    torch.manual_seed(0)
    about = machine()
    if args.device == "cuda":
        about["gpu"] = torch.cuda.get_device_name()
    print(
        f"{about.get('gpu', about['cpu'])}, torch {about['torch']}; milliseconds, and the peers' as multiples of them"
    )
    shapes = [(2, 256, 16)] if args.quick else [(4, 4096, 64)] if args.device == "cpu" else [(16, 8192, 64)]
    rows = [row for shape in shapes for row in run(*shape, args.device, 2 if args.quick else 7)]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # processor time of more would count those that wait
    host = host_times(args.device, 20 if args.quick else 1000)
    torch.set_num_threads(threads)
    print("host time of a call, µs: " + "  ".join(f"{name} {t:.0f}" for name, t in host.items()))
    if args.json:
        path = RESULTS / f"everyday-{args.device}.json" if args.json is True else args.json
        path.write_text(json.dumps({"machine": about, "rows": rows, "host": host}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
