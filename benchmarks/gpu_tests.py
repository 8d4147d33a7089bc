"""All tests of the GPU code on a GPU, in processes side by side, and a summary of them.

    python benchmarks/gpu_tests.py [--processes 12] [--seconds 240] [--only offset] [--out FILE]
    python benchmarks/gpu_tests.py --again FILE.left        # those that failed or had no time, once more

Most of these tests are small and wait for Triton to compile, so they run in shards; those of full size run afterwards,
a few at a time. Needs pytest and hypothesis, and none of the other packages that the whole suite asks for. What has
come to an end is counted and kept even where the time runs out, and the names of the others are in FILE.left.
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
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILES = [
    "kernels/test_triton_additive",
    "kernels/test_triton_offset",
    "kernels/test_flex",
    "kernels/test_guard",
    "train/test_triton_loss",
    "kernels/test_cuda_graphs",
]
MARKED = ["tasks/test_guidance"]  # of these only what is marked `gpu`
LARGE = ("full_size", "whole_loss", "grows_linearly", "repeat_to_the_bit")  # in the names of the large ones
AT_ONCE = 3  # of the large ones: more of them have not enough memory
PYTEST = [
    sys.executable,
    "-m",
    "pytest",
    "--noconftest",
    "-o",
    "addopts=",
    "-W",
    "ignore",
    "-p",
    "no:cacheprovider",
]


def collected(only: str) -> list[str]:
    return found_in(FILES, only) + found_in(MARKED, only, "-m", "gpu")


def found_in(files: list[str], only: str, *options: str) -> list[str]:
    names = [f"tests/{name}.py" for name in files if only in name]
    if not names:
        return []
    command = [*PYTEST, "-q", "--collect-only", *options, *names]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    found = [line for line in done.stdout.splitlines() if "::" in line]
    if not found:
        raise SystemExit(f"no tests were found in {', '.join(names)}:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return found


def start(tests: list[str], folder: Path, name: str) -> subprocess.Popen[bytes]:
    (folder / name).write_text("\n".join(tests), encoding="utf-8")
    log = (folder / f"{name}.log").open("wb")
    return subprocess.Popen(
        [*PYTEST, "-v", "-rfE", f"@{folder / name}"], cwd=ROOT, stdout=log, stderr=subprocess.STDOUT
    )


def wait(running: list[subprocess.Popen[bytes]], seconds: float) -> None:
    """Until all have ended; those that take longer are stopped."""
    end = time.monotonic() + seconds
    for process in running:
        try:
            process.wait(max(end - time.monotonic(), 1))
        except subprocess.TimeoutExpired:
            process.kill()


def outcomes(log: str) -> dict[str, str]:
    """What came of each test, by the line that it prints when it is over."""
    found = re.findall(r"^(tests/\S+?::.*?) (PASSED|FAILED|SKIPPED|ERROR)\b", log, re.MULTILINE)
    return {test: kind.lower() for test, kind in found}


def run(tests: list[str], processes: int, seconds: float, folder: Path, name: str) -> tuple[str, str, list[str]]:
    """All of them in so many processes: what to say about it, the logs, and the tests that have not passed yet."""
    names = [f"{name}{i}" for i in range(processes)]
    wait([start(tests[i::processes], folder, part) for i, part in enumerate(names)], seconds)
    logs = "\n".join((folder / f"{part}.log").read_text(encoding="utf-8", errors="replace") for part in names)
    ended = outcomes(logs)
    total = Counter(ended.get(test, "not run in time") for test in tests)
    wrong = [line[:200] for line in logs.splitlines() if line.startswith(("FAILED", "ERROR"))]
    counts = ", ".join(f"{n} {kind}" for kind, n in total.items())
    said = "\n".join([f"{len(tests)} {name} tests in {processes} processes: {counts}", *wrong])
    print(said, flush=True)
    return said, logs, [test for test in tests if ended.get(test) not in ("passed", "skipped")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=240, help="for the small ones; the large ones get as many")
    parser.add_argument("--large-seconds", type=float, help="for the large ones, if not as many")
    parser.add_argument("--only", default="", help="files with this in their names")
    parser.add_argument("--again", type=Path, help="only the tests that this file names, a line each")
    parser.add_argument("--out", type=Path, help="write the summary here, and all logs beside it")
    options = parser.parse_args()
    import torch
    import triton

    tests = collected(options.only)
    if options.again:
        named = set(options.again.read_text(encoding="utf-8").splitlines())
        if unknown := sorted(named - set(tests)):
            print(f"{len(unknown)} of {options.again} are no tests any more: {', '.join(unknown[:5])} …", flush=True)
        tests = [test for test in tests if test in named]
    if not tests:
        raise SystemExit("no tests were found: look at --only and --again")
    large = [test for test in tests if any(part in test for part in LARGE)]
    small = [test for test in tests if test not in set(large)]
    random.Random(0).shuffle(small)
    where = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "no GPU: the interpreter"
    lines = [f"{where}, torch {torch.__version__}, triton {triton.__version__}, {time.strftime('%Y-%m-%d')}"]
    logs, left = "", []
    with tempfile.TemporaryDirectory() as place:
        for name, some, processes, seconds in (
            ("small", small, options.processes, options.seconds),
            ("large", large, AT_ONCE, options.large_seconds or options.seconds),
        ):
            if not some:
                continue
            said, log, others = run(some, min(processes, len(some)), seconds, Path(place), name)
            lines.append(said)
            logs, left = logs + log, left + others
            if options.out:
                options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
                options.out.with_suffix(".log").write_text(logs[-8_000_000:], encoding="utf-8")
                options.out.with_suffix(".left").write_text("".join(f"{t}\n" for t in left), encoding="utf-8")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
