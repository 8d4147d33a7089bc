"""Peak memory of additive attention grows linearly with the length, forward and backward."""

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
import torch, regard
from regard.score import Additive

torch.set_num_threads(1)
made = Additive(8, 8, 8)

def run(n):
    q, k, v = (torch.randn(1, 1, n, 8, requires_grad=True) for _ in range(3))
    regard.attend(q, k, v, score=made, backend={backend!r}).sum().backward()

def peak():  # of the process so far, in bytes; ru_maxrss would count the parent's too
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))

run(256)
before = peak()
run({n})
print(peak() - before)
"""
LENGTHS = [2048, 4096, 8192]


def added(n, backend):
    """Bytes that the run of length n adds to the peak of a fresh process that has run a short one."""
    code = SCRIPT.format(n=n, backend=backend)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_additive_forward_and_backward_in_linear_memory():
    used = [added(n, "auto") for n in LENGTHS]
    dense = [n * n * 8 * 4 for n in LENGTHS]  # tanh of every pair and hidden dim, once
    floor = 2**23  # tiles and the allocator's grain, which do not grow
    exponent = math.log((used[-1] + floor) / (used[0] + floor)) / math.log(LENGTHS[-1] / LENGTHS[0])
    assert exponent < 1.3, used
    assert used[-1] < 64 * 2**20 and used[-1] < dense[-1] / 30, used


def test_the_measurement_sees_dense_memory():
    """The reference at a modest length, so that the test above could fail."""
    small, large = (added(n, "reference") for n in (512, 2048))
    assert large > 2048 * 2048 * 8 * 4 and large / small > 8
