"""The loops of cpu_additive, compiled by numba. Imported only when they run.

They release the GIL and are not parallel themselves: cpu_additive spreads tasks over threads.

A task is a few queries of one head. Keys come in blocks; the scores of one query against a block are a row s[j] of
numbers that the compiler turns into vectors. With A = e^{2a}, B = e^{2b} and x_d = 1 + A_d B_d,

    Σ_d w_d tanh(a_d + b_d) = Σ_d w_d − 2 Σ_d w_d / x_d

and with W = max |w|, u = w / W the weights go into the denominators, y_d = x_d / u_d = 1/u_d + (A_d/u_d) B_d:

    Σ_d w_d / x_d = W Σ_d 1/y_d,   1/y_0 + 1/y_1 + 1/y_2 + 1/y_3 = ((y_0+y_1) y_2y_3 + (y_2+y_3) y_0y_1) / y_0y_1y_2y_3

Four fractions share one division. |y| is at least 1; above 2^30 (2^250 in float64) its fraction is nothing beside W
to the last bit, so that y is kept at or below that, where four of them multiply without overflow. Where bounds on the
data say that they do anyway (``tame``), the comparison is left out. |u| is at least 2^-30 (2^-60) for the same reason.
Where e^{2a} or e^{2b} themselves would overflow (``wide``), x_d = 1 + exp(2a + 2b) is made for each pair.

Shapes: a [B, H, L, D], bt [B, K, D, S], w [B, H, D], v [B, K, S, Dv]; in bt and w, D is a multiple of four.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import intrinsic, overload

FAST = {"contract", "nsz", "reassoc", "arcp"}
OPTIONS: dict[str, Any] = {"nogil": True, "cache": True, "error_model": "numpy"}
ROWS = 4  # queries that share loads of values
EMPTY, FULL = -2, -1  # tile states; others are the index of the tile's own mask


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


@njit(**OPTIONS)
def _limit(itemsize: int) -> Any:
    return 2.0**30 if itemsize == 4 else 2.0**250


@njit(**OPTIONS)
def _largest(itemsize: int) -> Any:
    """A product of four denominators may be this large."""
    return 2.0**120 if itemsize == 4 else 2.0**1000


@njit(fastmath=FAST, **OPTIONS)
def keys(first: int, last: int, b: Any, bt: Any, top: Any, wide: bool) -> None:
    """B = e^{2b} (or 2b, if wide) with keys along the last dim, and its largest value per dim: units first … last."""
    kv_heads, n, dims = b.shape[1], b.shape[2], b.shape[3]
    rows = np.zeros((16, dims), bt.dtype)
    for unit in range(first, last):
        source, target, most = b[unit // kv_heads, unit % kv_heads], bt[unit // kv_heads, unit % kv_heads], top[unit]
        for j0 in range(0, n, 16):
            count = min(16, n - j0)
            for j in range(count):
                _query(source[j0 + j], wide, rows[j])
                row = rows[j]
                for d in range(dims):
                    most[d] = row[d] if row[d] > most[d] else most[d]
            for d in range(dims):
                line = target[d, j0 : j0 + count]
                for j in range(count):
                    line[j] = rows[j, d]


@njit(fastmath=FAST, **OPTIONS)
def _query(a: Any, wide: bool, out: Any) -> None:
    """A = e^{2a}, or 2a; dims beyond a's stay 0."""
    if wide:
        for d in range(a.shape[0]):
            out[d] = a[d] + a[d]
    else:
        for d in range(a.shape[0]):
            out[d] = _exp(a[d] + a[d])


@njit(**OPTIONS)
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


@njit(fastmath=FAST, **OPTIONS)
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


@njit(fastmath=FAST, **OPTIONS)
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


@njit(fastmath=FAST, **OPTIONS)
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


@njit(**OPTIONS)
def _mix(x: Any) -> Any:
    """The mixer of kernels/_dropout.py."""
    low = np.uint64(0xFFFFFFFF)
    x = x ^ (x >> np.uint64(16))
    x = (x * np.uint64(0x7FEB352D)) & low
    x = x ^ (x >> np.uint64(15))
    x = (x * np.uint64(0x846CA68B)) & low
    return x ^ (x >> np.uint64(16))


@njit(**OPTIONS)
def _row_key(seed: Any, batch: int, head: int, row: int) -> Any:
    low = np.uint64(0xFFFFFFFF)
    x = _mix((np.uint64(seed) & low) ^ _mix(np.uint64(seed) >> np.uint64(32)))
    x = _mix(x ^ _mix(np.uint64(batch) + np.uint64(0x9E3779B9)))
    x = _mix(x ^ _mix(np.uint64(head) + np.uint64(0x85EBCA6B)))
    return _mix(x ^ _mix(np.uint64(row) + np.uint64(0xC2B2AE35)))


@njit(**OPTIONS)
def _drop(p: Any, key: Any, threshold: Any, scale: Any, j0: int, count: int) -> None:
    """Zero the weights that dropout drops, and scale up the others."""
    factor = p.dtype.type(scale)
    for j in range(count):
        x = _mix(key ^ _mix(np.uint64(j0 + j) + np.uint64(0x27D4EB2F)))
        p[j] = p[j] * factor if x >= np.uint64(threshold) else p[j] * 0


@njit(fastmath=FAST, **OPTIONS)
def _add_terms(
    s: Any, j0: int, count: int, shift: Any, gain: Any, key: Any, bias: Any, table: Any, slope: Any, position: int
) -> None:
    """s[j] = shift − gain · s[j] + the offset, bias and key terms; arrays of size 0 stand for nothing."""
    for j in range(count):
        s[j] = shift - gain * s[j]
    if key.shape[0] > 0:
        for j in range(count):
            s[j] += key[j0 + j]
    if bias.shape[0] > 0:
        for j in range(count):
            s[j] += bias[j0 + j]
    if table.shape[0] > 0:
        reach = table.shape[0] // 2
        for j in range(count):
            delta = j0 + j - position
            near = min(max(delta, -reach), reach)
            s[j] += table[near + reach] - slope * abs(delta - near)


@njit(fastmath={"contract", "nsz"}, **OPTIONS)
def _hide(s: Any, state: int, masks: Any, row: int, count: int) -> None:
    if state >= 0:
        for j in range(count):
            if not masks[state, row, j]:
                s[j] = -np.inf


@njit(fastmath=FAST | {"nnan"}, **OPTIONS)
def _top(s: Any, count: int) -> Any:
    """The largest; NaN may be passed over, it stays in the sum."""
    top = s[0]
    for j in range(1, count):
        top = s[j] if s[j] > top else top
    return top


@njit(fastmath=FAST, **OPTIONS)
def _exponentials(s: Any, count: int, top: Any) -> Any:
    """s = e^{s − top}, with e^{−inf} = 0; returns the sum."""
    total = s.dtype.type(0)
    low = s.dtype.type(-86) if s.itemsize == 4 else s.dtype.type(-700)
    for j in range(count):
        x = s[j] - top
        y = _exp(x)
        y = s.dtype.type(0) if x < low else y
        y = x if x != x else y  # NaN stays NaN
        s[j] = y
        total += y
    return total


@njit(fastmath=FAST, **OPTIONS)
def _multiply_add(acc: Any, x: Any, y: Any, first: int, count: int, start: int, n: int) -> None:
    """acc[r, c] += Σ_j x[r, j] y[first + j, start + c] for ROWS rows r, j < count and c < n; four j at a time."""
    acc0, acc1, acc2, acc3 = acc[0], acc[1], acc[2], acc[3]
    j = 0
    while j + 4 <= count:
        x00, x01, x02, x03 = x[0, j], x[0, j + 1], x[0, j + 2], x[0, j + 3]
        x10, x11, x12, x13 = x[1, j], x[1, j + 1], x[1, j + 2], x[1, j + 3]
        x20, x21, x22, x23 = x[2, j], x[2, j + 1], x[2, j + 2], x[2, j + 3]
        x30, x31, x32, x33 = x[3, j], x[3, j + 1], x[3, j + 2], x[3, j + 3]
        at = first + j
        y0, y1 = y[at, start : start + n], y[at + 1, start : start + n]
        y2, y3 = y[at + 2, start : start + n], y[at + 3, start : start + n]
        for c in range(n):
            z0, z1, z2, z3 = y0[c], y1[c], y2[c], y3[c]
            acc0[c] += x00 * z0 + x01 * z1 + x02 * z2 + x03 * z3
            acc1[c] += x10 * z0 + x11 * z1 + x12 * z2 + x13 * z3
            acc2[c] += x20 * z0 + x21 * z1 + x22 * z2 + x23 * z3
            acc3[c] += x30 * z0 + x31 * z1 + x32 * z2 + x33 * z3
        j += 4
    while j < count:
        y0 = y[first + j, start : start + n]
        for c in range(n):
            acc0[c] += x[0, j] * y0[c]
            acc1[c] += x[1, j] * y0[c]
            acc2[c] += x[2, j] * y0[c]
            acc3[c] += x[3, j] * y0[c]
        j += 1


@njit(fastmath=FAST, **OPTIONS)
def _add_outer(acc: Any, x: Any, y: Any, count: int) -> None:
    """acc[j, c] += Σ_r x[r, j] y[r, c] for ROWS rows r and j < count."""
    y0, y1, y2, y3 = y[0], y[1], y[2], y[3]
    for j in range(count):
        x0, x1, x2, x3 = x[0, j], x[1, j], x[2, j], x[3, j]
        row = acc[j]
        for c in range(row.shape[0]):
            row[c] += (x0 * y0[c] + x1 * y1[c]) + (x2 * y2[c] + x3 * y3[c])


@njit(**OPTIONS)
def _scores(
    s: Any, j0: int, count: int, i0: int, i1: int, exps: Any, bt: Any, inverse: Any, tame: Any, shift: Any, gain: Any,
    key: Any, bias: Any, table: Any, slope: Any, positions: Any, tile: int, masks: Any, block_q: int, wide: bool,
) -> None:  # fmt: skip
    """The scores of queries i0 … i1 against a block of keys, two queries at a time."""
    _clear(s, count)
    for r in range(0, i1 - i0, 2):
        _add_fractions(s[r], s[r + 1], exps[r], exps[r + 1], bt, inverse, tame, j0, count, wide)
    for i in range(i0, i1):
        r = i - i0
        _add_terms(s[r], j0, count, shift, gain, key, bias[i], table[i], slope, positions[i])
        _hide(s[r], tile, masks, i % block_q, count)


@njit(fastmath=FAST, **OPTIONS)
def _clear(x: Any, count: int) -> None:
    """x[:, :count] = 0; numba's own slice assignment is slow."""
    for r in range(x.shape[0]):
        row = x[r]
        for j in range(count):
            row[j] = 0


@njit(fastmath=FAST, **OPTIONS)
def _take_rows(x: Any, i0: int, i1: int, out: Any) -> None:
    """out[r] = x[i0 + r], and zeros from i1 on."""
    _clear(out, out.shape[1])
    for i in range(i0, i1):
        source, target = x[i], out[i - i0]
        for c in range(target.shape[0]):
            target[c] = source[c]


@njit(**OPTIONS)
def _queries(a: Any, i0: int, i1: int, wide: bool, exps: Any) -> None:
    """Exponentials of ROWS queries; where there are fewer, the last one is repeated."""
    for r in range(ROWS):
        _query(a[min(i0 + r, i1 - 1)], wide, exps[r])


@njit(**OPTIONS)
def forward(
    tasks: Any, first: int, last: int, group: int, a: Any, bt: Any, top_b: Any, w: Any, inverse: Any, gain: Any, v: Any,
    key: Any, bias: Any, table: Any, slope: Any, positions: Any, state: Any, masks: Any, block_q: int, block_k: int,
    wide: bool, sink: Any, seed: Any, threshold: Any, keep: Any, head: int, out: Any, lse: Any,
) -> None:  # fmt: skip
    """Context and logsumexp of tasks first … last: (b, h, i0, i1), i1 − i0 ≤ ROWS, all in one block of queries."""
    s = np.zeros((ROWS, block_k), a.dtype)
    acc = np.zeros((ROWS, v.shape[3]), a.dtype)
    exps, tame = np.zeros((ROWS, w.shape[2]), a.dtype), np.zeros(w.shape[2] // 4, np.bool_)
    top, total = np.zeros(ROWS, a.dtype), np.zeros(ROWS, a.dtype)
    for t in range(first, last):
        b, h, i0, i1 = tasks[t]
        k, n = h // group, bt.shape[3]
        shift = w[b, h].sum()
        _queries(a[b, h], i0, i1, wide, exps)
        _find_tame(exps, inverse[b, h], top_b[b, k], wide, tame)
        _clear(acc, acc.shape[1])
        top[:], total[:] = sink[b, h], (0 if sink[b, h] == -np.inf else 1)
        for j0 in range(0, n, block_k):
            tile = state[b, h, i0 // block_q, j0 // block_k]
            if tile == EMPTY:
                continue
            count = min(block_k, n - j0)
            _scores(
                s, j0, count, i0, i1, exps, bt[b, k], inverse[b, h], tame, shift, gain[b, h], key[b, k], bias[b, h],
                table[b, h], slope[b, h], positions[b], tile, masks, block_q, wide,
            )  # fmt: skip
            for i in range(i0, i1):
                r = i - i0
                _accumulate(s[r], count, top, total, acc, r)
                if threshold > 0:
                    _drop(s[r], _row_key(seed[b], b, head + h, i), threshold, keep, j0, count)
            _clear(s[i1 - i0 :], count)
            _multiply_add(acc, s, v[b, k], j0, count, 0, acc.shape[1])
        for i in range(i0, i1):
            r = i - i0
            scale = a.dtype.type(0) if total[r] == 0 else a.dtype.type(1) / total[r]
            for c in range(acc.shape[1]):
                out[b, h, i, c] = acc[r, c] * scale
            lse[b, h, i] = -np.inf if total[r] == 0 else top[r] + math.log(total[r])


@njit(**OPTIONS)
def _accumulate(s: Any, count: int, top: Any, total: Any, acc: Any, r: int) -> None:
    """One step of the online softmax: s becomes e^{s − top} with the new top, what was summed before is rescaled."""
    new = max(top[r], _top(s, count))
    if new == -np.inf:
        s[:count] = 0
        return
    if new != top[r]:
        shrink = s.dtype.type(math.exp(top[r] - new))
        total[r] *= shrink
        for c in range(acc.shape[1]):
            acc[r, c] *= shrink
        top[r] = new
    total[r] += _exponentials(s, count, new)


# --- few queries, many keys ---


@njit(fastmath=FAST, **OPTIONS)
def _row_scores(s: Any, a: Any, w: Any, b: Any, j0: int, count: int, exponential: bool, wide: bool) -> None:
    """s[j] = Σ_d w_d / x_d of one query against keys as they lie, [S, D]: each is read once, a division per number."""
    one, top = s.dtype.type(1), s.dtype.type(math.log(_limit(s.itemsize)))
    most = s.dtype.type(86 if s.itemsize == 4 else 700)  # e^most is a number; beside any A here it makes a fraction 0
    for j in range(count):
        row, total = b[j0 + j], s.dtype.type(0)
        if wide:
            for d in range(row.shape[0]):
                y = math.log(row[d]) if exponential else row[d] + row[d]
                total += w[d] / (_exp(min(a[d] + y, top)) + one)
        elif exponential:
            for d in range(row.shape[0]):
                total += w[d] / (a[d] * row[d] + one)
        else:
            for d in range(row.shape[0]):
                total += w[d] / (a[d] * _exp(min(row[d] + row[d], most)) + one)
        s[j] = total


@njit(**OPTIONS)
def decode(
    first: int, last: int, chunks: int, chunk: int, group: int, a: Any, b_flat: Any, b_at: Any, exponential: bool,
    wide: bool, w: Any, v_flat: Any, v_at: Any, key: Any, bias: Any, table: Any, slope: Any, positions: Any, state: Any,
    masks: Any, block_k: int, n: int, dims: int, sink: Any, acc: Any, top: Any, total: Any,
) -> None:  # fmt: skip
    """Parts of context and softmax for all queries of units first … last: a unit is a chunk of one head's keys.

    ``gather`` puts the parts together. Rows are (head of the group, query); the sink is counted with the first chunk.
    """
    kv_heads, queries = b_at.shape[1], a.shape[2]
    s, exps = np.zeros((acc.shape[1], block_k), a.dtype), np.zeros((acc.shape[1], dims), a.dtype)
    gain = a.dtype.type(2)
    for unit in range(first, last):
        b, k, c = unit // chunks // kv_heads, unit // chunks % kv_heads, unit % chunks
        keys_of = b_flat[b_at[b, k] : b_at[b, k] + n * dims].reshape(n, dims)
        values = v_flat[v_at[b, k] : v_at[b, k] + n * acc.shape[2]].reshape(n, acc.shape[2])
        for r in range(group * queries):
            h = k * group + r // queries
            _query(a[b, h, r % queries], wide, exps[r])
            top[unit, r] = sink[b, h] if c == 0 else -np.inf
            total[unit, r] = 1 if c == 0 and sink[b, h] > -np.inf else 0
        for j0 in range(c * chunk, min(n, (c + 1) * chunk), block_k):
            count = min(block_k, n - j0)
            _clear(s, count)
            for r in range(group * queries):
                h, i = k * group + r // queries, r % queries
                tile = state[b, h, 0, j0 // block_k]
                if tile == EMPTY:
                    continue
                _row_scores(s[r], exps[r], w[b, h], keys_of, j0, count, exponential, wide)
                shift = w[b, h].sum()
                _add_terms(
                    s[r], j0, count, shift, gain, key[b, k], bias[b, h, i], table[b, h, i], slope[b, h], positions[b, i]
                )
                _hide(s[r], tile, masks, i, count)
                _accumulate(s[r], count, top[unit], total[unit], acc[unit], r)
            for r in range(0, acc.shape[1], ROWS):
                _multiply_add(acc[unit, r : r + ROWS], s[r : r + ROWS], values, j0, count, 0, acc.shape[2])


@njit(**OPTIONS)
def gather(chunks: int, group: int, acc: Any, top: Any, total: Any, out: Any, lse: Any) -> None:
    """Context and logsumexp from the parts of all chunks."""
    kv_heads, queries = out.shape[1] // group, out.shape[2]
    for b in range(out.shape[0]):
        for h in range(out.shape[1]):
            first = (b * kv_heads + h // group) * chunks
            for i in range(queries):
                r, most, whole = h % group * queries + i, -np.inf, 0.0
                for u in range(first, first + chunks):
                    most = top[u, r] if not top[u, r] <= most else most  # NaN stays
                out[b, h, i] = 0
                for u in range(first, first + chunks):
                    share = 0.0 if most == -np.inf else math.exp(top[u, r] - most)
                    whole += share * total[u, r]
                    for c in range(out.shape[3]):
                        out[b, h, i, c] += share * acc[u, r, c]
                for c in range(out.shape[3]):
                    out[b, h, i, c] = 0.0 if whole == 0 else out[b, h, i, c] / whole
                lse[b, h, i] = -np.inf if whole == 0 else most + math.log(whole)


# --- gradients ---


@njit(**OPTIONS)
def backward(
    first: int, last: int, splits: int, group: int, a: Any, bt: Any, top_b: Any, w: Any, inverse: Any, gain: Any,
    v: Any, key: Any, bias: Any, table: Any, slope: Any, positions: Any, state: Any, masks: Any, block_q: int,
    block_k: int, wide: bool, seed: Any, threshold: Any, keep: Any, head: int, vt: Any, lse: Any, delta: Any,
    grad: Any, ga: Any, gbt: Any, gw: Any, gv: Any, gkey: Any, gbias: Any, gtable: Any,
) -> None:  # fmt: skip
    """Gradients of units first … last: a unit is one share of the queries of all heads of one key/value head."""
    kv_heads, queries = bt.shape[1], a.shape[2]
    s, gp = np.zeros((ROWS, block_k), a.dtype), np.zeros((ROWS, block_k), a.dtype)
    rows = np.zeros((ROWS, v.shape[3]), a.dtype)
    exps, gexps = np.zeros((ROWS, w.shape[2]), a.dtype), np.zeros((ROWS, w.shape[2]), a.dtype)
    ones = np.ones(w.shape[2], a.dtype)
    tame, tame_x = np.zeros(w.shape[2] // 4, np.bool_), np.zeros(w.shape[2] // 4, np.bool_)
    of_head = np.zeros(bt.shape[2:], a.dtype)  # Σ_i g·r(1−r) of one head, before its weights
    for unit in range(first, last):
        b, k, share = unit // splits // kv_heads, unit // splits % kv_heads, unit % splits
        for g in range(group):
            h = k * group + g
            i, end = share * queries // splits, (share + 1) * queries // splits
            _clear(of_head, of_head.shape[1])
            while i < end:
                i1 = min(i + ROWS, end, (i // block_q + 1) * block_q)
                _take_rows(grad[b, h], i, i1, rows)
                _queries(a[b, h], i, i1, wide, exps)
                _find_tame(exps, inverse[b, h], top_b[b, k], wide, tame)
                _find_tame(exps, ones, top_b[b, k], wide, tame_x)
                _clear(gexps, gexps.shape[1])
                _backward_rows(
                    b, h, i, i1, exps, bt[b, k], w[b, h], inverse[b, h], tame, tame_x, gain[b, h], v[b, k], key[b, k],
                    bias[b, h], table[b, h], slope[b, h], positions[b], state[b, h, i // block_q], masks, block_q,
                    block_k, wide, seed[b], threshold, keep, head, s, gp, rows, vt[b, k], lse[b, h], delta[b, h],
                    gexps, of_head, gw[unit, g], gv[unit], gkey[unit], gbias[b, h], gtable[b, h],
                )  # fmt: skip
                ga[b, h, i:i1] = gexps[: i1 - i, : ga.shape[3]]
                i = i1
            _add_scaled(gbt[unit], of_head, w[b, h])


@njit(fastmath=FAST, **OPTIONS)
def _add_scaled(total: Any, part: Any, w: Any) -> None:
    """total[d, j] += 4 w_d part[d, j]."""
    for d in range(total.shape[0]):
        factor = w.dtype.type(4) * w[d]
        for j in range(total.shape[1]):
            total[d, j] += factor * part[d, j]


@njit(**OPTIONS)
def _backward_rows(
    b: int, h: int, i0: int, i1: int, exps: Any, bt: Any, w: Any, inverse: Any, tame: Any, tame_x: Any, gain: Any,
    v: Any, key: Any, bias: Any, table: Any, slope: Any, positions: Any, state: Any, masks: Any, block_q: int,
    block_k: int, wide: bool, seed: Any, threshold: Any, keep: Any, head: int, s: Any, gp: Any, grad: Any, vt: Any,
    lse: Any, delta: Any, ga: Any, gbt: Any, gw: Any, gv: Any, gkey: Any, gbias: Any, gtable: Any,
) -> None:  # fmt: skip
    n, shift = bt.shape[1], w.sum()
    for j0 in range(0, n, block_k):
        tile = state[j0 // block_k]
        if tile == EMPTY:
            continue
        count = min(block_k, n - j0)
        _clear(gp, count)
        _multiply_add(gp, grad, vt, 0, vt.shape[0], j0, count)
        _scores(
            s, j0, count, i0, i1, exps, bt, inverse, tame, shift, gain, key, bias, table, slope, positions, tile,
            masks, block_q, wide,
        )  # fmt: skip
        for r in range(ROWS):
            i = i0 + r
            if i >= i1 or lse[i] == -np.inf:
                _clear(s[r : r + 1], count)
                _clear(gp[r : r + 1], count)
                continue
            _exponentials(s[r], count, lse[i])
            row_key = _row_key(seed, b, head + h, i) if threshold > 0 else np.uint64(0)
            _weights_to_gradients(s[r], gp[r], j0, count, delta[i], row_key, threshold, keep)
            _add_single_gradients(gp[r], j0, count, positions[i], gw, gkey, gbias[i], gtable[i])
        for r in range(0, i1 - i0, 2):
            _add_gradients(
                gp[r], gp[r + 1], exps[r], exps[r + 1], bt, w, tame_x, j0, count, wide, ga[r], ga[r + 1], gbt, gw[0]
            )
        _add_outer(gv[j0 : j0 + count], s, grad, count)


@njit(fastmath=FAST, **OPTIONS)
def _add_single_gradients(
    gp: Any, j0: int, count: int, position: int, gw: Any, gkey: Any, gbias: Any, gtable: Any
) -> None:
    """What the key, bias and offset terms and the constant Σ_d w_d get of the scores' gradients."""
    total = gp.dtype.type(0)
    for j in range(count):
        total += gp[j]
    gw[1, 0] += total
    if gkey.shape[0] > 0:
        for j in range(count):
            gkey[j0 + j] += gp[j]
    if gbias.shape[0] > 0:
        for j in range(count):
            gbias[j0 + j] += gp[j]
    if gtable.shape[0] > 0:
        reach = gtable.shape[0] // 2
        for j in range(count):
            gtable[min(max(j0 + j - position, -reach), reach) + reach] += gp[j]


@njit(fastmath=FAST, **OPTIONS)
def _weights_to_gradients(
    s: Any, gp: Any, j0: int, count: int, delta: Any, key: Any, threshold: Any, keep: Any
) -> None:
    """From weights s and gradients gp of those kept: gp becomes the gradient of the scores, s what is kept."""
    if threshold == 0:
        for j in range(count):
            gp[j] = s[j] * (gp[j] - delta)
        return
    kept = s[:count].copy()
    _drop(kept, key, threshold, keep, j0, count)
    for j in range(count):
        gp[j] = kept[j] * gp[j] - s[j] * delta
        s[j] = kept[j]


def prepare(real: str, which: str) -> None:
    """Compile a loop for "float32" or "float64", once: array layouts vary from call to call, this does not."""
    f, n = getattr(types, real), types.int64

    def array(kind: Any, dims: int, layout: Any = "C") -> Any:
        return types.Array(kind, dims, layout)

    terms = (
        array(f, 3),
        array(f, 4, "A"),
        array(f, 4, "A"),
        array(f, 2),
        array(n, 2),
    )  # key, bias, table, slope, positions
    tiles = (array(types.int32, 4, "A"), array(types.boolean, 3))  # state, masks
    given = (
        n, array(f, 4), array(f, 4), array(f, 3), array(f, 3), array(f, 3), array(f, 2),  # group, a, bt, top, w, 1/u, W
        array(f, 4), *terms, *tiles, n, n, types.boolean,  # v, blocks, wide
    )  # fmt: skip
    dropout = (array(n, 1), n, types.float64, n)  # seed, threshold, keep, head
    if which == "forward":
        keys.compile((n, n, array(f, 4, "A"), array(f, 4), array(f, 2), types.boolean))
        forward.compile((array(n, 2), n, n, *given, array(f, 2), *dropout, array(f, 4), array(f, 3)))
    elif which == "backward":
        rows = (array(f, 4), array(f, 3), array(f, 3), array(f, 4))  # vt, lse, delta, grad
        sums = (array(f, 4), array(f, 3), array(f, 4), array(f, 3), array(f, 2), array(f, 4, "A"), array(f, 4, "A"))
        backward.compile((n, n, n, *given, *dropout, *rows, *sums))
    else:
        panels = (array(f, 1), array(n, 2))  # all numbers, and where each head's begin
        parts = (array(f, 3), array(f, 2), array(f, 2))  # acc, top, total
        decode.compile(
            (n, n, n, n, n, array(f, 4), *panels, types.boolean, types.boolean, array(f, 3), *panels, *terms, *tiles,
             n, n, n, array(f, 2), *parts)
        )  # fmt: skip
        gather.compile((n, n, *parts, array(f, 4), array(f, 3)))
