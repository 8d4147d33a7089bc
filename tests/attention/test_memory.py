"""Peak memory of scores that PyTorch would need an n×n matrix for grows linearly, forward and backward."""

import math
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc"),
]
SCRIPT = """
import os
import torch, regard
from regard.score import Additive, ALiBi, Dot, Location, Relative, T5Bias

torch.set_num_threads(1)
made = {score}

def run(n):
    q, k, v = (torch.randn(1, 1, n, 8, requires_grad=True) for _ in range(3))
    regard.attend(q, k, v, score=made, backend={backend!r}).sum().backward()

def peak():  # of the process so far, in bytes; ru_maxrss would count the parent's too
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))

for n in {lengths}:
    if os.fork() == 0:  # each run begins with the memory of a process that has imported and done nothing
        run(256)
        before = peak()
        run(n)
        print(peak() - before, flush=True)
        os._exit(0)
    assert os.wait()[1] == 0
"""
LENGTHS = [2048, 4096, 8192]


def added_bytes(lengths, backend, score="Additive(8, 8, 8)"):
    """Bytes that a run of each length adds to the peak of a fresh process that has run a short one."""
    code = SCRIPT.format(lengths=lengths, backend=backend, score=score)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [int(line) for line in done.stdout.split()]


SCORES = {  # with the numbers per pair that a textbook keeps
    "Additive(8, 8, 8)": 8,
    "Relative(8, 16)": 1,
    "Dot() + ALiBi(1)": 1,
    "Dot() + T5Bias(1)": 1,
    "Location(8, 4)": 1,
}


@pytest.mark.parametrize("score", SCORES)
def test_forward_and_backward_in_linear_memory(score):
    used = added_bytes(LENGTHS, "auto", score)
    dense = [n * n * SCORES[score] * 4 for n in LENGTHS]
    floor = 2**23  # tiles and the allocator's grain, which do not grow
    exponent = math.log((used[-1] + floor) / (used[0] + floor)) / math.log(LENGTHS[-1] / LENGTHS[0])
    assert exponent < 1.3, used
    assert used[-1] < 64 * 2**20 and used[-1] < dense[-1] / 10, used


def test_the_measurement_sees_dense_memory():
    """The reference at a modest length, so that the test above could fail."""
    small, large = added_bytes([512, 2048], "reference")
    assert large > 2048 * 2048 * 8 * 4 and large / small > 8
