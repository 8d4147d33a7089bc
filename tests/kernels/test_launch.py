"""Launching again what was compiled: the facts of a launch, and that equal facts do not ask Triton twice.

The kernel is a stand-in that counts: a real one needs a GPU, where every test of the Triton kernels goes this way.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from regard.kernels.gpu.launch import Launcher, fact


class Kernel:
    """Takes x, n and the constant BLOCK; counts look-ups and records launches."""

    arg_names = ("x", "n", "BLOCK")
    params = tuple(SimpleNamespace(is_constexpr=c) for c in (False, False, True))

    def __init__(self):
        self.compiled, self.ran = 0, []

    def __getitem__(self, grid):
        def compile_and_run(x, n, BLOCK, **options):
            self.compiled += 1
            self.ran.append((grid, n, BLOCK))
            return self._Compiled(self)

        return compile_and_run

    class _Compiled:
        def __init__(self, kernel):
            self.kernel = kernel

        def __getitem__(self, grid):
            return lambda x, n, BLOCK: self.kernel.ran.append((grid, n, BLOCK))


@pytest.fixture(autouse=True)
def one_device(monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)


def test_equal_facts_are_compiled_once():
    kernel, x = Kernel(), torch.zeros(8)
    launch = Launcher(kernel)
    launch[(2,)](x, 32, BLOCK=4, num_warps=4)
    launch[(3,)](x, n=48, BLOCK=4, num_warps=4)
    assert kernel.compiled == 1
    assert kernel.ran == [((2,), 32, 4), ((3, 1, 1), 48, 4)]


@pytest.mark.parametrize(
    "other",
    [
        {"n": 33},
        {"n": 1},
        {"n": 2**31},
        {"BLOCK": 8},
        {"num_warps": 8},
        {"x": torch.zeros(8)[1:]},
        {"x": torch.zeros(8, dtype=torch.float64)},
        {"x": None},
    ],
    ids=lambda other: f"{next(iter(other))}",
)
def test_other_facts_are_compiled_anew(other):
    kernel = Kernel()
    launch = Launcher(kernel)
    given = {"x": torch.zeros(8), "n": 32, "BLOCK": 4, "num_warps": 4}
    for call in (given, given | other, given, given | other):
        launch[(1,)](**call)
    assert kernel.compiled == 2 and len(kernel.ran) == 4


def test_facts_are_those_triton_uses():
    assert fact(17, True) == 17
    assert fact(2.5, False) is fact(3.5, False)
    assert fact(16, False) == fact(32, False) != fact(33, False)
    assert fact(-16, False) == fact(16, False)
