"""The forward pass; for few queries, parts of the keys by different programs, and their union."""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from regard.kernels.gpu.additive._device._pieces import (
    INF,
    LN2,
    LOG2E,
    _bounds,
    _inverse,
    _keep,
    _key_range,
    _up,
    _visible,
)
from regard.kernels.gpu.additive._device._scores import (
    _lines,
    _one_plus_exp,
    _other_terms,
    _scores,
    _touch,
    _use,
    _weights,
)


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
