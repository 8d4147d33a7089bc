"""A dot product through regard.attend on a GPU, against PyTorch's own: 1.00 means no overhead, more is slower.

python benchmarks/gpu_dot.py [--out results.json]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
import torch.nn.functional as F

import regard
from regard.mask import Causal


def main() -> None:
    import triton

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()

    def ms(f: object) -> float:
        return float(triton.testing.do_bench(f, warmup=50, rep=300, return_mode="median"))

    rows = []
    for dtype in (torch.bfloat16, torch.float32):
        for heads, n, d in ((16, 512, 64), (16, 2048, 64), (64, 4096, 64), (32, 8192, 128)):
            q, k, v = (torch.randn(1, heads, n, d, device="cuda", dtype=dtype) for _ in range(3))
            plain = [ms(lambda: F.scaled_dot_product_attention(q, k, v)), ms(lambda: regard.attend(q, k, v))]
            causal = [
                ms(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)),
                ms(lambda: regard.attend(q, k, v, mask=Causal())),
            ]
            row = {"dtype": str(dtype), "heads": heads, "n": n, "d": d, "sdpa": plain[0], "regard": plain[1],
                   "sdpa causal": causal[0], "regard causal, guarded": causal[1]}  # fmt: skip
            rows.append(row)
            shape = f"{str(dtype)[6:]:9s} {heads} heads, n {n}, d {d}"
            ratio = f"SDPA {plain[0]:.4f} ms, regard {plain[1]:.4f} ({plain[0] / plain[1]:.3f}x)"
            print(f"{shape}: {ratio}; causal {causal[0]:.4f}, guarded {causal[1]:.4f}", flush=True)
    if args.out:
        machine = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__}
        args.out.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
