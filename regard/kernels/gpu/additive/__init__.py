"""Additive attention on a GPU, fused, forward and backward, in O(n) memory.

float32 uses exact fractions, Σ_d w_d tanh(a_d + b_d) = Σ_d w_d − 2 Σ_d w_d / (1 + e^{2a_d} e^{2b_d}). The weight goes
into the denominator: with W = max|w|, u = w / W, a power of two c, A = e^{2a}, B = e^{2b} and, computed once per query,
α = c A / u and ω = c / u, a fraction is w / (1 + AB) = W c / y with y = ω + α B. Four share one reciprocal:

    1/y0 + 1/y1 + 1/y2 + 1/y3 = ((y0 + y1) y2 y3 + (y2 + y3) y0 y1) / (y0 y1 y2 y3),   12 operations in all

c keeps the products within float32's range (see ``setup``); weights are at least 2^-32 of the largest of their head.

Half precision runs on the tensor cores: tanh is a sum of M sines (``series``), sin(ω(a + b)) splits into sin·cos +
cos·sin, and the score becomes a dot product of 2·M·D features per query and per key. The device decides how many terms
the range of the data needs, so the host does not wait; beyond the reach of 16 terms, the fractions run.

For up to FEW queries, as in a decoding step, every key and value is read once: programs take parts of the keys, each
with its own softmax, and a second kernel combines them. This is exact in every dtype, with one exponential per sum.

Ranges, with R = max|a| + max|b|: the series reaches R = 26.65 for bfloat16 (error of tanh at most 0.004, less for
R < 10) and R = 23.7 for float16 (0.002). The fractions are exact for all numbers: four per reciprocal up to R = 20
(9.7 with near-zero weights), two up to R = 41 (30), one exponential per sum beyond.

Bounds of the fractions: an H200 has 132 multiprocessors, each issuing 4 instructions for 32 lanes per cycle, at 1.755
GHz. Per pair and dim, of the inner loops' machine code at d = 64, and the least time for 16 heads · 2048² · 64 of them:

    kernel                       instructions  multiply-add  reciprocals  loads   at least
    forward                              3.78           3.0         0.25   0.44    0.55 ms
    score_gradients                      3.78           3.0         0.25   0.44    0.55 ms
    pair_gradients, queries              5.97           4.5         0.50   0.19    0.87 ms
    pair_gradients, keys and w           6.56           5.5         0.50   0.19    0.95 ms

Softmax and the products with the values come on top. Loads are prefetched one tile ahead.

The device code is in ``_device``; ``_config`` has the block sizes, ``_arguments`` the arguments, ``_forward`` and
``_backward`` the launches. The workspace of the backward pass holds dS for as many heads and keys as fit into WORKSPACE
bytes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.kernels import operator
from regard.kernels._additive import readable, refuses_terms
from regard.kernels.gpu import limits
from regard.kernels.gpu.additive import _forward
from regard.kernels.gpu.additive._arguments import AdditiveArguments
from regard.kernels.gpu.additive._backward import WORKSPACE, Backward
from regard.kernels.gpu.additive._config import (
    FEW,
    TERMS,
    TOLERANCE,
    AdditiveConfig,
    RowTiles,
    Tiles,
    by_series,
    configure,
    pad_dim,
)
from regard.kernels.gpu.launch import on
from regard.score.terms import Problem

__all__ = [
    "NAME",
    "TOLERANCE",
    "WORKSPACE",
    "AdditiveConfig",
    "RowTiles",
    "Tiles",
    "TritonAdditive",
    "configure",
    "error_bound",
    "memory_bytes",
    "refuses",
    "run",
]

NAME = "triton_additive"
MOST_HIDDEN, MOST_VALUES = 512, 256


def refuses(problem: Problem) -> str | None:
    p, terms = problem, problem.terms
    if why := limits.refuses_device(p) or refuses_terms(terms) or limits.refuses(p):
        return why
    if terms.tanhs[0].a.shape[-1] > MOST_HIDDEN or p.v.shape[-1] > MOST_VALUES:
        return f"it takes at most {MOST_HIDDEN} hidden and {MOST_VALUES} value dims"
    return None


def memory_bytes(problem: Problem) -> int:
    """Bytes of the forward pass beyond its inputs: context, logsumexp, exponentials and features."""
    p = problem
    (tanh,) = p.terms.tanhs
    rows, keys = p.batch * p.heads * p.queries, p.batch * p.kv_heads * p.keys
    dims = pad_dim(tanh.a.shape[-1], 32)
    features = 4 * TERMS * dims if by_series(p) else 0
    return rows * (4 * p.v.shape[-1] + 4) + (rows + keys) * (4 * dims + features)


def error_bound(problem: Problem) -> float:
    """The error of each tanh, that is per unit of Σ|w| in the score."""
    return TOLERANCE[problem.dtype] if by_series(problem) else 0.0


def run(problem: Problem) -> tuple[Tensor, Tensor]:
    return operator.run(NAME, readable(problem, exponentials=lambda p: p.queries <= FEW))


class TritonAdditive:
    """The kernel behind the operator."""

    wide_out = True

    def __init__(self, config: AdditiveConfig | None = None) -> None:
        self.config = config

    def forward(self, p: Problem) -> tuple[Tensor, Tensor]:
        with on(p.device):
            config = self.config or configure(p)
            given = AdditiveArguments(p, config, config.forward_exact)
            out = torch.empty(p.batch, p.heads, p.queries, p.v.shape[-1], dtype=torch.float32, device=p.device)
            lse = torch.empty(p.batch, p.heads, p.queries, dtype=torch.float32, device=p.device)
            _forward.run(given, out, lse)
            return out, lse

    def backward(self, p: Problem, out: Tensor, lse: Tensor, grad: Tensor) -> Problem:
        with on(p.device):
            config = self.config or configure(p)
            given = AdditiveArguments(p, config, config.scores_exact)
            given.setup()
            grad = grad.to(p.dtype)  # lossless: it was cast from p.dtype to the wide dtype of the context
            return Backward(given, out.contiguous(), lse.contiguous(), grad.contiguous()).run()


operator.OPERATOR_KERNELS[NAME] = TritonAdditive()
