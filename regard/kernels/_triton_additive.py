"""The kernels of triton_additive. Imported only when they run.

Two forms of the score s_ij = Σ_d w_d tanh(a_id + b_jd), both without a transcendental per pair (see triton_additive):

    fractions   Σ_d w_d − 2 Σ_d w_d / (1 + A_d B_d),  A = e^{2a}, B = e^{2b};  several fractions share one reciprocal
    series      Σ_f Q_if K_jf over the features  c_m w_d sin(ω_m a), c_m w_d cos(ω_m a)  and  cos(ω_m b), sin(ω_m b)

Which one runs is read from ``setting`` on the device: the kernels of the other return at once.

The forward pass is online softmax over key blocks (Milakov & Gimelshein 2018, https://arxiv.org/abs/1805.02867; Dao et
al. 2022, https://arxiv.org/abs/2205.14135). The backward pass writes the scores' gradient dS of some heads and keys to a
workspace of bounded size; from there two more kernels add up the gradients, one over keys and one over queries, each
number by one program in one order, so that no atomics are needed and results repeat to the bit.

Names: b batch item, h head, i query, j key, d hidden dim, m term of the series; LP, SP, DP are L, S, D padded; C is the
number of keys the workspace holds, first … first + C. A pointer that is None is left out at compile time. Programs are
numbered in one dimension.
"""

# ruff: noqa: E501
# mypy: ignore-errors

from __future__ import annotations

import os

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")
LOG2E = tl.constexpr(1.4426950408889634)
LOG2E_REST = tl.constexpr(1.925963033500e-08)  # log2(e) minus its float32
LN2 = tl.constexpr(0.6931471805599453)
INF = tl.constexpr(float("inf"))
LIMIT = tl.constexpr(30.0)  # log2 of the largest 1 + AB kept apart: tanh is 1 to the last bit of float32
REACH = tl.constexpr(20.0)  # max|a| + max|b| up to which products of two 1 + AB do not overflow
SMALLEST = tl.constexpr(2.0**-32)  # weights below this part of their head's largest count as this
TERMS = tl.constexpr(16)  # most terms of the series
OMEGA = tl.constexpr(16)  # where setting holds frequencies and coefficients
COEFFICIENT = tl.constexpr(32)
DOC_ROWS = tl.constexpr(32)  # queries (keys) per entry of the tables of key (query) spans of documents
FAR = tl.constexpr(2**30)
CHUNK = tl.constexpr(16)  # steps after which pair_gradients looks ahead


# --- small pieces ---


@triton.jit
def _up(x):
    """The interpreter has no arithmetic of bfloat16."""
    if INTERPRETED:
        x = x.to(tl.float32)
    return x


@triton.jit
def _inverse(x):
    if INTERPRETED:
        r = 1.0 / x
    else:
        r = tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    return r


@triton.jit
def _sin_cos(x):
    """Both, to 1e-5: the argument is brought to one turn, where the hardware's approximations are good."""
    if INTERPRETED:
        s, c = tl.sin(x), tl.cos(x)
    else:
        turns = x * 0.15915494309189535
        x = (turns - tl.floor(turns + 0.5)) * 6.283185307179586
        s = tl.inline_asm_elementwise("sin.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
        c = tl.inline_asm_elementwise("cos.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    return s, c


@triton.jit
def _exp(x):
    """e^x to the last bits: the argument's rounding error is carried along."""
    n = tl.floor(x * LOG2E + 0.5)
    f = tl.fma(x, LOG2E, -n) + x * LOG2E_REST
    return tl.exp2(f) * tl.exp2(n)


@triton.jit
def _mix(x):
    """The mixer of kernels/_dropout.py."""
    x = x ^ (x >> 16)
    x = x * tl.full([1], 0x7FEB352D, tl.uint32)
    x = x ^ (x >> 15)
    x = x * tl.full([1], 0x846CA68B, tl.uint32)
    return x ^ (x >> 16)


@triton.jit
def _keep(drop, bh, i, j, THRESHOLD: tl.constexpr, SCALE: tl.constexpr):
    """1/(1 − p) where dropout keeps a pair, else 0."""
    head = tl.load(drop + bh + tl.zeros([1], tl.int32)).to(tl.uint32, bitcast=True)
    row = _mix(head ^ _mix(i.to(tl.uint32) + tl.full([1], 0xC2B2AE35, tl.uint32)))
    col = _mix(j.to(tl.uint32) + tl.full([1], 0x27D4EB2F, tl.uint32))
    return tl.where(_mix(row[:, None] ^ col[None, :]) >= tl.full([1, 1], THRESHOLD, tl.uint32), SCALE, 0.0)


# --- masks ---


@triton.jit
def _bounds(b, keys, lengths, offsets, offset):
    """Keys before this one may be seen; and the position of query 0."""
    end = keys
    if lengths is not None:
        end = tl.minimum(end, tl.load(lengths + b))
    if offsets is not None:
        offset = tl.load(offsets + b)
    return end, offset


@triton.jit
def _span(spans, start, length, ROWS: tl.constexpr):
    """Smallest start and largest end of the documents' spans of a block."""
    at = start // DOC_ROWS + tl.arange(0, ROWS // DOC_ROWS)
    inside = at * DOC_ROWS < length
    return tl.min(tl.load(spans + 2 * at, mask=inside, other=FAR), 0), tl.max(
        tl.load(spans + 2 * at + 1, mask=inside, other=0), 0
    )


@triton.jit
def _key_range(i0, first, end, offset, left, right, spans, L, BM: tl.constexpr):
    """Keys that a block of queries may see."""
    lo, hi = first, end
    if right is not None:
        hi = tl.minimum(hi, offset + i0 + BM + right)
    if left is not None:
        lo = tl.maximum(lo, offset + i0 - left)
    if spans is not None:
        start, stop = _span(spans, i0, L, BM)
        lo, hi = tl.maximum(lo, start), tl.minimum(hi, stop)
    return lo, hi


@triton.jit
def _query_range(j0, end, offset, left, right, spans, L, S, BN: tl.constexpr):
    """Queries that may see a block of keys."""
    lo, hi = 0, tl.where(j0 < end, L, 0)
    if right is not None:
        lo = tl.maximum(lo, j0 - right - offset)
    if left is not None:
        hi = tl.minimum(hi, j0 + BN + left - offset)
    if spans is not None:
        start, stop = _span(spans, j0, S, BN)
        lo, hi = tl.maximum(lo, start), tl.minimum(hi, stop)
    return lo, hi


@triton.jit
def _part(lo, hi, share, SHARES: tl.constexpr, BLOCK: tl.constexpr):
    """One of SHARES parts of a range, cut at whole blocks."""
    lo = lo // BLOCK * BLOCK
    size = tl.cdiv(tl.cdiv(tl.maximum(hi - lo, 0), BLOCK), SHARES) * BLOCK
    return lo + share * size, tl.minimum(hi, lo + share * size + size)


@triton.jit
def _visible(i, j, position, end, left, right, q_docs, k_docs, L, S):
    seen = (j < end)[None, :]
    delta = j[None, :] - position[:, None]
    if right is not None:
        seen = seen & (delta <= right)
    if left is not None:
        seen = seen & (delta >= -left)
    if q_docs is not None:
        seen = seen & (
            tl.load(q_docs + tl.minimum(i, L - 1))[:, None] == tl.load(k_docs + tl.minimum(j, S - 1))[None, :]
        )
    return seen


# --- scores ---


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
    """s + Σ_d 1 / y_d for pointers x [BM], y [BN] at d = 0, by ``joined`` (GROUP, or 2) fractions to a reciprocal.

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
    """Weights as parts u of the largest. Of u = 0 too little is made to matter, of padding 1."""
    u = w / top
    u = tl.where(tl.abs(u) < SMALLEST, tl.where(u < 0.0, -SMALLEST, SMALLEST), u)
    return tl.where(inside, u, 1.0)


@triton.jit
def _weights(w, setting, D, DP: tl.constexpr):
    """What Σ_d 1 / y_d (or w_d / (1 + AB)) is multiplied by, and what that is taken from: Σ_d w_d."""
    d = tl.arange(0, 512)
    weights = tl.load(w + d, mask=d < DP, other=0.0)
    top = _top(weights)
    u = tl.where(d < DP, _unit(weights, top, d < D), 0.0)
    joined = tl.load(setting + 1) != 0.0
    factor = tl.where(joined, 2.0 * top * tl.load(setting + 2), 2.0)
    return factor, tl.where(joined, top * tl.sum(u, 0), tl.sum(weights, 0))


@triton.jit
def _lines(n: tl.constexpr):
    """Numbers of 4 bytes, a cache line apart."""
    return 32 * tl.arange(0, n)


@triton.jit
def _touch(touched, x, inside, zero):
    """Bring into the cache what is soon needed; zero is a zero that the compiler does not know."""
    if not INTERPRETED:
        touched |= tl.load(x, mask=inside, other=0.0).to(tl.int32, bitcast=True) & zero
    return touched


@triton.jit
def _use(touched, x):
    """Never stores anything, but the compiler is not told."""
    if not INTERPRETED:
        tl.store(x + tl.zeros_like(touched), touched.to(tl.float32), mask=touched != 0)


@triton.jit
def _one_plus_exp(x):
    """1 + e^{2x}, kept in range; NaN stays NaN."""
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
        # Zero, by way of the tensor cores: so the compiler gives each thread 2 × 16 pairs as these do, not 32 × 1, and
        # the sums below take a third of the loads, the softmax stays within four lanes, and p needs no exchange.
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


# --- preparation ---


@triton.jit
def _largest(x, pid, programs, heads, n, total, x_b, x_h, x_n, D: tl.constexpr, COLS: tl.constexpr, ROWS: tl.constexpr):
    """The largest |x| of every so many rows, of all items and heads; NaN counts as infinite."""
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
    """The largest |a|, by PROGRAMS programs, each its own; then |b|, by as many."""
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
    """What depends on the data's range, decided on the device; and the weights in float32, padded with zeros.

    setting: number of terms of the series (0: fractions); how many fractions share a reciprocal (0: exponentials of
    sums); c; whether the range is too wide for pairs of 1 + AB; max|w|; frequencies; coefficients; zeros.

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
        tl.store(omega + bh * DP + d, factor)  # by every block of rows: the same
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
    """What the passes start from, of the queries by the first ``programs`` programs, of the keys by the rest."""
    pid = tl.program_id(0)
    if pid < programs:
        _prepare(pid, a, w, omega, setting, a_features, a_across, a_along, H, L, LP, a_b, a_h, a_n, w_b, w_h,
                 0, D, DP, A_TILE, ROWS, COLS)  # fmt: skip
    else:
        _prepare(pid - programs, b, w, omega, setting, b_features, b_across, b_along, K, S, SP, b_b, b_h, b_n, 0, 0,
                 1, D, DP, B_TILE, ROWS, COLS)  # fmt: skip


# --- forward ---


@triton.jit
def forward(
    x, y, w, omega, v, out, lse, setting, sink, key, row, bias, bias_b, bias_h, bias_i, bias_j,
    table, table_b, table_h, table_i, reach, slope, keys, lengths, offsets, offset, left, right,
    q_docs, k_docs, q_docs_b, k_docs_b, key_spans, key_spans_b, drop,
    H, G, L, S, LP, SP, D, DV, v_b, v_h, v_s, w_b, w_h,
    SERIES: tl.constexpr, PRECISION: tl.constexpr, THRESHOLD: tl.constexpr, SCALE: tl.constexpr, DP: tl.constexpr,
    DVP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, STEP: tl.constexpr, GROUP: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """Context and logsumexp of a block of queries. AHEAD: cache lines of a tile of keys, as a power of two."""
    if (tl.load(setting) != 0.0) != SERIES:
        return
    pid = tl.program_id(0)
    blocks = tl.cdiv(L, BM)
    block, bh = pid % blocks, (pid // blocks).to(tl.int64)
    if right is not None:  # the blocks with the most keys first
        block = blocks - 1 - block
    b, h = bh // H, bh % H
    bk = b * (H // G) + h // G
    i0 = block * BM
    i = i0 + tl.arange(0, BM)
    dv = tl.arange(0, DVP)
    end, offset = _bounds(b, keys, lengths, offsets, offset)
    position = offset + i
    if q_docs is not None:
        q_docs, k_docs, key_spans = q_docs + b * q_docs_b, k_docs + b * k_docs_b, key_spans + b * key_spans_b
    lo, hi = _key_range(i0, 0, end, offset, left, right, key_spans, L, BM)
    lo = lo // BN * BN
    w = w + b * w_b + h * w_h
    factor, weights = _weights(w, setting, D, DP)
    zero = tl.load(setting + 48).to(tl.int32, bitcast=True)
    touched = tl.zeros([AHEAD], tl.int32)
    v = v + b * v_b + (h // G) * v_h + dv[None, :]
    top = tl.full([BM], -INF, tl.float32)
    total = tl.zeros([BM], tl.float32)
    if sink is not None:
        top = tl.zeros([BM], tl.float32) + tl.load(sink + bh) * LOG2E
        total += tl.where(top > -INF, 1.0, 0.0)
    acc = tl.zeros([BM, DVP], tl.float32)
    for j0 in range(lo, hi, BN):
        j = j0 + tl.arange(0, BN)
        if not SERIES:
            ahead = (j0 + BN) * DP + _lines(AHEAD)
            touched = _touch(touched, y + bk * SP * DP + ahead, ahead < tl.minimum(j0 + 2 * BN, SP) * DP, zero)
        s = _scores(x, y, w, omega, factor, weights, setting, bh, bk, i0, j0, LP, SP, SERIES, DP, BM, BN, STEP, GROUP)
        s = _other_terms(s, b, h, bh, bk, i, j, position, L, S, key, row, bias, bias_b, bias_h, bias_i, bias_j,
                         table, table_b, table_h, table_i, reach, slope)  # fmt: skip
        s = tl.where(_visible(i, j, position, end, left, right, q_docs, k_docs, L, S), s * LOG2E, -INF)
        new = tl.maximum(top, tl.max(s, 1))
        safe = tl.where(new == -INF, 0.0, new)
        p = tl.exp2(s - safe[:, None])
        shrink = tl.exp2(top - safe)
        total = total * shrink + tl.sum(p, 1)
        if drop is not None:
            p *= _keep(drop, bh, i, j, THRESHOLD, SCALE)
        values = _up(tl.load(v + j[:, None].to(tl.int64) * v_s, mask=(j < S)[:, None] & (dv < DV)[None, :], other=0.0))
        acc = tl.dot(p.to(values.dtype), values, acc * shrink[:, None], input_precision=PRECISION)
        top = new
    total_or_one = tl.where(total == 0.0, 1.0, total)
    if not SERIES:
        _use(touched, lse)
    inside = i < L
    tl.store(lse + bh * L + i, (top + tl.log2(total_or_one)) * LN2, mask=inside)
    context = acc / total_or_one[:, None]
    tl.store(
        out + (bh * L + i[:, None]) * DV + dv[None, :],
        context.to(out.dtype.element_ty),
        mask=inside[:, None] & (dv < DV)[None, :],
    )


# --- few queries, many keys ---


@triton.jit
def _few_scores(a, keys, w, i, L, a_n, D: tl.constexpr, COLS: tl.constexpr, QUERIES: tl.constexpr, BM: tl.constexpr):
    """Σ_d w_d tanh(a_id + b_jd) of a block of keys [BN, COLS], for each query in a row of [BM, BN].

    By an exponential of each sum: exact for all numbers, so that nothing need be known of keys not yet read.
    """
    d = tl.arange(0, COLS)
    s = tl.zeros([BM, keys.shape[0]], tl.float32)
    for q in tl.static_range(QUERIES):
        own = tl.load(a + tl.minimum(q, L - 1) * a_n + d, mask=d < D, other=0.0).to(tl.float32)
        r = _inverse(_one_plus_exp(keys + own[None, :]))
        row = tl.sum(tl.where((d < D)[None, :], w[None, :] * (1.0 - 2.0 * r), 0.0), 1)
        s = tl.where((i == q)[:, None], row[None, :], s)
    return s


@triton.jit
def few(
    a, y, w, v, parts, tops, totals, key, row, bias, bias_b, bias_h, bias_i, bias_j,
    table, table_b, table_h, table_i, reach, slope, keys, lengths, offsets, offset, left, right,
    q_docs, k_docs, q_docs_b, k_docs_b, key_spans, key_spans_b, drop,
    H, G, L, S, DV, a_b, a_h, a_n, b_b, b_h, b_n, v_b, v_h, v_s, w_b, w_h, w_d, splits,
    D: tl.constexpr, COLS: tl.constexpr, DVP: tl.constexpr, QUERIES: tl.constexpr, PRECISION: tl.constexpr,
    THRESHOLD: tl.constexpr, SCALE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, EXPONENTIAL: tl.constexpr,
):  # fmt: skip
    """Few queries against one of ``splits`` parts of the keys, each read once: the sum of weighted values, the largest
    score (to base 2) and the sum of weights, per query."""
    pid = tl.program_id(0)
    h, split, b = pid % H, pid // H % splits, (pid // H // splits).to(tl.int64)  # heads of a group share their keys
    bh, bk = b * H + h, b * (H // G) + h // G
    i, d, dv = tl.arange(0, BM), tl.arange(0, COLS), tl.arange(0, DVP)
    end, offset = _bounds(b, keys, lengths, offsets, offset)
    position = offset + i
    if q_docs is not None:
        q_docs, k_docs, key_spans = q_docs + b * q_docs_b, k_docs + b * k_docs_b, key_spans + b * key_spans_b
    lo, hi = _key_range(0, 0, end, offset, left, right, key_spans, L, 32)
    lo = lo // BN * BN
    size = tl.cdiv(tl.cdiv(tl.maximum(hi - lo, 0), BN), splits) * BN
    lo = lo + split * size
    hi = tl.minimum(hi, lo + size)
    a += b * a_b + h * a_h
    y += b * b_b + (h // G) * b_h + d[None, :]
    v += b * v_b + (h // G) * v_h + dv[None, :]
    weights = tl.load(w + b * w_b + h * w_h + d * w_d, mask=d < D, other=0.0).to(tl.float32)
    top, total = tl.full([BM], -INF, tl.float32), tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, DVP], tl.float32)
    for j0 in range(lo, hi, BN):
        j = j0 + tl.arange(0, BN)
        at, inside = j[:, None].to(tl.int64), (j < S)[:, None]
        block = tl.load(y + at * b_n, mask=inside & (d < D)[None, :], other=1.0).to(tl.float32)
        if EXPONENTIAL:  # a cache keeps e^{2b}; the logarithm hides behind the memory
            block = 0.5 * tl.log(block)
        values = _up(tl.load(v + at * v_s, mask=inside & (dv < DV)[None, :], other=0.0))
        s = _few_scores(a, block, weights, i, L, a_n, D, COLS, QUERIES, BM)
        s = _other_terms(s, b, h, bh, bk, i, j, position, L, S, key, row, bias, bias_b, bias_h, bias_i, bias_j,
                         table, table_b, table_h, table_i, reach, slope)  # fmt: skip
        s = tl.where(_visible(i, j, position, end, left, right, q_docs, k_docs, L, S), s * LOG2E, -INF)
        new = tl.maximum(top, tl.max(s, 1))
        safe = tl.where(new == -INF, 0.0, new)
        p = tl.exp2(s - safe[:, None])
        shrink = tl.exp2(top - safe)
        total = total * shrink + tl.sum(p, 1)
        if drop is not None:
            p *= _keep(drop, bh, i, j, THRESHOLD, SCALE)
        acc = tl.dot(p.to(values.dtype), values, acc * shrink[:, None], input_precision=PRECISION)
        top = new
    at = (bh * L + i) * splits + split
    tl.store(tops + at, top, mask=i < L)
    tl.store(totals + at, total, mask=i < L)
    tl.store(parts + at[:, None] * DV + dv[None, :], acc, mask=(i < L)[:, None] & (dv < DV)[None, :])


@triton.jit
def join_splits(parts, tops, totals, out, lse, sink, L, DV, splits, DVP: tl.constexpr, SPLITS: tl.constexpr):
    """Context and logsumexp of a query from its parts."""
    row = tl.program_id(0).to(tl.int64)
    k, dv = tl.arange(0, SPLITS), tl.arange(0, DVP)
    there = k < splits
    top = tl.load(tops + row * splits + k, mask=there, other=-INF)
    most = tl.max(top, 0)
    if sink is not None:
        extra = tl.load(sink + row // L) * LOG2E
        most = tl.maximum(most, extra)
    safe = tl.where(most == -INF, 0.0, most)
    share = tl.exp2(top - safe)
    total = tl.sum(share * tl.load(totals + row * splits + k, mask=there, other=0.0), 0)
    if sink is not None:
        total += tl.exp2(extra - safe)
    total_or_one = tl.where(total == 0.0, 1.0, total)
    part = parts + (row * splits + k)[:, None] * DV + dv[None, :]
    values = tl.load(part, mask=there[:, None] & (dv < DV)[None, :], other=0.0)
    tl.store(out + row * DV + dv, tl.sum(share[:, None] * values, 0) / total_or_one, mask=dv < DV)
    tl.store(lse + row, (most + tl.log2(total_or_one)) * LN2)


# --- backward ---


@triton.jit
def rows(out, grad, lse, delta, lse2, norm, n, DV, DVP: tl.constexpr, ROWS: tl.constexpr):
    """Per query: grad·out, the logsumexp to base 2 (inf where there is no gradient), and |grad|²."""
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, DVP)
    inside = (r < n)[:, None] & (d < DV)[None, :]
    at = r[:, None].to(tl.int64) * DV + d[None, :]
    sums = tl.load(lse + r, mask=r < n, other=-INF) * LOG2E
    alive = sums > -INF  # false for NaN too
    g = tl.load(grad + at, mask=inside & alive[:, None], other=0.0).to(tl.float32)
    o = tl.load(out + at, mask=inside & alive[:, None], other=0.0).to(tl.float32)
    tl.store(delta + r, tl.sum(g * o, 1), mask=r < n)
    tl.store(lse2 + r, tl.where(alive, sums, INF), mask=r < n)
    tl.store(norm + r, tl.sum(g * g, 1), mask=r < n)


@triton.jit
def _scale(g_norm, v_norm, KEEP: tl.constexpr, SERIES: tl.constexpr):
    """What dS is multiplied by in the workspace: |dS_ij| ≤ 2 α_ij max|g| max|v| / (1 − p) must fit float16."""
    scale = 1.0
    if SERIES:
        bound = tl.sqrt(tl.load(g_norm)) * tl.load(v_norm) * (2.0 * KEEP)
        scale = tl.where(bound > 0.0, 8192.0 / bound, 1.0)
    return scale


@triton.jit
def score_gradients(
    x, y, w, omega, v, grad, lse2, delta, setting, g_norm, v_norm, ds, dv_out, dkey, key, bias, bias_b, bias_h, bias_i, bias_j,
    table, table_b, table_h, table_i, reach, slope, keys, lengths, offsets, offset, left, right,
    q_docs, k_docs, q_docs_b, k_docs_b, query_spans, query_spans_b, drop,
    H, G, L, S, LP, SP, D, DV, v_b, v_h, v_s, w_b, w_h, first, C, first_bh, count,
    SERIES: tl.constexpr, PRECISION: tl.constexpr, THRESHOLD: tl.constexpr, SCALE: tl.constexpr,
    SHARES: tl.constexpr, DP: tl.constexpr, DVP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, STEP: tl.constexpr,
    GROUP: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """dS of a block of keys against a share of the queries, and that share's part of the gradient of v."""
    if (tl.load(setting) != 0.0) != SERIES:
        return
    pid = tl.program_id(0)
    blocks = C // BN
    block, share, local = pid % blocks, pid // blocks % SHARES, pid // blocks // SHARES
    bh = first_bh + local.to(tl.int64)
    b, h = bh // H, bh % H
    bk = b * (H // G) + h // G
    j0 = first + block * BN
    j = j0 + tl.arange(0, BN)
    d = tl.arange(0, DVP)
    end, offset = _bounds(b, keys, lengths, offsets, offset)
    if q_docs is not None:
        q_docs, k_docs, query_spans = q_docs + b * q_docs_b, k_docs + b * k_docs_b, query_spans + b * query_spans_b
    lo, hi = _query_range(j0, end, offset, left, right, query_spans, L, S, BN)
    lo, hi = _part(lo, hi, share, SHARES, BM)
    w = w + b * w_b + h * w_h
    factor, weights = _weights(w, setting, D, DP)
    zero = tl.load(setting + 48).to(tl.int32, bitcast=True)
    touched = tl.zeros([AHEAD], tl.int32)
    scale = _scale(g_norm, v_norm, SCALE, SERIES)
    values = _up(
        tl.load(
            v + b * v_b + (h // G) * v_h + j[:, None].to(tl.int64) * v_s + d[None, :],
            mask=(j < S)[:, None] & (d < DV)[None, :],
            other=0.0,
        )
    )
    ds += local.to(tl.int64) * LP * C + (j - first)[None, :]
    dv_acc = tl.zeros([BN, DVP], tl.float32)
    dkey_acc = tl.zeros([BN], tl.float32)
    for i0 in range(lo, hi, BM):
        i = i0 + tl.arange(0, BM)
        position = offset + i
        if not SERIES:
            ahead = (i0 + BM) * DP + _lines(AHEAD)
            touched = _touch(touched, x + bh * LP * DP + ahead, ahead < tl.minimum(i0 + 2 * BM, LP) * DP, zero)
        s = _scores(x, y, w, omega, factor, weights, setting, bh, bk, i0, j0, LP, SP, SERIES, DP, BM, BN, STEP, GROUP)
        s = _other_terms(s, b, h, bh, bk, i, j, position, L, S, key, None, bias, bias_b, bias_h, bias_i, bias_j,
                         table, table_b, table_h, table_i, reach, slope)  # fmt: skip
        s = tl.where(_visible(i, j, position, end, left, right, q_docs, k_docs, L, S), s * LOG2E, -INF)
        sums = tl.load(lse2 + bh * L + i, mask=i < L, other=INF)
        p = tl.exp2(s - sums[:, None])
        g = _up(
            tl.load(
                grad + (bh * L + i[:, None]) * DV + d[None, :],
                mask=(sums < INF)[:, None] & (d < DV)[None, :],
                other=0.0,
            )
        )
        dp = tl.dot(g, tl.trans(values), input_precision=PRECISION)
        dropped = p
        if drop is not None:
            keep = _keep(drop, bh, i, j, THRESHOLD, SCALE)
            dp, dropped = dp * keep, p * keep
        dv_acc = tl.dot(tl.trans(dropped.to(g.dtype)), g, dv_acc, input_precision=PRECISION)
        e = p * (dp - tl.load(delta + bh * L + i, mask=i < L, other=0.0)[:, None])
        dkey_acc += tl.sum(e, 0)
        tl.store(ds + i[:, None].to(tl.int64) * C, (e * scale).to(ds.dtype.element_ty))
    if not SERIES:
        _use(touched, dkey)
    if SHARES == 1:
        at = bh * S + j
    else:
        at = (share * count + local).to(tl.int64) * C + (j - first)
    tl.store(dkey + at, dkey_acc, mask=j < S)
    tl.store(dv_out + at[:, None] * DV + d[None, :], dv_acc, mask=(j < S)[:, None] & (d < DV)[None, :])


@triton.jit
def _pair_sums(
    own, other, g, step, lo, hi, zero, g_ahead, g_k, other_ahead, other_k, result,
    WIDE: tl.constexpr, SIDE: tl.constexpr, DP: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """Σ_k g_k (r − r²) and, for SIDE 1, Σ_k g_k r, with r = 1 / (1 + A B): two halves of the dims share a reciprocal.

    own: pointers [rows, HALF] to the first half; other: [1, HALF] at k = 0; g: [rows, 1] at k = 0. g_ahead, other_ahead
    are every eighth of what the first CHUNK steps read of g and other, and g_k, other_k say in which step: dS comes from
    far away, and there are too few warps to wait for it.
    """
    x0, x1 = tl.load(own), tl.load(own + HALF)
    slope0, slope1 = tl.zeros_like(x0), tl.zeros_like(x0)
    sum0, sum1 = tl.zeros_like(x0), tl.zeros_like(x0)
    g_touched, other_touched = tl.zeros_like(g_k), tl.zeros_like(other_k)
    for k0 in range(lo, hi, CHUNK):
        after = k0 + CHUNK
        g_touched = _touch(g_touched, g_ahead + after * step, g_k + after < hi, zero)
        other_touched = _touch(other_touched, other_ahead + after * DP, other_k + after < hi, zero)
        for k in range(k0, tl.minimum(after, hi)):
            e = tl.load(g + k * step)
            y0, y1 = tl.load(other + k * DP), tl.load(other + k * DP + HALF)
            if WIDE:
                y0, y1 = _one_plus_exp(x0 + y0), _one_plus_exp(x1 + y1)
            else:
                y0, y1 = x0 * y0 + 1.0, x1 * y1 + 1.0
            inverse = _inverse(y0 * y1)
            r0, r1 = y1 * inverse, y0 * inverse
            slope0 += e * (r0 - r0 * r0)
            slope1 += e * (r1 - r1 * r1)
            if SIDE == 1:
                sum0 += e * r0
                sum1 += e * r1
    _use(g_touched, result)
    _use(other_touched, result)
    return slope0, slope1, sum0, sum1


@triton.jit
def pair_gradients(
    ds, own, other, w, setting, dkey, out, dw, keys, lengths, offsets, offset, left, right, spans, spans_b,
    H, G, L, S, LP, SP, D, w_b, w_h, first, C, first_bh, count,
    SIDE: tl.constexpr, SHARES: tl.constexpr, DP: tl.constexpr, ROWS: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """Gradients of a (SIDE 0) or b (SIDE 1) from dS by fractions: w_d Σ dS (1 − tanh²), 1 − tanh² = 4 r (1 − r).

    A program keeps a block of rows × hidden dims in registers and goes along the other side one by one, so that nothing
    is added up across threads.
    """
    if tl.load(setting) != 0.0:
        return
    pid = tl.program_id(0)
    blocks, chunks = (LP if SIDE == 0 else C) // ROWS, DP // (2 * HALF)
    block, chunk = pid % blocks, pid // blocks % chunks
    share, local = pid // blocks // chunks % SHARES, pid // blocks // chunks // SHARES
    bh = first_bh + local.to(tl.int64)
    b, h = bh // H, bh % H
    bk = b * (H // G) + h // G
    r = block * ROWS + tl.arange(0, ROWS)
    d = chunk * 2 * HALF + tl.arange(0, HALF)
    end, offset = _bounds(b, keys, lengths, offsets, offset)
    if spans is not None:
        spans += b * spans_b
    wide = tl.load(setting + 3) != 0.0
    zero = tl.load(setting + 48).to(tl.int32, bitcast=True)
    ds += local.to(tl.int64) * LP * C
    eighth, part_of_chunk = tl.arange(0, CHUNK * ROWS // 8), tl.arange(0, CHUNK * HALF // 4)
    other_k, other_d = part_of_chunk // (HALF // 4), chunk * 2 * HALF + part_of_chunk % (HALF // 4) * 8
    if SIDE == 0:
        lo, hi = _key_range(block * ROWS, first, tl.minimum(end, first + C), offset, left, right, spans, L, ROWS)
        own += (bh * LP + r[:, None]) * DP + d[None, :]
        other += bk * SP * DP
        g, step = ds + r[:, None].to(tl.int64) * C - first, tl.cast(1, tl.int64)
        g_k = eighth % (CHUNK // 8) * 8
        g_ahead = ds + (block * ROWS + eighth // (CHUNK // 8)).to(tl.int64) * C - first + g_k
    else:
        lo, hi = _query_range(first + block * ROWS, end, offset, left, right, spans, L, S, ROWS)
        lo, hi = _part(lo, hi, share, SHARES, 1)
        own += (bk * SP + first + r[:, None]) * DP + d[None, :]
        other += bh * LP * DP
        g, step = ds + r[:, None], tl.cast(C, tl.int64)
        g_k = eighth // (ROWS // 8)
        g_ahead = ds + g_k.to(tl.int64) * C + block * ROWS + eighth % (ROWS // 8) * 8
    other_ahead = other + other_k * DP + other_d
    other += d[None, :]
    if wide:
        slope0, slope1, sum0, sum1 = _pair_sums(
            own, other, g, step, lo, hi, zero, g_ahead, g_k, other_ahead, other_k, dw, True, SIDE, DP, HALF
        )
    else:
        slope0, slope1, sum0, sum1 = _pair_sums(
            own, other, g, step, lo, hi, zero, g_ahead, g_k, other_ahead, other_k, dw, False, SIDE, DP, HALF
        )
    if SIDE == 0:
        into, limit, accumulate = out + bh * L * D, L, first > 0
    else:
        part = (share * count + local).to(tl.int64)
        if SHARES == 1:
            into = out + (bh * S + first) * D
        else:
            into = out + part * C * D
        limit, accumulate = S - first, False
        # Σ dS tanh = Σ dS − 2 Σ dS r; nothing was written to dS beyond S
        sums, inside = dw + (part * blocks + block) * DP + d, (r < limit)[:, None]
        whole = tl.sum(tl.load(dkey + bh * S + first + r, mask=r < limit, other=0.0), 0) * tl.where(
            share == 0, 1.0, 0.0
        )
        tl.store(sums, whole - 2.0 * tl.sum(tl.where(inside, sum0, 0.0), 0))
        tl.store(sums + HALF, whole - 2.0 * tl.sum(tl.where(inside, sum1, 0.0), 0))
    w = w + b * w_b + h * w_h + d
    slope0 *= 4.0 * tl.load(w)[None, :]
    slope1 *= 4.0 * tl.load(w + HALF)[None, :]
    into += r[:, None].to(tl.int64) * D + d[None, :]
    inside0, inside1 = (r < limit)[:, None] & (d < D)[None, :], (r < limit)[:, None] & (d + HALF < D)[None, :]
    if accumulate:
        slope0 += tl.load(into, mask=inside0, other=0.0)
        slope1 += tl.load(into + HALF, mask=inside1, other=0.0)
    tl.store(into, slope0, mask=inside0)
    tl.store(into + HALF, slope1, mask=inside1)


@triton.jit
def feature_gradients(
    ds, other, x, w, setting, g_norm, v_norm, out, dw, keys, lengths, offsets, offset, left, right, spans, spans_b,
    H, G, L, S, LP, SP, D, x_b, x_h, x_n, w_b, w_h, first, C, first_bh, count,
    SIDE: tl.constexpr, SCALE: tl.constexpr, SHARES: tl.constexpr, DP: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, PAIR: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Gradients of a and w (SIDE 0) or b (SIDE 1) from dS by the series.

    The gradient of the features is dS times the other side's features; the chain rule through sin and cos is applied
    to each block of it in registers, term by term (PAIR terms at once), so that it is never stored.
    """
    terms = tl.load(setting).to(tl.int32)
    if terms == 0:
        return
    pid = tl.program_id(0)
    blocks, chunks = (LP if SIDE == 0 else C) // ROWS, DP // COLS
    block, chunk = pid % blocks, pid // blocks % chunks
    share, local = pid // blocks // chunks % SHARES, pid // blocks // chunks // SHARES
    bh = first_bh + local.to(tl.int64)
    b, h = bh // H, bh % H
    bk = b * (H // G) + h // G
    r = block * ROWS + tl.arange(0, ROWS)
    f = tl.arange(0, PAIR * COLS)  # COLS hidden dims of one term or two
    term, d = f // COLS, chunk * COLS + f % COLS
    k = tl.arange(0, STEP)
    F: tl.constexpr = 2 * TERMS * DP
    end, offset = _bounds(b, keys, lengths, offsets, offset)
    if spans is not None:
        spans += b * spans_b
    ds += local.to(tl.int64) * LP * C
    if SIDE == 0:
        lo, hi = _key_range(block * ROWS, first, tl.minimum(end, first + C), offset, left, right, spans, L, ROWS)
        lo = lo // STEP * STEP
        other += bk * SP * F
        x += b * x_b + h * x_h
        n, row = L, r
    else:
        lo, hi = _query_range(first + block * ROWS, end, offset, left, right, spans, L, S, ROWS)
        lo, hi = _part(lo, hi, share, SHARES, STEP)
        other += bh * LP * F
        x += b * x_b + (h // G) * x_h
        n, row = S, first + r
    f = tl.arange(0, 2 * PAIR * COLS)  # and their two features each
    columns = other + (f // (2 * COLS) * (2 * DP) + chunk * (2 * COLS) + f % (2 * COLS))[None, :]
    x += row[:, None].to(tl.int64) * x_n + d[None, :]
    if SIDE == 0:
        weight = tl.load(w + b * w_b + h * w_h + d)
    acc = tl.zeros([ROWS, PAIR * COLS], tl.float32)
    dw_acc = tl.zeros([ROWS, PAIR * COLS], tl.float32)
    for m in range(0, terms, PAIR):
        product = tl.zeros([ROWS, 2 * PAIR * COLS], tl.float32)
        for k0 in range(lo, hi, STEP):
            at = k0 + k
            right_side = tl.load(columns + m * (2 * DP) + at[:, None].to(tl.int64) * F)
            if SIDE == 0:
                left_side = tl.load(ds + r[:, None].to(tl.int64) * C + (at - first)[None, :])
            else:
                left_side = tl.trans(tl.load(ds + at[:, None].to(tl.int64) * C + r[None, :]))
            product = tl.dot(left_side, right_side, product)
        omega, c = tl.load(setting + OMEGA + m + term), tl.load(setting + COEFFICIENT + m + term)
        # Volatile: loaded for every term again, not kept in registers that the product needs.
        own = tl.load(x, mask=(row < n)[:, None] & (d < D)[None, :], other=0.0, volatile=True).to(tl.float32)
        sine, cosine = _sin_cos(own * omega[None, :])
        first_half, second_half = tl.split(tl.reshape(product, [ROWS, PAIR * COLS, 2]))
        if SIDE == 0:
            dw_acc += (sine * first_half + cosine * second_half) * c[None, :]
            slope = (cosine * first_half - sine * second_half) * (c * omega * weight)[None, :]
        else:
            slope = (cosine * second_half - sine * first_half) * (omega * tl.load(setting + 4))[None, :]
        acc += slope
    if PAIR == 2:
        acc = tl.sum(tl.reshape(acc, [ROWS, 2, COLS]), 1)
    scale = _scale(g_norm, v_norm, SCALE, True)
    acc = acc / scale
    d = chunk * COLS + tl.arange(0, COLS)
    if SIDE == 0:
        total = tl.sum(tl.where((r < L)[:, None], dw_acc, 0.0), 0) / scale  # dS is not written beyond L
        if PAIR == 2:
            total = tl.sum(tl.reshape(total, [2, COLS]), 0)
        tl.store(dw + (local.to(tl.int64) * blocks + block) * DP + d, total)
        into, limit, accumulate = out + bh * L * D, L, first > 0
    else:
        if SHARES == 1:
            into = out + (bh * S + first) * D
        else:
            into = out + (share * count + local).to(tl.int64) * C * D
        limit, accumulate = S - first, False
    into += r[:, None].to(tl.int64) * D + d[None, :]
    inside = (r < limit)[:, None] & (d < D)[None, :]
    if accumulate:
        acc += tl.load(into, mask=inside, other=0.0)
    tl.store(into, acc, mask=inside)


@triton.jit
def clear(x, setting, n, SERIES: tl.constexpr, BLOCK: tl.constexpr):
    if (tl.load(setting) != 0.0) != SERIES:
        return
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.zeros([BLOCK], x.dtype.element_ty), mask=at < n)


@triton.jit
def add_shares(
    parts, setting, out, S, width, first, C, first_bh, count,
    SHARES: tl.constexpr, SERIES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Gradients of the keys first … first + C of some heads: the sum of the shares' parts."""
    if (tl.load(setting) != 0.0) != SERIES:
        return
    blocks = tl.cdiv(C * width, BLOCK)
    local = (tl.program_id(0) // blocks).to(tl.int64)
    at = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    inside = at < tl.minimum(C, S - first) * width
    total = tl.zeros([BLOCK], tl.float32)
    for share in range(SHARES):
        total += tl.load(parts + (share * count + local) * C * width + at, mask=inside, other=0.0)
    tl.store(out + ((first_bh + local) * S + first) * width + at, total, mask=inside)


@triton.jit
def table_gradients(
    ds, setting, g_norm, v_norm, out, dslope, offsets, offset, H, L, LP, S, R, reach, first, C, first_bh,
    SERIES: tl.constexpr, SCALE: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """Gradient of the offset table, [L, R] of each head: an inner entry has one key, the outer two add up many."""
    if (tl.load(setting) != 0.0) != SERIES:
        return
    pid = tl.program_id(0)
    blocks = LP // ROWS
    local = pid // blocks
    bh = first_bh + local.to(tl.int64)
    i = pid % blocks * ROWS + tl.arange(0, ROWS)
    _, offset = _bounds(bh // H, S, None, offsets, offset)
    into = out + (bh * L + i) * R
    low, high, beyond = tl.zeros([ROWS], tl.float32), tl.zeros([ROWS], tl.float32), tl.zeros([ROWS], tl.float32)
    inverse = 1.0 / _scale(g_norm, v_norm, SCALE, SERIES)
    for j0 in range(first, tl.minimum(S, first + C), COLS):
        j = j0 + tl.arange(0, COLS)
        e = tl.load(ds + (local.to(tl.int64) * LP + i[:, None]) * C + (j - first)[None, :]).to(tl.float32) * inverse
        e = tl.where((j < S)[None, :], e, 0.0)
        delta = j[None, :] - (offset + i)[:, None]
        inner = (tl.abs(delta) < reach) & (i < L)[:, None] & (j < S)[None, :]
        tl.store(into[:, None] + delta + reach, e, mask=inner)
        low += tl.sum(tl.where(delta <= -reach, e, 0.0), 1)
        high += tl.sum(tl.where((delta >= reach) & (delta > -reach), e, 0.0), 1)
        beyond += tl.sum(e * tl.maximum(tl.abs(delta) - reach, 0).to(tl.float32), 1)
    if reach == 0:
        tl.store(into, tl.load(into, mask=i < L, other=0.0) + low + high, mask=i < L)
    else:
        tl.store(into, tl.load(into, mask=i < L, other=0.0) + low, mask=i < L)
        tl.store(into + 2 * reach, tl.load(into + 2 * reach, mask=i < L, other=0.0) + high, mask=i < L)
    if dslope is not None:
        tl.store(dslope + bh * L + i, tl.load(dslope + bh * L + i, mask=i < L, other=0.0) - beyond, mask=i < L)
