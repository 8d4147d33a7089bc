"""All GPU benchmarks in turn, each in a process of its own; their figures go to benchmarks/results/. `make bench-gpu`.

    python benchmarks/gpu.py [--name h200] [--only additive,offset,dot,sweeps]

A benchmark that fails does not stop the others; the exit code says if any did.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

import torch
from _measure import RESULTS, ROOT

SCRIPTS = {
    "additive": ["gpu_additive.py"],
    "offset": ["gpu_offset.py", "--out"],
    "dot": ["gpu_dot.py", "--out"],
    "sweeps": ["sweeps.py", "--device", "cuda", "--json"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", help="begins the names of the files; default: the last word of the GPU's name")
    parser.add_argument("--only", default=",".join(SCRIPTS), help="which ones, in that order")
    args = parser.parse_args()
    unknown = set(args.only.split(",")) - set(SCRIPTS)
    if unknown:
        parser.error(f"--only knows {', '.join(SCRIPTS)}, not {', '.join(sorted(unknown))}")
    if not torch.cuda.is_available():
        sys.exit("benchmarks/gpu.py needs a CUDA GPU and sees none; for a CPU there is `make bench`")
    name = args.name or torch.cuda.get_device_name().split()[-1].lower()
    RESULTS.mkdir(exist_ok=True)
    failed = []
    for part in args.only.split(","):
        script, *options = SCRIPTS[part]
        start = time.perf_counter()
        print(f"\n=== {script}", flush=True)
        command = [sys.executable, str(ROOT / "benchmarks" / script), *options, str(RESULTS / f"{name}-{part}.json")]
        if subprocess.run(command, cwd=ROOT, check=False).returncode != 0:
            failed.append(script)
        print(f"=== {script}: {time.perf_counter() - start:.0f} s", flush=True)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
