"""Computed once per query and per key: the range of the data, exponentials, features."""

# ruff: noqa: E501
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from regard.kernels.gpu._pieces import INF, LOG2E
from regard.kernels.gpu.additive._device._numbers import _exp, _sin_cos
from regard.kernels.gpu.additive._device._scores import COEFFICIENT, OMEGA, REACH, SMALLEST, TERMS, _top, _unit


@triton.jit
def _largest(x, pid, programs, heads, n, total, x_b, x_h, x_n, D: tl.constexpr, COLS: tl.constexpr, ROWS: tl.constexpr):
    """The largest |x| of one program's rows, of all items and heads; NaN counts as infinite."""
    most = tl.zeros([ROWS, COLS], tl.float32)
    cols = tl.arange(0, COLS)[None, :]
    for start in range(pid * ROWS, total, programs * ROWS):
        r = start + tl.arange(0, ROWS)
        bh, i = (r // n).to(tl.int64), (r % n).to(tl.int64)
        at = (bh // heads) * x_b + (bh % heads) * x_h + i * x_n
        value = tl.load(x + at[:, None] + cols, mask=(r < total)[:, None] & (cols < D), other=0.0).to(tl.float32)
        most = tl.maximum(most, tl.where(value != value, INF, tl.abs(value)))
    return tl.max(tl.max(most, 1), 0)


@triton.jit
def ranges(
    a, b, out, a_heads, L, a_rows, a_b, a_h, a_n, b_heads, S, b_rows, b_b, b_h, b_n,
    D: tl.constexpr, COLS: tl.constexpr, ROWS: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    """The largest |a| of each of PROGRAMS programs, then the largest |b| of as many."""
    pid = tl.program_id(0)
    if pid < PROGRAMS:
        found = _largest(a, pid, PROGRAMS, a_heads, L, a_rows, a_b, a_h, a_n, D, COLS, ROWS)
    else:
        found = _largest(b, pid - PROGRAMS, PROGRAMS, b_heads, S, b_rows, b_b, b_h, b_n, D, COLS, ROWS)
    tl.store(out + pid, found)


@triton.jit
def setup(
    found, series, setting, w, w_out, heads, weights, w_b, w_h, w_d,
    PROGRAMS: tl.constexpr, ROWS: tl.constexpr, EXACT: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
    COLS: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """What depends on the range of the data, decided on the device; and the weights in float32, padded with zeros.

    setting: number of terms of the series (0: fractions); number of fractions that share a reciprocal (0: exponentials
    of sums); c; whether the range is too wide for pairs of 1 + AB; max|w|; frequencies; coefficients; zeros.

    The denominators c (1 + AB) / u lie between c and c 2^bits. With c = 2^(−120/G), G of these multiply without
    underflow, and without overflow if G bits ≤ 244.
    """
    many = tl.arange(0, PROGRAMS)
    r = tl.max(tl.load(found + many), 0) + tl.max(tl.load(found + PROGRAMS + many), 0)
    d = tl.arange(0, COLS)[None, :]
    most, least = tl.zeros([16], tl.float32), tl.full([16], 1.0, tl.float32)
    for start in range(0, weights, 16):
        row = start + tl.arange(0, 16)
        at = (row // heads)[:, None] * w_b + (row % heads)[:, None] * w_h + d * w_d
        value = tl.load(w + at, mask=(row < weights)[:, None] & (d < D), other=0.0).to(tl.float32)
        tl.store(w_out + row[:, None] * DP + d, value, mask=(row < weights)[:, None] & (d < DP))
        size = tl.where(value != value, INF, tl.abs(value))
        top = tl.max(size, 1)
        part = size / tl.where(top > 0.0, top, 1.0)[:, None]
        least = tl.minimum(least, tl.min(tl.where((row < weights)[:, None] & (d < D), part, 1.0), 1))
        most = tl.maximum(most, top)
    most, least = tl.max(most, 0), tl.maximum(tl.min(least, 0), SMALLEST)
    bits = r * (2.0 * LOG2E) - tl.log2(least) + 1.0
    joined = tl.where(bits * GROUP <= 244.0, GROUP, tl.where(bits * 2 <= 244.0, 2, 0))
    joined = tl.where(most < INF, joined, 0)
    at = tl.arange(0, 16)
    limits = tl.load(series + at * 64, mask=at < ROWS, other=INF)
    row = tl.minimum(tl.sum(tl.where(limits < r, 1, 0), 0), ROWS - 1)
    fits = (r <= tl.load(series + (ROWS - 1) * 64)) & (most < INF)
    terms = tl.where(fits, tl.load(series + row * 64 + 1), 0.0)
    if EXACT:
        terms = 0.0 * terms
    tl.store(setting, terms)
    tl.store(setting + 1, joined.to(tl.float32))
    tl.store(setting + 2, tl.exp2(-120.0 / tl.maximum(joined, 1).to(tl.float32)))
    tl.store(setting + 3, tl.where(r <= REACH, 0.0, 1.0))
    tl.store(setting + 4, tl.where((most > 0.0) & (most < INF), most, 1.0))
    tl.store(setting + 48 + at, tl.zeros([16], tl.float32))
    tl.store(setting + OMEGA + at, tl.load(series + row * 64 + OMEGA + at))
    tl.store(setting + COEFFICIENT + at, tl.load(series + row * 64 + COEFFICIENT + at))


@triton.jit
def _exponentials(
    value, w, omega, setting, across, along, bh, r, d, padded,
    SIDE: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """across: e^{2x} as [padded / TILE, DP, TILE], the queries' (SIDE 0) times omega = c / u; along: as [padded, DP]."""
    size = _exp(2.0 * value)
    if along is not None:
        kept = tl.where(tl.load(setting + 3) != 0.0, value, size)
        tl.store(along + (bh * padded + r[:, None]) * DP + d[None, :], kept)
    joined = tl.load(setting + 1) != 0.0
    if SIDE == 0:
        every = tl.arange(0, 512)
        top = _top(tl.load(w + every, mask=every < DP, other=0.0))
        factor = tl.load(setting + 2) / _unit(tl.load(w + d), top, d < D)
        tl.store(omega + bh * DP + d, factor)  # every block of rows stores the same
        size *= factor[None, :]
    into = across + (bh * padded + r // TILE * TILE)[:, None] * DP + d[None, :] * TILE + (r % TILE)[:, None]
    tl.store(into, tl.where(joined, size, value))


@triton.jit
def _features(
    value, w, setting, out, bh, r, first, padded, terms,
    SIDE: tl.constexpr, DP: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """[padded, m, DP, 2]: c w sin(ωa), c w cos(ωa) of the queries (SIDE 0), or cos(ωb), sin(ωb) of the keys."""
    if SIDE == 0:
        weight = tl.load(w + first + tl.arange(0, COLS))[None, :] / tl.load(setting + 4)
    columns = 2 * first + tl.arange(0, 2 * COLS)
    into = out + (bh * padded + r[:, None]) * (2 * TERMS * DP) + columns[None, :]
    for m in range((terms + 1) // 2 * 2):  # an even number, so that the backward pass can take two at a time
        s, c = _sin_cos(value * tl.load(setting + OMEGA + m))
        if SIDE == 0:
            weighted = weight * tl.load(setting + COEFFICIENT + m)
            s, c = s * weighted, c * weighted
        else:
            s, c = c, s
        both = tl.reshape(tl.join(s.to(tl.float16), c.to(tl.float16)), [ROWS, 2 * COLS])
        tl.store(into + m * (2 * DP), both)


@triton.jit
def _prepare(
    pid, x, w, omega, setting, features, across, along, heads, n, padded, x_b, x_h, x_n, w_b, w_h,
    SIDE: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    rows, cols = padded // ROWS, DP // COLS
    r = pid % rows * ROWS + tl.arange(0, ROWS)
    first = pid // rows % cols * COLS
    d = first + tl.arange(0, COLS)
    bh = (pid // rows // cols).to(tl.int64)
    b, h = bh // heads, bh % heads
    w += b * w_b + h * w_h
    value = tl.load(
        x + b * x_b + h * x_h + r[:, None].to(tl.int64) * x_n + d[None, :],
        mask=(r < n)[:, None] & (d < D)[None, :],
        other=0.0,
    ).to(tl.float32)
    terms = tl.load(setting).to(tl.int32)
    if terms == 0:
        if across is not None:
            _exponentials(value, w, omega, setting, across, along, bh, r, d, padded, SIDE, D, DP, TILE)
    elif features is not None:
        _features(value, w, setting, features, bh, r, first, padded, terms, SIDE, DP, ROWS, COLS)


@triton.jit
def prepare(
    a, b, w, omega, setting, a_features, b_features, a_across, b_across, a_along, b_along, programs,
    H, L, LP, a_b, a_h, a_n, K, S, SP, b_b, b_h, b_n, w_b, w_h, D: tl.constexpr, DP: tl.constexpr,
    A_TILE: tl.constexpr, B_TILE: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """Features or exponentials: of the queries by the first ``programs`` programs, of the keys by the rest."""
    pid = tl.program_id(0)
    if pid < programs:
        _prepare(pid, a, w, omega, setting, a_features, a_across, a_along, H, L, LP, a_b, a_h, a_n, w_b, w_h,
                 0, D, DP, A_TILE, ROWS, COLS)  # fmt: skip
    else:
        _prepare(pid - programs, b, w, omega, setting, b_features, b_across, b_along, K, S, SP, b_b, b_h, b_n, 0, 0,
                 1, D, DP, B_TILE, ROWS, COLS)  # fmt: skip
