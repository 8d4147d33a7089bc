"""The scores of a block of queries and keys, by fractions or by features, plus the other terms."""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from regard.kernels.gpu._pieces import INF, INTERPRETED, LOG2E
from regard.kernels.gpu.additive._device._numbers import _inverse

LIMIT = tl.constexpr(30.0)  # log2 of the clamp of 1 + AB: beyond it tanh is 1 to the last bit of float32
REACH = tl.constexpr(20.0)  # max|a| + max|b| up to which products of two 1 + AB do not overflow
SMALLEST = tl.constexpr(2.0**-32)  # the least weight relative to the largest of its head
TERMS = tl.constexpr(16)  # the most terms of the series
OMEGA = tl.constexpr(16)  # the indices of frequencies and coefficients in setting
COEFFICIENT = tl.constexpr(32)


@triton.jit
def _denominator(x, y, omega, d, BM: tl.constexpr, BN: tl.constexpr):
    """y_d = c (1 + A_d B_d) / u_d of a tile."""
    return tl.load(x + d * BM)[:, None] * tl.load(y + d * BN)[None, :] + tl.load(omega + d)


@triton.jit
def _two(s, y0, y1):
    return s + (y0 + y1) * _inverse(y0 * y1)


@triton.jit
def _three(s, y0, y1, y2):
    p = y0 * y1
    return s + ((y0 + y1) * y2 + p) * _inverse(p * y2)


@triton.jit
def _four(s, y0, y1, y2, y3):
    p, q = y0 * y1, y2 * y3
    return s + ((y0 + y1) * q + (y2 + y3) * p) * _inverse(p * q)


@triton.jit
def _fractions(
    s, x, y, w, omega, joined, DP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, STEP: tl.constexpr,
    GROUP: tl.constexpr,
):  # fmt: skip
    """s + Σ_d 1 / y_d for pointers x [BM], y [BN] at d = 0, with ``joined`` (GROUP, or 2) fractions per reciprocal.

    If joined is 0, x and y hold a and b themselves, and s + Σ_d w_d / (1 + e^{2(a_d + b_d)}) is returned.
    """
    if joined == 0:
        for d in range(0, DP, 2):
            x0 = tl.load(x + d * BM)[:, None] + tl.load(y + d * BN)[None, :]
            x1 = tl.load(x + (d + 1) * BM)[:, None] + tl.load(y + (d + 1) * BN)[None, :]
            x0, x1 = _one_plus_exp(x0), _one_plus_exp(x1)
            s += (tl.load(w + d) * x1 + tl.load(w + d + 1) * x0) * _inverse(x0 * x1)
    elif joined == 2:
        for d in range(0, DP, 2):
            s = _two(s, _denominator(x, y, omega, d, BM, BN), _denominator(x, y, omega, d + 1, BM, BN))
    else:
        for d0 in range(0, DP, STEP):
            for u in tl.static_range(0, STEP, 8):
                d = d0 + u
                y0, y1 = _denominator(x, y, omega, d, BM, BN), _denominator(x, y, omega, d + 1, BM, BN)
                y2, y3 = _denominator(x, y, omega, d + 2, BM, BN), _denominator(x, y, omega, d + 3, BM, BN)
                if GROUP == 4:
                    s = _four(s, y0, y1, y2, y3)
                else:
                    s = _three(s, y0, y1, y2)
                y4, y5 = _denominator(x, y, omega, d + 4, BM, BN), _denominator(x, y, omega, d + 5, BM, BN)
                if GROUP == 3:
                    s = _three(s, y3, y4, y5)
                y6, y7 = _denominator(x, y, omega, d + 6, BM, BN), _denominator(x, y, omega, d + 7, BM, BN)
                if GROUP == 4:
                    s = _four(s, y4, y5, y6, y7)
                else:
                    s = _two(s, y6, y7)
    return s


@triton.jit
def _top(w):
    """The largest |w| of a head, or 1."""
    top = tl.max(tl.abs(w), 0)
    return tl.where((top > 0.0) & (top < INF), top, 1.0)


@triton.jit
def _unit(w, top, inside):
    """Weights u relative to the largest. u = 0 becomes the smallest, negligible u; padding becomes 1."""
    u = w / top
    u = tl.where(tl.abs(u) < SMALLEST, tl.where(u < 0.0, -SMALLEST, SMALLEST), u)
    return tl.where(inside, u, 1.0)


@triton.jit
def _weights(w, setting, D, DP: tl.constexpr):
    """The factor of Σ_d 1 / y_d (or of Σ_d w_d / (1 + AB)) in the score, and Σ_d w_d, from which it is subtracted."""
    d = tl.arange(0, 512)
    weights = tl.load(w + d, mask=d < DP, other=0.0)
    top = _top(weights)
    u = tl.where(d < DP, _unit(weights, top, d < D), 0.0)
    joined = tl.load(setting + 1) != 0.0
    factor = tl.where(joined, 2.0 * top * tl.load(setting + 2), 2.0)
    return factor, tl.where(joined, top * tl.sum(u, 0), tl.sum(weights, 0))


@triton.jit
def _lines(n: tl.constexpr):
    """Offsets of 4-byte numbers, one cache line apart."""
    return 32 * tl.arange(0, n)


@triton.jit
def _touch(touched, x, inside, zero):
    """Prefetch into the cache; ``zero`` is 0, but the compiler does not know that."""
    if not INTERPRETED:
        touched |= tl.load(x, mask=inside, other=0.0).to(tl.int32, bitcast=True) & zero
    return touched


@triton.jit
def _use(touched, x):
    """Never stores anything, but the compiler does not know that."""
    if not INTERPRETED:
        tl.store(x + tl.zeros_like(touched), touched.to(tl.float32), mask=touched != 0)


@triton.jit
def _one_plus_exp(x):
    """1 + e^{2x}, clamped; NaN stays NaN."""
    return 1.0 + tl.exp2(tl.minimum(x * (2 * LOG2E), LIMIT, propagate_nan=tl.PropagateNan.ALL))


@triton.jit
def _dots(x, y, width, BM: tl.constexpr, BN: tl.constexpr, STEP: tl.constexpr):
    """Σ_f x_f y_f for pointers x [BM, STEP], y [STEP, BN]."""
    s = tl.zeros([BM, BN], tl.float32)
    for f in range(0, width, STEP):
        s = tl.dot(tl.load(x + f), tl.load(y + f), s)
    return s


@triton.jit
def _scores(
    x, y, w, omega, factor, total, setting, bh, bk, i0, j0, LP, SP,
    SERIES: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, STEP: tl.constexpr,
    GROUP: tl.constexpr,
):  # fmt: skip
    """The tanh term of a tile."""
    i, j = tl.arange(0, BM), tl.arange(0, BN)
    if SERIES:
        F: tl.constexpr = 2 * TERMS * DP
        f = tl.arange(0, STEP)
        xs = x + (bh * LP + i0) * F + i[:, None] * F + f[None, :]
        ys = y + (bk * SP + j0) * F + j[None, :] * F + f[:, None]
        s = _dots(xs, ys, tl.load(setting).to(tl.int32) * (2 * DP), BM, BN, STEP) * tl.load(setting + 4)
    else:
        # Zero, computed by the tensor cores: so the compiler uses their layout, 2 × 16 pairs per thread, not 32 × 1.
        # The sums below then need a third of the loads, the softmax stays within four lanes, and p needs no exchange.
        zero = tl.load(setting + 48)
        left, right = tl.zeros([BM, 16], tl.float32) + zero, tl.zeros([16, BN], tl.float32) + zero
        s = tl.dot(left.to(tl.float16), right.to(tl.float16))
        xs, ys = x + (bh * LP + i0) * DP + i, y + (bk * SP + j0) * DP + j
        s = _fractions(s, xs, ys, w, omega + bh * DP, tl.load(setting + 1).to(tl.int32), DP, BM, BN, STEP, GROUP)
        s = total - factor * s
    return s


@triton.jit
def _other_terms(
    s, b, h, bh, bk, i, j, position, L, S, key, row, bias, bias_b, bias_h, bias_i, bias_j,
    table, table_b, table_h, table_i, reach, slope,
):  # fmt: skip
    """Add the key, bias and offset terms to a tile. ``row`` is NaN for queries that are not finite."""
    i, j = tl.minimum(i, L - 1), tl.minimum(j, S - 1)
    if key is not None:
        s += tl.load(key + bk * S + j)[None, :]
    if row is not None:
        s += tl.load(row + bh * L + i)[:, None]
    if bias is not None:
        s += tl.load(
            bias + b * bias_b + h * bias_h + i[:, None].to(tl.int64) * bias_i + j[None, :].to(tl.int64) * bias_j
        ).to(tl.float32)
    if table is not None:
        delta = j[None, :] - position[:, None]
        near = tl.minimum(tl.maximum(delta, -reach), reach)
        entry = b * table_b + h * table_h + i[:, None].to(tl.int64) * table_i + near + reach
        s += tl.load(table + entry).to(tl.float32)
        if slope is not None:
            s -= tl.load(slope + bh) * tl.abs(delta - near).to(tl.float32)
    return s
