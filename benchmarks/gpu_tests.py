"""All tests of the GPU code on a GPU, in processes side by side, and a summary of them.

    python benchmarks/gpu_tests.py [--processes 12] [--seconds 240] [--out FILE]

Most of these tests are small and wait for Triton to compile, so they run in shards; those of full size run alone
afterwards. Needs pytest and hypothesis, and none of the other packages that the whole suite asks for.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILES = ["test_triton_additive", "test_triton_offset", "test_guard", "test_triton_loss"]
ALONE = ("full_size", "whole_loss", "grows_linearly", "repeat_to_the_bit")  # in the names of the large ones
PYTEST = [
    sys.executable,
    "-m",
    "pytest",
    "--noconftest",
    "-o",
    "addopts=",
    "-W",
    "ignore",
    "-q",
    "-p",
    "no:cacheprovider",
]


def collected() -> list[str]:
    names = [f"tests/{name}.py" for name in FILES]
    done = subprocess.run([*PYTEST, "--collect-only", *names], cwd=ROOT, capture_output=True, text=True)
    found = [line for line in done.stdout.splitlines() if "::" in line]
    if not found:
        raise SystemExit(f"no tests were found:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return found


def start(tests: list[str], folder: Path, name: str) -> subprocess.Popen[bytes]:
    (folder / name).write_text("\n".join(tests), encoding="utf-8")
    log = (folder / f"{name}.log").open("wb")
    return subprocess.Popen([*PYTEST, f"@{folder / name}"], cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)


def wait(running: list[subprocess.Popen[bytes]], seconds: float) -> int:
    """How many had to be stopped."""
    end, stopped = time.monotonic() + seconds, 0
    for process in running:
        try:
            process.wait(max(end - time.monotonic(), 1))
        except subprocess.TimeoutExpired:
            process.kill()
            stopped += 1
    return stopped


def counts(log: str) -> dict[str, int]:
    last = [line for line in log.splitlines() if re.search(r"\d+ (passed|failed|skipped|error)", line)][-1:]
    return {kind: int(n) for n, kind in re.findall(r"(\d+) (passed|failed|skipped|error)", last[0])} if last else {}


def summary(folder: Path, names: list[str]) -> str:
    total: dict[str, int] = {}
    wrong: list[str] = []
    for name in names:
        log = (folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")
        for kind, n in counts(log).items():
            total[kind] = total.get(kind, 0) + n
        wrong += [line[:200] for line in log.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return "\n".join([", ".join(f"{n} {kind}" for kind, n in total.items()) or "nothing came to an end", *wrong])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=240, help="for the shards; those run alone get as many")
    parser.add_argument("--out", type=Path, help="write the summary here, and all logs beside it")
    options = parser.parse_args()
    import torch
    import triton

    tests = collected()
    alone = [test for test in tests if any(part in test for part in ALONE)]
    small = [test for test in tests if test not in set(alone)]
    random.Random(0).shuffle(small)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        shards = [f"shard{i}" for i in range(options.processes)]
        running = [start(small[i :: options.processes], folder, name) for i, name in enumerate(shards)]
        stopped = wait(running, options.seconds)
        lines = [
            f"{torch.cuda.get_device_name(0) if torch.cuda.is_available() else 'no GPU: the interpreter'}, torch "
            f"{torch.__version__}, triton {triton.__version__}, {time.strftime('%Y-%m-%d')}; {' '.join(sys.argv)}",
            f"{len(small)} tests in {options.processes} processes ({stopped} stopped at {options.seconds:.0f} s):",
            summary(folder, shards),
        ]
        print("\n".join(lines), flush=True)
        stopped = wait([start(alone, folder, "alone")], options.seconds)
        lines += [f"{len(alone)} tests alone ({'stopped' if stopped else 'all run'}):", summary(folder, ["alone"])]
        print("\n".join(lines[-2:]), flush=True)
        if options.out:
            options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
            logs = "\n".join(
                (folder / f"{n}.log").read_text(encoding="utf-8", errors="replace") for n in [*shards, "alone"]
            )
            options.out.with_suffix(".log").write_text(logs[-8_000_000:], encoding="utf-8")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
