"""The arithmetic of additive scores: four fractions per division, and their gradients."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic, overload

from regard.kernels.cpu_additive._numba._compile import FAST, loop
from regard.kernels.cpu_additive._numba._vectors import BYTES, ROWS, fractions, gradients


@intrinsic
def _power_of_two(typingctx: Any, n: Any) -> Any:
    """2^n for an integer n, −126 … 127, by writing the exponent's bits."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        bits = context.get_value_type(types.int32)
        shifted = builder.shl(builder.add(args[0], bits(127)), bits(23))
        return builder.bitcast(shifted, context.get_value_type(types.float32))

    return types.float32(types.int32), codegen


def _exp(x: Any) -> Any:
    """e^x for x ≤ 88."""
    return math.exp(x)


@overload(_exp, jit_options={"fastmath": {"contract"}, "error_model": "numpy"})
def _exp_of(x: Any) -> Any:
    def exp64(x: Any) -> Any:
        return math.exp(x)

    def exp32(x: Any) -> Any:
        # 2^n · e^r with |r| ≤ ln 2 / 2: Taylor to the sixth power, error below 2^-23; the compiler vectorises it.
        x = max(x, np.float32(-87.0))
        n = np.int32(x * np.float32(1.44269504) + (np.float32(0.5) if x >= 0 else np.float32(-0.5)))
        f = np.float32(n)
        r = (x - f * np.float32(0.693359375)) + f * np.float32(2.12194440e-4)
        p = np.float32(1 / 720) * r + np.float32(1 / 120)
        p = p * r + np.float32(1 / 24)
        p = p * r + np.float32(1 / 6)
        p = p * r + np.float32(0.5)
        p = p * r + np.float32(1)
        p = p * r + np.float32(1)
        return p * _power_of_two(n)  # type: ignore[call-arg]

    return exp32 if x == types.float32 else exp64


@loop()
def _limit(itemsize: int) -> Any:
    return 2.0**30 if itemsize == 4 else 2.0**250


@loop()
def _largest(itemsize: int) -> Any:
    """The bound on a product of four denominators."""
    return 2.0**120 if itemsize == 4 else 2.0**1000


@loop(FAST)
def _query(a: Any, wide: bool, out: Any) -> None:
    """A = e^{2a}, or 2a; dims beyond a's stay 0."""
    if wide:
        for d in range(a.shape[0]):
            out[d] = a[d] + a[d]
    else:
        for d in range(a.shape[0]):
            out[d] = _exp(a[d] + a[d])


@loop()
def _find_tame(a: Any, inverse: Any, top: Any, wide: bool, tame: Any) -> None:
    """The groups of four dims that need no clamp: their largest product cannot overflow."""
    for g in range(tame.shape[0]):
        product = 1.0
        for d in range(4 * g, 4 * g + 4):
            largest = a[0, d]
            for r in range(1, ROWS):
                largest = max(largest, a[r, d])
            product *= (1.0 + np.float64(largest) * np.float64(top[d])) * abs(np.float64(inverse[d]))
        tame[g] = not wide and product <= _largest(a.itemsize)


@loop(FAST)
def _scale(a: Any, inverse: Any, out: Any) -> None:
    """out[r, d] = A/u."""
    for r in range(ROWS):
        for d in range(inverse.shape[0]):
            out[r, d] = a[r, d] * inverse[d]


@loop()
def _sum_fractions(
    s: Any, rows: int, a: Any, scaled: Any, bt: Any, inverse: Any, tame: Any, j0: int, count: int, wide: bool
) -> None:
    """s[r, j] = Σ_d 1/y_d of queries a[r] against keys j0 … j0 + count; ``inverse`` is 1/u, ``scaled`` A/u."""
    done = 0
    if tame.all():
        fractions(s, scaled, inverse, bt, j0, count, inverse.shape[0])
        done = count - count % (BYTES // s.itemsize)
    for r in range(rows):
        if done < count:
            _sum_kept_fractions(s[r, done:count], a[r], bt, inverse, j0 + done, wide)


@loop(FAST)
def _sum_kept_fractions(s: Any, a: Any, bt: Any, inverse: Any, j0: int, wide: bool) -> None:
    """The same for one query, with y clamped to the limit."""
    one, limit, top = s.dtype.type(1), s.dtype.type(_limit(s.itemsize)), s.dtype.type(math.log(_limit(s.itemsize)))
    count = s.shape[0]
    for j in range(count):
        s[j] = 0
    for d in range(0, inverse.shape[0], 4):
        w0, w1, w2, w3 = inverse[d], inverse[d + 1], inverse[d + 2], inverse[d + 3]
        b0, b1 = bt[d, j0 : j0 + count], bt[d + 1, j0 : j0 + count]
        b2, b3 = bt[d + 2, j0 : j0 + count], bt[d + 3, j0 : j0 + count]
        a0, a1, a2, a3 = a[d], a[d + 1], a[d + 2], a[d + 3]
        if wide:
            for j in range(count):
                y0, y1 = (_exp(min(a0 + b0[j], top)) + one) * w0, (_exp(min(a1 + b1[j], top)) + one) * w1
                y2, y3 = (_exp(min(a2 + b2[j], top)) + one) * w2, (_exp(min(a3 + b3[j], top)) + one) * w3
                y0, y1 = max(min(y0, limit), -limit), max(min(y1, limit), -limit)
                y2, y3 = max(min(y2, limit), -limit), max(min(y3, limit), -limit)
                p, q = y0 * y1, y2 * y3
                s[j] += ((y0 + y1) * q + (y2 + y3) * p) / (p * q)
            continue
        a0, a1, a2, a3 = a0 * w0, a1 * w1, a2 * w2, a3 * w3
        for j in range(count):
            y0, y1 = max(min(a0 * b0[j] + w0, limit), -limit), max(min(a1 * b1[j] + w1, limit), -limit)
            y2, y3 = max(min(a2 * b2[j] + w2, limit), -limit), max(min(a3 * b3[j] + w3, limit), -limit)
            p, q = y0 * y1, y2 * y3
            s[j] += ((y0 + y1) * q + (y2 + y3) * p) / (p * q)


@loop()
def _add_gradients(
    g: Any, rows: int, a: Any, bt: Any, tame: Any, j0: int, count: int, wide: bool, ga: Any, gbt: Any, gw: Any
) -> None:
    """For queries a[r] and gradients g[r] of their scores, with r = 1/x, tanh = 1 − 2r, 1 − tanh² = 4 r(1 − r):

    ga[r, d] += Σ_j g·r(1−r),   gbt[d, j] += g·r(1−r),   gw_d += Σ_j g·r. Four dims stay in the cache for all queries.
    """
    whole = count - count % (BYTES // g.itemsize)
    for d in range(0, bt.shape[0], 4):
        done = whole if tame[d // 4] else 0
        for r in range(rows):
            gradients(g, a, bt, ga, gbt, gw, r, d, j0, done)
            if done < count:
                _add_kept_gradients(g[r, done:count], a[r], bt, d, j0 + done, wide, ga[r], gbt, gw)


@loop(FAST)
def _add_kept_gradients(g: Any, a: Any, bt: Any, d0: int, j0: int, wide: bool, ga: Any, gbt: Any, gw: Any) -> None:
    """The same for one query and four dims, dim by dim, with x clamped to the limit."""
    one, limit, zero = g.dtype.type(1), g.dtype.type(_limit(g.itemsize)), g.dtype.type(0)
    top, count = g.dtype.type(math.log(_limit(g.itemsize))), g.shape[0]
    for d in range(d0, d0 + 4):
        b0, g0, a0 = bt[d, j0 : j0 + count], gbt[d, j0 : j0 + count], a[d]
        sa, sw = zero, zero
        for j in range(count):
            x = _exp(min(a0 + b0[j], top)) + one if wide else min(a0 * b0[j] + one, limit)
            r = one / x
            v = r * g[j]
            t = v - r * v
            sw += v
            sa += t
            g0[j] += t
        ga[d] += sa
        gw[d] += sw
