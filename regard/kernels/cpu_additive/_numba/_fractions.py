"""The arithmetic of additive scores: four fractions to a division, and their gradients."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic, overload

from regard.kernels.cpu_additive._numba._compile import FAST, loop

ROWS = 4  # queries that share loads of values


@intrinsic
def _power_of_two(typingctx: Any, n: Any) -> Any:
    """2^n for a whole number n, −126 … 127, by writing the exponent's bits."""

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
        # 2^n · e^r with |r| ≤ ln 2 / 2: Taylor to the sixth power, error below 2^-23; the compiler makes vectors of it.
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
    """A product of four denominators may be this large."""
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
    """Which groups of four dims need no comparison: those whose largest product cannot overflow."""
    for g in range(tame.shape[0]):
        product = 1.0
        for d in range(4 * g, 4 * g + 4):
            largest = a[0, d]
            for r in range(1, ROWS):
                largest = max(largest, a[r, d])
            product *= (1.0 + np.float64(largest) * np.float64(top[d])) * abs(np.float64(inverse[d]))
        tame[g] = not wide and product <= _largest(a.itemsize)


@loop(FAST)
def _add_fractions(
    s: Any, t: Any, a: Any, c: Any, bt: Any, inverse: Any, tame: Any, j0: int, count: int, wide: bool
) -> None:
    """s[j] += Σ_d 1/y_d of query a, and t[j] of query c, against keys j0 … j0 + count; ``inverse`` is 1/u."""
    one, limit, top = s.dtype.type(1), s.dtype.type(_limit(s.itemsize)), s.dtype.type(math.log(_limit(s.itemsize)))
    for d in range(0, inverse.shape[0], 4):
        w0, w1, w2, w3 = inverse[d], inverse[d + 1], inverse[d + 2], inverse[d + 3]
        b0, b1 = bt[d, j0 : j0 + count], bt[d + 1, j0 : j0 + count]
        b2, b3 = bt[d + 2, j0 : j0 + count], bt[d + 3, j0 : j0 + count]
        if wide:
            for row, sums in ((a, s), (c, t)):
                a0, a1, a2, a3 = row[d], row[d + 1], row[d + 2], row[d + 3]
                for j in range(count):
                    y0, y1 = (_exp(min(a0 + b0[j], top)) + one) * w0, (_exp(min(a1 + b1[j], top)) + one) * w1
                    y2, y3 = (_exp(min(a2 + b2[j], top)) + one) * w2, (_exp(min(a3 + b3[j], top)) + one) * w3
                    y0, y1 = max(min(y0, limit), -limit), max(min(y1, limit), -limit)
                    y2, y3 = max(min(y2, limit), -limit), max(min(y3, limit), -limit)
                    p, q = y0 * y1, y2 * y3
                    sums[j] += ((y0 + y1) * q + (y2 + y3) * p) / (p * q)
            continue
        a0, a1, a2, a3 = a[d] * w0, a[d + 1] * w1, a[d + 2] * w2, a[d + 3] * w3
        c0, c1, c2, c3 = c[d] * w0, c[d + 1] * w1, c[d + 2] * w2, c[d + 3] * w3
        if tame[d // 4]:
            for j in range(count):
                z0, z1, z2, z3 = b0[j], b1[j], b2[j], b3[j]
                y0, y1, y2, y3 = a0 * z0 + w0, a1 * z1 + w1, a2 * z2 + w2, a3 * z3 + w3
                p, q = y0 * y1, y2 * y3
                s[j] += ((y0 + y1) * q + (y2 + y3) * p) / (p * q)
                y0, y1, y2, y3 = c0 * z0 + w0, c1 * z1 + w1, c2 * z2 + w2, c3 * z3 + w3
                p, q = y0 * y1, y2 * y3
                t[j] += ((y0 + y1) * q + (y2 + y3) * p) / (p * q)
        else:
            for j in range(count):
                z0, z1, z2, z3 = b0[j], b1[j], b2[j], b3[j]
                y0, y1 = max(min(a0 * z0 + w0, limit), -limit), max(min(a1 * z1 + w1, limit), -limit)
                y2, y3 = max(min(a2 * z2 + w2, limit), -limit), max(min(a3 * z3 + w3, limit), -limit)
                p, q = y0 * y1, y2 * y3
                s[j] += ((y0 + y1) * q + (y2 + y3) * p) / (p * q)
                y0, y1 = max(min(c0 * z0 + w0, limit), -limit), max(min(c1 * z1 + w1, limit), -limit)
                y2, y3 = max(min(c2 * z2 + w2, limit), -limit), max(min(c3 * z3 + w3, limit), -limit)
                p, q = y0 * y1, y2 * y3
                t[j] += ((y0 + y1) * q + (y2 + y3) * p) / (p * q)


@loop(FAST)
def _add_gradients(
    g: Any, e: Any, a: Any, c: Any, bt: Any, w: Any, tame: Any, j0: int, count: int, wide: bool, ga: Any, gc: Any,
    gbt: Any, gw: Any,
) -> None:  # fmt: skip
    """For two queries a, c and gradients g, e of their scores, with r = 1/x, tanh = 1 − 2r, 1 − tanh² = 4 r(1 − r):

    ga_d += 4 w_d Σ_j g·r(1−r),   gbt[d, j] += g·r(1−r),   gw_d += 2 Σ_j g·r. The four r's come from one division.
    """
    one, zero, two, four = g.dtype.type(1), g.dtype.type(0), g.dtype.type(2), g.dtype.type(4)
    for d in range(0, w.shape[0], 4):
        if not tame[d // 4]:
            _add_kept_gradients(g, a, bt, w, d, j0, count, wide, ga, gbt, gw)
            _add_kept_gradients(e, c, bt, w, d, j0, count, wide, gc, gbt, gw)
            continue
        a0, a1, a2, a3 = a[d], a[d + 1], a[d + 2], a[d + 3]
        c0, c1, c2, c3 = c[d], c[d + 1], c[d + 2], c[d + 3]
        b0, b1 = bt[d, j0 : j0 + count], bt[d + 1, j0 : j0 + count]
        b2, b3 = bt[d + 2, j0 : j0 + count], bt[d + 3, j0 : j0 + count]
        g0, g1 = gbt[d, j0 : j0 + count], gbt[d + 1, j0 : j0 + count]
        g2, g3 = gbt[d + 2, j0 : j0 + count], gbt[d + 3, j0 : j0 + count]
        sw0, sw1, sw2, sw3 = zero, zero, zero, zero
        sa0, sa1, sa2, sa3, sc0, sc1, sc2, sc3 = zero, zero, zero, zero, zero, zero, zero, zero
        for j in range(count):
            z0, z1, z2, z3 = b0[j], b1[j], b2[j], b3[j]
            x0, x1, x2, x3 = a0 * z0 + one, a1 * z1 + one, a2 * z2 + one, a3 * z3 + one
            p, q = x0 * x1, x2 * x3
            inverse = one / (p * q)
            q, p = q * inverse, p * inverse
            r0, r1, r2, r3 = x1 * q, x0 * q, x3 * p, x2 * p
            v0, v1, v2, v3 = r0 * g[j], r1 * g[j], r2 * g[j], r3 * g[j]
            t0, t1, t2, t3 = v0 - r0 * v0, v1 - r1 * v1, v2 - r2 * v2, v3 - r3 * v3
            sa0 += t0
            sa1 += t1
            sa2 += t2
            sa3 += t3
            x0, x1, x2, x3 = c0 * z0 + one, c1 * z1 + one, c2 * z2 + one, c3 * z3 + one
            p, q = x0 * x1, x2 * x3
            inverse = one / (p * q)
            q, p = q * inverse, p * inverse
            r0, r1, r2, r3 = x1 * q, x0 * q, x3 * p, x2 * p
            u0, u1, u2, u3 = r0 * e[j], r1 * e[j], r2 * e[j], r3 * e[j]
            sw0 += v0 + u0
            sw1 += v1 + u1
            sw2 += v2 + u2
            sw3 += v3 + u3
            u0, u1, u2, u3 = u0 - r0 * u0, u1 - r1 * u1, u2 - r2 * u2, u3 - r3 * u3
            sc0 += u0
            sc1 += u1
            sc2 += u2
            sc3 += u3
            g0[j] += t0 + u0
            g1[j] += t1 + u1
            g2[j] += t2 + u2
            g3[j] += t3 + u3
        ga[d] += four * w[d] * sa0
        ga[d + 1] += four * w[d + 1] * sa1
        ga[d + 2] += four * w[d + 2] * sa2
        ga[d + 3] += four * w[d + 3] * sa3
        gc[d] += four * w[d] * sc0
        gc[d + 1] += four * w[d + 1] * sc1
        gc[d + 2] += four * w[d + 2] * sc2
        gc[d + 3] += four * w[d + 3] * sc3
        gw[d] += two * sw0
        gw[d + 1] += two * sw1
        gw[d + 2] += two * sw2
        gw[d + 3] += two * sw3


@loop(FAST)
def _add_kept_gradients(
    g: Any, a: Any, bt: Any, w: Any, d0: int, j0: int, count: int, wide: bool, ga: Any, gbt: Any, gw: Any
) -> None:
    """The same for one query and four dims whose x must be kept within the limit, dim by dim."""
    one, limit, zero = g.dtype.type(1), g.dtype.type(_limit(g.itemsize)), g.dtype.type(0)
    top, two, four = g.dtype.type(math.log(_limit(g.itemsize))), g.dtype.type(2), g.dtype.type(4)
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
        ga[d] += four * w[d] * sa
        gw[d] += two * sw
