"""A dot product through regard.attend on a GPU, against PyTorch's own: 1.00 means no overhead, less is slower.

    python3 benchmarks/gpu_dot.py [--out results.json] [--limit seconds]

Forward times are medians of CUDA graphs replayed in turn, so that neither the host nor a falling clock is measured;
backward times are ``triton.testing.do_bench``'s, in turn, the best of three rounds. All in milliseconds. "host" is what
a call costs before the GPU has anything to do, in microseconds. With a mask ``attend`` also guards against NaN and Inf
in masked places, one pass over q, k and v, which SDPA does not; "guard" is what that pass takes.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.nn.functional as F
from _gpu import host_us, in_turn, replayed
from torch import Tensor

import regard
from regard.kernels import _guard
from regard.mask import Causal

HALF, FLOAT = torch.bfloat16, torch.float32
SHAPES = [  # dtype, heads, length, dims
    *((HALF, 16, n, 64) for n in (512, 1024, 2048, 4096, 8192, 16384)),
    (HALF, 64, 4096, 64),
    (HALF, 32, 8192, 128),
    (FLOAT, 16, 512, 64),
    (FLOAT, 16, 2048, 64),
    (FLOAT, 64, 4096, 64),
]
MEMORY = 4.0e12  # bytes per second that an H200 can be made to read and write


def bench(f: Callable[[], Any]) -> float:
    from triton.testing import do_bench

    return float(do_bench(f, warmup=10, rep=40, return_mode="median"))


def compare(sdpa: Callable[[], Tensor], attend: Callable[[], Tensor], leaves: list[Tensor], grad: Tensor) -> dict:
    """Forward without gradients, backward alone, and the host's share."""
    both = {"sdpa": sdpa, "attend": attend}
    with torch.no_grad():
        row = {f"{name}_fwd": ms for name, ms in in_turn(both).items()}
        row |= {f"{name}_host_us": min(host_us(f) for _ in range(2)) for name, f in both.items()}
    for _ in range(3):
        for name, f in both.items():
            out = f()
            backward = bench(lambda out=out: torch.autograd.grad(out, leaves, grad, retain_graph=True))
            row[f"{name}_bwd"] = min(row.get(f"{name}_bwd", 1e9), backward)
    for side in ("fwd", "bwd"):
        row[f"ratio_{side}"] = row[f"sdpa_{side}"] / row[f"attend_{side}"]
    return row


def measure(dtype: torch.dtype, heads: int, n: int, d: int) -> list[dict[str, Any]]:
    q, k, v, grad = (torch.randn(1, heads, n, d, device="cuda", dtype=dtype) for _ in range(4))
    leaves = [x.requires_grad_() for x in (q, k, v)]
    rows = []
    for causal in (False, True):
        mask = Causal() if causal else None
        row: dict[str, Any] = {"dtype": str(dtype)[6:], "heads": heads, "n": n, "d": d, "causal": causal}
        row |= compare(
            lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal),
            lambda: regard.attend(q, k, v, mask=mask),
            leaves,
            grad,
        )
        if causal:
            with torch.no_grad():
                row["guard"] = replayed(lambda: _guard.clean(q, v, [k], [slice(0, heads)]))
            row["guard_floor"] = 1e3 * 6 * q.numel() * q.element_size() / MEMORY
        rows.append(row)
        shape = f"{row['dtype']:9s} {heads:2d} heads n {n:5d} d {d:3d} causal={causal!s:5}"
        forward = f"fwd {row['sdpa_fwd']:.4f} / {row['attend_fwd']:.4f} ms ({row['ratio_fwd']:.3f}x)"
        backward = f"bwd {row['sdpa_bwd']:.4f} / {row['attend_bwd']:.4f} ({row['ratio_bwd']:.3f}x)"
        guard = f"; guard {row['guard']:.4f} (floor {row['guard_floor']:.4f})" if causal else ""
        host = f"host {row['sdpa_host_us']:.0f} / {row['attend_host_us']:.0f} µs"
        print(f"{shape}: SDPA / attend {forward}, {backward}, {host}{guard}", flush=True)
    return rows


def main() -> None:
    import triton

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/<gpu>-dot.json")
    parser.add_argument("--limit", type=float, default=110.0, help="seconds after which no further shape begins")
    args = parser.parse_args()
    begin = time.time()
    rows: list[dict[str, Any]] = []
    errors: list[str] = []
    for shape in SHAPES:
        if time.time() - begin > args.limit:
            print(f"{shape}: left out, time is up")
            continue
        try:
            rows += measure(*shape)
        except Exception as error:  # report it and go on
            errors.append(f"{shape}: {type(error).__name__}: {error}")
            print("FAILED", errors[-1][:500], flush=True)
    machine = {
        "gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__,
        "cuda": torch.version.cuda, "python": platform.python_version(), "date": time.strftime("%Y-%m-%d"),
    }  # fmt: skip
    gpu = machine["gpu"].split()[-1].lower()
    path = args.out or Path(__file__).parent / "results" / f"{gpu}-dot.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": machine, "rows": rows, "errors": errors}, indent=1) + "\n")
    print(f"{path}: {len(rows)} rows, {len(errors)} errors, {time.time() - begin:.0f} s")


if __name__ == "__main__":
    main()
