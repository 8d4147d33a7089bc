"""Time and memory against n and against d, with the exponents of the lines through them, on a CPU or a GPU.

    python benchmarks/sweeps.py [--quick] [--device cuda] [--json benchmarks/results/h200-sweeps.json]

`benchmarks/run.py` runs this on the CPU. A quadratic algorithm has exponent 2 in n; memory that grows like the inputs
has exponent 1. The textbook's formula goes only as far as its n × n × d numbers fit.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import _peers
import torch
from _measure import Contenders, added_memory, exponent, machine, medians

D, N, HEADS, MEMORY_HEADS = 64, 512, 8, 2
LENGTHS = (128, 256, 512, 1024, 2048, 4096)
DIMS = (16, 32, 64, 128, 256)
MEMORY_LENGTHS = (512, 1024, 2048, 4096, 8192)
GPU_N, GPU_HEADS = 2048, 16
GPU_LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
NAMES = ("additive", "relative", "SDPA dot", "additive eager")
LARGEST_TEXTBOOK = {"cpu": 2**28, "cuda": 2**32}  # numbers of its tensor: 1 and 16 GiB in float32
FITTED_FROM = 512  # shorter ones measure what a call costs, not what its work costs


def fits(name: str, heads: int, n: int, d: int, device: str) -> bool:
    return not name.endswith("eager") or heads * n * n * d <= LARGEST_TEXTBOOK[device]


def timed(contenders: Contenders, device: str, rounds: int) -> dict[str, float]:
    if device == "cpu":
        return medians(contenders, rounds, budget=10.0)
    from triton.testing import do_bench

    return {name: float(do_bench(f, return_mode="median")) for name, f in contenders.items()}


def time_sweep(
    over: str, values: tuple[int, ...], heads: int, n: int, dtype: torch.dtype, device: str, rounds: int
) -> dict[str, Any]:
    """Milliseconds of a forward pass at each value of n or d, None where a contender does not go."""
    ms: dict[str, list[float | None]] = {name: [] for name in NAMES}
    for value in values:
        shape = {"n": n, "d": D, over: value}
        data = _peers.inputs(heads, **shape, device=device, dtype=dtype)
        cases: Contenders = {}
        for name in NAMES:
            if fits(name, heads, shape["n"], shape["d"], device):
                made = _peers.contender(name, shape["d"], device)
                cases[name] = lambda made=made, data=data: made(*data)
        with torch.no_grad():
            found = timed(cases, device, rounds)
        for name in NAMES:
            ms[name].append(found.get(name))
        print(row(f"{over} {value}", ms, "ms", 2), flush=True)
    start = FITTED_FROM if over == "n" else 0
    result = {"over": over, "x": list(values), "heads": heads, "n": n, "d": D, "dtype": str(dtype)[6:], "ms": ms}
    return {**result, "exponents": exponents(values, ms, start)}


def memory_sweep(values: tuple[int, ...], names: tuple[str, ...], device: str) -> dict[str, Any]:
    """Bytes that forward and backward together add to the peak, at each n."""
    size: dict[str, list[float | None]] = {name: [] for name in names}
    for n in values:
        for name in names:
            size[name].append(peak(name, n, device) if fits(name, MEMORY_HEADS, n, D, device) else None)
        print(row(f"n {n}", size, "MiB", 1, 2**20), flush=True)
    result = {"over": "n", "x": list(values), "heads": MEMORY_HEADS, "d": D, "dtype": "float32", "bytes": size}
    return {**result, "exponents": exponents(values, size, 0)}


def peak(name: str, n: int, device: str) -> int | None:
    if device == "cpu":
        return added_memory(name, MEMORY_HEADS, n, D)
    run = _peers.trained(name, MEMORY_HEADS, n, D, device)
    run()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated() - before)


def exponents(x: tuple[int, ...], columns: dict[str, list[float | None]], start: int) -> dict[str, float | None]:
    """Of each column, from x = start on if three points remain there."""
    result = {}
    for name, y in columns.items():
        points = [(a, b) for a, b in zip(x, y, strict=True) if b]
        late = [p for p in points if p[0] >= start]
        points = late if len(late) >= 3 else points
        result[name] = exponent([p[0] for p in points], [p[1] for p in points])
    return result


def row(title: str, columns: dict[str, list[float | None]], unit: str, digits: int, scale: float = 1.0) -> str:
    cells = [f"{name} {'–' if y[-1] is None else f'{y[-1] / scale:.{digits}f}':>9}" for name, y in columns.items()]
    return f"  {title:8s} " + "   ".join(cells) + f"   {unit}"


def said(exponents: dict[str, float | None]) -> str:
    return "  exponent " + "   ".join(f"{name} {'–' if p is None else f'{p:.2f}':>9}" for name, p in exponents.items())


def run(device: str = "cpu", quick: bool = False) -> dict[str, Any]:
    """All sweeps; prints as it goes."""
    rounds = 2 if quick else 7
    heads, n, lengths = (HEADS, N, LENGTHS) if device == "cpu" else (GPU_HEADS, GPU_N, GPU_LENGTHS)
    dims, longer = DIMS, MEMORY_LENGTHS
    names: tuple[str, ...] = ("additive", "relative", "additive eager")
    if quick:
        n, lengths, dims, longer, names = 64, (64, 128), (16, 32), (512, 1024), ("additive",)
    times = []
    for dtype in (torch.float32,) if device == "cpu" else (torch.float32, torch.bfloat16):
        for over, values in (("n", lengths), ("d", dims)):
            print(f"\nForward against {over}, {device}, {str(dtype)[6:]}")
            times.append(time_sweep(over, values, heads, n, dtype, device, rounds))
            print(said(times[-1]["exponents"]))
    print(f"\nPeak memory of forward and backward against n, {MEMORY_HEADS} heads, d {D}, {device}, float32")
    memory = memory_sweep(longer, names, device)
    print(said(memory["exponents"]))
    return {"sweeps": times, "memory": [memory]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--json", type=Path, help="also write the figures here")
    args = parser.parse_args()
    torch.manual_seed(0)
    about = machine()
    if args.device != "cpu":
        about["gpu"] = torch.cuda.get_device_name()
    results = {"machine": about, **run(args.device, args.quick)}
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
