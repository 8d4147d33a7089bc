"""The forward pass; for few queries, programs split the keys."""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from regard.kernels.gpu._pieces import (
    INF,
    LN2,
    LOG2E,
    hash_rows,
    key_range,
    load_ids,
    load_item,
    load_prefix,
    narrow,
    online,
    survives,
    visible,
)
from regard.kernels.gpu.additive._device._numbers import _inverse, _part
from regard.kernels.gpu.additive._device._scores import (
    _lines,
    _one_plus_exp,
    _other_terms,
    _scores,
    _touch,
    _use,
    _weights,
)

DOC_ROWS = tl.constexpr(32)  # queries or keys per entry of the spans of documents


@triton.jit
def _start(sink, bh, first, BM: tl.constexpr):
    """The initial maximum and sum of exponentials; the ``first`` part of the keys includes the sink."""
    top, total = tl.full([BM], -INF, tl.float32), tl.zeros([BM], tl.float32)
    if sink is not None:
        top = tl.where(first, tl.load(sink + bh) * LOG2E, top)
        total = tl.where(top > -INF, 1.0, 0.0)
    return top, total


@triton.jit
def forward(
    x, y, w, omega, v, out, lse, setting, sink, key, row, bias, bias_b, bias_h, bias_i, bias_j,
    table, table_b, table_h, table_i, reach, slope, ITEMS, offset, limit, prefix, left, right,
    QID, KID, idb_q, idb_k, SPANS, spans_b, HASH, threshold, keep_scale,
    H, G, L, S, LP, SP, D, DV, v_b, v_h, v_s, w_b, w_h,
    SERIES: tl.constexpr, PRECISION: tl.constexpr, DP: tl.constexpr, DVP: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, STEP: tl.constexpr, GROUP: tl.constexpr, AHEAD: tl.constexpr,
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
    offset, limit = load_item(ITEMS, b, offset, limit)
    if prefix is not None:
        prefix = load_prefix(ITEMS, b, prefix)
    position = offset + i
    if QID is not None:
        QID, KID, SPANS = QID + b * idb_q, KID + b * idb_k, SPANS + b * spans_b
    lo, hi = key_range(offset + i0, offset + i0 + BM - 1, limit, prefix, left, right)
    lo, hi = narrow(lo, hi, SPANS, i0, L, BM, DOC_ROWS)
    lo = lo // BN * BN
    w = w + b * w_b + h * w_h
    factor, weights = _weights(w, setting, D, DP)
    zero = tl.load(setting + 48).to(tl.int32, bitcast=True)
    touched = tl.zeros([AHEAD], tl.int32)
    v = v + b * v_b + (h // G) * v_h + dv[None, :]
    top, total = _start(sink, bh, True, BM)
    row_hash = i
    if HASH is not None:
        row_hash = hash_rows(HASH, bh, i)
    acc = tl.zeros([BM, DVP], tl.float32)
    for j0 in range(lo, hi, BN):
        j = j0 + tl.arange(0, BN)
        if not SERIES:
            ahead = (j0 + BN) * DP + _lines(AHEAD)
            touched = _touch(touched, y + bk * SP * DP + ahead, ahead < tl.minimum(j0 + 2 * BN, SP) * DP, zero)
        s = _scores(x, y, w, omega, factor, weights, setting, bh, bk, i0, j0, LP, SP, SERIES, DP, BM, BN, STEP, GROUP)
        s = _other_terms(s, b, h, bh, bk, i, j, position, L, S, key, row, bias, bias_b, bias_h, bias_i, bias_j,
                         table, table_b, table_h, table_i, reach, slope)  # fmt: skip
        seen = visible(
            j[None, :] - position[:, None], j[None, :], load_ids(QID, i, L)[:, None], load_ids(KID, j, S)[None, :],
            limit, prefix, left, right, QID is not None,
        )  # fmt: skip
        s = tl.where(seen, s * LOG2E, -INF)
        keep = s
        if HASH is not None:
            keep = survives(row_hash[:, None], j[None, :], threshold)
        values = tl.load(v + j[:, None].to(tl.int64) * v_s, mask=(j < S)[:, None] & (dv < DV)[None, :], other=0.0)
        top, total, acc, _, _ = online(
            s, 1.0, tl.zeros([BM], tl.float32), top, total, acc, values, keep, HASH is not None, False, PRECISION
        )
    total_or_one = tl.where(total == 0.0, 1.0, total)
    if not SERIES:
        _use(touched, lse)
    inside = i < L
    tl.store(lse + bh * L + i, (top + tl.log2(total_or_one)) * LN2, mask=inside)
    context = acc * (keep_scale / total_or_one)[:, None]
    tl.store(
        out + (bh * L + i[:, None]) * DV + dv[None, :],
        context.to(out.dtype.element_ty),
        mask=inside[:, None] & (dv < DV)[None, :],
    )


@triton.jit
def _few_scores(a, keys, w, i, L, a_n, D: tl.constexpr, COLS: tl.constexpr, QUERIES: tl.constexpr, BM: tl.constexpr):
    """Σ_d w_d tanh(a_id + b_jd) of a block of keys [BN, COLS], for each query in a row of [BM, BN].

    By one exponential per sum: exact for all numbers, without knowing the range of keys not yet read.
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
    a, y, w, v, parts, lses, sink, key, row, bias, bias_b, bias_h, bias_i, bias_j,
    table, table_b, table_h, table_i, reach, slope, ITEMS, offset, limit, prefix, left, right,
    QID, KID, idb_q, idb_k, SPANS, spans_b, HASH, threshold, keep_scale,
    H, G, L, S, DV, a_b, a_h, a_n, b_b, b_h, b_n, v_b, v_h, v_s, w_b, w_h, w_d, splits, n,
    D: tl.constexpr, COLS: tl.constexpr, DVP: tl.constexpr, QUERIES: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, EXPONENTIAL: tl.constexpr,
):  # fmt: skip
    """Few queries against one of ``splits`` parts of the keys, each read once: context and logsumexp of the part."""
    pid = tl.program_id(0)
    h, split, b = pid % H, pid // H % splits, (pid // H // splits).to(tl.int64)  # heads of a group share their keys
    bh, bk = b * H + h, b * (H // G) + h // G
    i, d, dv = tl.arange(0, BM), tl.arange(0, COLS), tl.arange(0, DVP)
    offset, limit = load_item(ITEMS, b, offset, limit)
    if prefix is not None:
        prefix = load_prefix(ITEMS, b, prefix)
    position = offset + i
    if QID is not None:
        QID, KID, SPANS = QID + b * idb_q, KID + b * idb_k, SPANS + b * spans_b
    lo, hi = key_range(offset, offset + BM - 1, limit, prefix, left, right)
    lo, hi = narrow(lo, hi, SPANS, 0, L, DOC_ROWS, DOC_ROWS)
    lo, hi = _part(lo, hi, split, splits, BN)
    a += b * a_b + h * a_h
    y += b * b_b + (h // G) * b_h + d[None, :]
    v += b * v_b + (h // G) * v_h + dv[None, :]
    weights = tl.load(w + b * w_b + h * w_h + d * w_d, mask=d < D, other=0.0).to(tl.float32)
    top, total = _start(sink, bh, split == 0, BM)
    row_hash = i
    if HASH is not None:
        row_hash = hash_rows(HASH, bh, i)
    acc = tl.zeros([BM, DVP], tl.float32)
    for j0 in range(lo, hi, BN):
        j = j0 + tl.arange(0, BN)
        at, inside = j[:, None].to(tl.int64), (j < S)[:, None]
        block = tl.load(y + at * b_n, mask=inside & (d < D)[None, :], other=1.0).to(tl.float32)
        if EXPONENTIAL:  # a cache keeps e^{2b}; the logarithm hides behind the memory
            block = 0.5 * tl.log(block)
        values = tl.load(v + at * v_s, mask=inside & (dv < DV)[None, :], other=0.0)
        s = _few_scores(a, block, weights, i, L, a_n, D, COLS, QUERIES, BM)
        s = _other_terms(s, b, h, bh, bk, i, j, position, L, S, key, row, bias, bias_b, bias_h, bias_i, bias_j,
                         table, table_b, table_h, table_i, reach, slope)  # fmt: skip
        seen = visible(
            j[None, :] - position[:, None], j[None, :], load_ids(QID, i, L)[:, None], load_ids(KID, j, S)[None, :],
            limit, prefix, left, right, QID is not None,
        )  # fmt: skip
        s = tl.where(seen, s * LOG2E, -INF)
        keep = s
        if HASH is not None:
            keep = survives(row_hash[:, None], j[None, :], threshold)
        top, total, acc, _, _ = online(
            s, 1.0, tl.zeros([BM], tl.float32), top, total, acc, values, keep, HASH is not None, False, PRECISION
        )
    total_or_one = tl.where(total == 0.0, 1.0, total)
    at = split * n + bh * L + i
    tl.store(lses + at, (top + tl.log2(total_or_one)) * LN2, mask=i < L)
    acc = acc * (keep_scale / total_or_one)[:, None]
    tl.store(parts + at[:, None] * DV + dv[None, :], acc, mask=(i < L)[:, None] & (dv < DV)[None, :])
