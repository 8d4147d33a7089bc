"""The kernels of triton_additive. Imported only when they run.

Two forms of the score s_ij = Σ_d w_d tanh(a_id + b_jd), both without a transcendental per pair (see triton_additive):

    fractions   Σ_d w_d − 2 Σ_d w_d / (1 + A_d B_d),  A = e^{2a}, B = e^{2b};  four fractions share one reciprocal
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
REACH = tl.constexpr(20.0)  # max|a| + max|b| up to which products of four fractions neither overflow nor vanish
TERMS = tl.constexpr(16)  # most terms of the series
OMEGA = tl.constexpr(16)  # where setting holds frequencies and coefficients
COEFFICIENT = tl.constexpr(32)
DOC_ROWS = tl.constexpr(32)  # queries (keys) per entry of the tables of key (query) spans of documents
FAR = tl.constexpr(2**30)


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
def _fractions(
    s, x, y, w, floor, wide, lp, sp, DP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, STEP: tl.constexpr
):
    """s + Σ_d w_d / (floor + A_d B_d) for pointers x [BM], y [BN] at d = 0; if wide they hold a and b themselves."""
    if wide:
        for d in range(0, DP, 2):
            x0 = tl.load(x + d * lp)[:, None] + tl.load(y + d * sp)[None, :]
            x1 = tl.load(x + (d + 1) * lp)[:, None] + tl.load(y + (d + 1) * sp)[None, :]
            x0, x1 = _one_plus_exp(x0), _one_plus_exp(x1)
            s += (tl.load(w + d) * x1 + tl.load(w + d + 1) * x0) * _inverse(x0 * x1)
    else:
        for d0 in range(0, DP, STEP):
            for u in tl.static_range(0, STEP, 4):
                d = d0 + u
                x0 = tl.load(x + d * lp)[:, None] * tl.load(y + d * sp)[None, :] + floor
                x1 = tl.load(x + (d + 1) * lp)[:, None] * tl.load(y + (d + 1) * sp)[None, :] + floor
                x2 = tl.load(x + (d + 2) * lp)[:, None] * tl.load(y + (d + 2) * sp)[None, :] + floor
                x3 = tl.load(x + (d + 3) * lp)[:, None] * tl.load(y + (d + 3) * sp)[None, :] + floor
                n01 = tl.load(w + d) * x1 + tl.load(w + d + 1) * x0
                n23 = tl.load(w + d + 2) * x3 + tl.load(w + d + 3) * x2
                p, q = x0 * x1, x2 * x3
                s += (n01 * q + n23 * p) * _inverse(p * q)
    return s


@triton.jit
def _sum(w, DP: tl.constexpr):
    d = tl.arange(0, 512)
    return tl.sum(tl.load(w + d, mask=d < DP, other=0.0), 0)


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
    x, y, w, w_sum, setting, bh, bk, i0, j0, LP, SP,
    SERIES: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """The tanh term of a tile."""
    i, j = i0 + tl.arange(0, BM), j0 + tl.arange(0, BN)
    if SERIES:
        F: tl.constexpr = 2 * TERMS * DP
        f = tl.arange(0, STEP)
        xs = x + (bh * LP + i0) * F + (i - i0)[:, None] * F + f[None, :]
        ys = y + (bk * SP + j0) * F + (j - j0)[None, :] * F + f[:, None]
        s = _dots(xs, ys, tl.load(setting).to(tl.int32) * (2 * DP), BM, BN, STEP) * tl.load(setting + 4)
    else:
        floor = tl.load(setting + 2)
        # Zero, by way of the tensor cores: so the compiler gives each thread 2 × 16 pairs as these do, not 32 × 1, and
        # the sums below take a third of the loads, the softmax stays within four lanes, and p needs no exchange.
        zero = tl.load(setting + 48)
        left, right = tl.zeros([BM, 16], tl.float32) + zero, tl.zeros([16, BN], tl.float32) + zero
        s = tl.dot(left.to(tl.float16), right.to(tl.float16))
        s = _fractions(
            s,
            x + bh * DP * LP + i,
            y + bk * DP * SP + j,
            w,
            floor,
            tl.load(setting + 1) != 0.0,
            LP,
            SP,
            DP,
            BM,
            BN,
            STEP,
        )
        s = w_sum - 2.0 * floor * s
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
def setup(a_max, b_max, w_max, series, setting, ROWS: tl.constexpr, EXACT: tl.constexpr):
    """What depends on the data's range, decided on the device.

    setting: number of terms (0: fractions), wide, floor ≈ e^{−R}, −, max|w|; frequencies; coefficients; zeros. With the
    queries' exponentials times floor, 1 + AB becomes floor · (1 + AB), between e^{−R} and e^R: four of these multiply.
    """
    r = tl.load(a_max).to(tl.float32) + tl.load(b_max).to(tl.float32)
    w = tl.load(w_max).to(tl.float32)
    at = tl.arange(0, 16)
    limits = tl.load(series + at * 64, mask=at < ROWS, other=INF)
    row = tl.sum(tl.where(limits < r, 1, 0), 0)
    fits = (r <= tl.load(series + (ROWS - 1) * 64)) & (w < INF)  # false for NaN
    row = tl.minimum(row, ROWS - 1)
    terms = tl.where(fits, tl.load(series + row * 64 + 1), 0.0)
    if EXACT:
        terms = 0.0 * terms
    narrow = r <= REACH
    tl.store(setting, terms)
    tl.store(setting + 1, tl.where(narrow, 0.0, 1.0))
    tl.store(setting + 2, tl.where(narrow, tl.exp2(tl.floor(-tl.minimum(r, REACH) * LOG2E)), 1.0))
    tl.store(setting + 4, tl.where((w > 0.0) & (w < INF), w, 1.0))
    tl.store(setting + 48 + at, tl.zeros([16], tl.float32))
    tl.store(setting + OMEGA + at, tl.load(series + row * 64 + OMEGA + at))
    tl.store(setting + COEFFICIENT + at, tl.load(series + row * 64 + COEFFICIENT + at))


@triton.jit
def exponentials(
    x, setting, across, along, heads, n, padded, x_b, x_h, x_n,
    SIDE: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """e^{2x}, or x itself if the range is wide: [DP, padded], the queries' (SIDE 0) times floor, and [padded, DP]."""
    if tl.load(setting) != 0.0:
        return
    pid = tl.program_id(0)
    rows, cols = padded // ROWS, tl.cdiv(DP, COLS)
    r = pid % rows * ROWS + tl.arange(0, ROWS)
    d = pid // rows % cols * COLS + tl.arange(0, COLS)
    bh = (pid // rows // cols).to(tl.int64)
    base = x + (bh // heads) * x_b + (bh % heads) * x_h
    value = tl.load(
        base + r[:, None].to(tl.int64) * x_n + d[None, :], mask=(r < n)[:, None] & (d < D)[None, :], other=0.0
    )
    value = value.to(tl.float32)
    if tl.load(setting + 1) == 0.0:
        value = _exp(2.0 * value)
    inside = (d < DP)[None, :]
    if along is not None:
        tl.store(along + bh * padded * DP + r[:, None] * DP + d[None, :], value, mask=inside)
    if SIDE == 0:
        value *= tl.load(setting + 2)  # a power of two, or 1 if wide
    if across is not None:
        tl.store(across + bh * DP * padded + d[None, :] * padded + r[:, None], value, mask=inside)


@triton.jit
def features(
    x, w, setting, out, heads, n, padded, x_b, x_h, x_n, w_b, w_h,
    SIDE: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """[padded, m, DP, 2]: c w sin(ωa), c w cos(ωa) of the queries (SIDE 0), or cos(ωb), sin(ωb) of the keys."""
    terms = tl.load(setting).to(tl.int32)
    if terms == 0:
        return
    pid = tl.program_id(0)
    rows, cols = padded // ROWS, DP // COLS
    r = pid % rows * ROWS + tl.arange(0, ROWS)
    d = pid // rows % cols * COLS + tl.arange(0, COLS)
    bh = (pid // rows // cols).to(tl.int64)
    b, h = bh // heads, bh % heads
    inside = (r < n)[:, None] & (d < D)[None, :]
    value = tl.load(x + b * x_b + h * x_h + r[:, None].to(tl.int64) * x_n + d[None, :], mask=inside, other=0.0).to(
        tl.float32
    )
    if SIDE == 0:
        weight = tl.load(w + b * w_b + h * w_h + d)[None, :] / tl.load(setting + 4)
    columns = pid // rows % cols * 2 * COLS + tl.arange(0, 2 * COLS)
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


# --- forward ---


@triton.jit
def forward(
    x, y, w, v, out, lse, setting, sink, key, row, bias, bias_b, bias_h, bias_i, bias_j,
    table, table_b, table_h, table_i, reach, slope, keys, lengths, offsets, offset, left, right,
    q_docs, k_docs, q_docs_b, k_docs_b, key_spans, key_spans_b, drop,
    H, G, L, S, LP, SP, DV, v_b, v_h, v_s, w_b, w_h,
    SERIES: tl.constexpr, PRECISION: tl.constexpr, THRESHOLD: tl.constexpr, SCALE: tl.constexpr,
    DP: tl.constexpr, DVP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Context and logsumexp of a block of queries."""
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
    w_sum = _sum(w, DP)
    v = v + b * v_b + (h // G) * v_h + dv[None, :]
    top = tl.full([BM], -INF, tl.float32)
    total = tl.zeros([BM], tl.float32)
    if sink is not None:
        top = tl.zeros([BM], tl.float32) + tl.load(sink + bh) * LOG2E
        total += tl.where(top > -INF, 1.0, 0.0)
    acc = tl.zeros([BM, DVP], tl.float32)
    for j0 in range(lo, hi, BN):
        j = j0 + tl.arange(0, BN)
        s = _scores(x, y, w, w_sum, setting, bh, bk, i0, j0, LP, SP, SERIES, DP, BM, BN, STEP)
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
    inside = i < L
    tl.store(lse + bh * L + i, (top + tl.log2(total_or_one)) * LN2, mask=inside)
    context = acc / total_or_one[:, None]
    tl.store(
        out + (bh * L + i[:, None]) * DV + dv[None, :],
        context.to(out.dtype.element_ty),
        mask=inside[:, None] & (dv < DV)[None, :],
    )


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
    x, y, w, v, grad, lse2, delta, setting, g_norm, v_norm, ds, dv_out, dkey, key, bias, bias_b, bias_h, bias_i, bias_j,
    table, table_b, table_h, table_i, reach, slope, keys, lengths, offsets, offset, left, right,
    q_docs, k_docs, q_docs_b, k_docs_b, query_spans, query_spans_b, drop,
    H, G, L, S, LP, SP, DV, v_b, v_h, v_s, w_b, w_h, first, C, first_bh, count,
    SERIES: tl.constexpr, PRECISION: tl.constexpr, THRESHOLD: tl.constexpr, SCALE: tl.constexpr,
    SHARES: tl.constexpr, DP: tl.constexpr, DVP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, STEP: tl.constexpr,
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
    w_sum = _sum(w, DP)
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
        s = _scores(x, y, w, w_sum, setting, bh, bk, i0, j0, LP, SP, SERIES, DP, BM, BN, STEP)
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
    if SHARES == 1:
        at = bh * S + j
    else:
        at = (share * count + local).to(tl.int64) * C + (j - first)
    tl.store(dkey + at, dkey_acc, mask=j < S)
    tl.store(dv_out + at[:, None] * DV + d[None, :], dv_acc, mask=(j < S)[:, None] & (d < DV)[None, :])


@triton.jit
def _pair_sums(own, other, g, step, lo, hi, wide, SIDE: tl.constexpr, DP: tl.constexpr, HALF: tl.constexpr):
    """Σ_k g_k (r − r²) and, for SIDE 1, Σ_k g_k r, with r = 1 / (1 + A B): two halves of the dims share a reciprocal.

    own: pointers [rows, HALF] to the first half; other: [1, HALF] at k = 0; g: [rows, 1] at k = 0.
    """
    x0, x1 = tl.load(own), tl.load(own + HALF)
    slope0, slope1 = tl.zeros_like(x0), tl.zeros_like(x0)
    sum0, sum1 = tl.zeros_like(x0), tl.zeros_like(x0)
    if wide:
        for k in range(lo, hi):
            e = tl.load(g + k * step)
            y0, y1 = _one_plus_exp(x0 + tl.load(other + k * DP)), _one_plus_exp(x1 + tl.load(other + k * DP + HALF))
            inverse = _inverse(y0 * y1)
            r0, r1 = y1 * inverse, y0 * inverse
            slope0 += e * (r0 - r0 * r0)
            slope1 += e * (r1 - r1 * r1)
            if SIDE == 1:
                sum0 += e * r0
                sum1 += e * r1
    else:
        for k in range(lo, hi):
            e = tl.load(g + k * step)
            y0, y1 = x0 * tl.load(other + k * DP) + 1.0, x1 * tl.load(other + k * DP + HALF) + 1.0
            inverse = _inverse(y0 * y1)
            r0, r1 = y1 * inverse, y0 * inverse
            slope0 += e * (r0 - r0 * r0)
            slope1 += e * (r1 - r1 * r1)
            if SIDE == 1:
                sum0 += e * r0
                sum1 += e * r1
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
    wide = tl.load(setting + 1) != 0.0
    ds += local.to(tl.int64) * LP * C
    if SIDE == 0:
        lo, hi = _key_range(block * ROWS, first, tl.minimum(end, first + C), offset, left, right, spans, L, ROWS)
        slope0, slope1, _, _ = _pair_sums(
            own + (bh * LP + r[:, None]) * DP + d[None, :], other + bk * SP * DP + d[None, :],
            ds + r[:, None].to(tl.int64) * C - first, 1, lo, hi, wide, SIDE, DP, HALF)  # fmt: skip
        into, limit, accumulate = out + bh * L * D, L, first > 0
    else:
        lo, hi = _query_range(first + block * ROWS, end, offset, left, right, spans, L, S, ROWS)
        lo, hi = _part(lo, hi, share, SHARES, 1)
        slope0, slope1, sum0, sum1 = _pair_sums(
            own + (bk * SP + first + r[:, None]) * DP + d[None, :], other + bh * LP * DP + d[None, :],
            ds + r[:, None], tl.cast(C, tl.int64), lo, hi, wide, SIDE, DP, HALF)  # fmt: skip
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
