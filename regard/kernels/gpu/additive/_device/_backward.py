"""The backward pass: the scores' gradient, written to a workspace, then summed over keys and over queries."""

# ruff: noqa: E501
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from regard.kernels.gpu._pieces import (
    INF,
    LOG2E,
    dot,
    hash_rows,
    key_range,
    load_ids,
    load_item,
    load_prefix,
    narrow,
    query_range,
    survives,
    visible,
)
from regard.kernels.gpu.additive._device._numbers import _inverse, _part, _sin_cos
from regard.kernels.gpu.additive._device._scores import (
    COEFFICIENT,
    OMEGA,
    TERMS,
    _lines,
    _one_plus_exp,
    _other_terms,
    _scores,
    _touch,
    _use,
    _weights,
)

DOC_ROWS = tl.constexpr(32)  # queries or keys per entry of the spans of documents

CHUNK = tl.constexpr(16)  # steps after which pair_gradients looks ahead


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
def _scale(g_norm, v_norm, keep_scale, SERIES: tl.constexpr):
    """The factor of dS in the workspace: |dS_ij| ≤ 2 α_ij max|g| max|v| / (1 − p) must fit float16."""
    scale = 1.0
    if SERIES:
        bound = tl.sqrt(tl.load(g_norm)) * tl.load(v_norm) * (2.0 * keep_scale)
        scale = tl.where(bound > 0.0, 8192.0 / bound, 1.0)
    return scale


@triton.jit
def score_gradients(
    x, y, w, omega, v, grad, lse2, delta, setting, g_norm, v_norm, ds, dv_out, dkey, key, bias, bias_b, bias_h, bias_i, bias_j,
    table, table_b, table_h, table_i, reach, slope, ITEMS, offset, limit, prefix, left, right,
    QID, KID, idb_q, idb_k, SPANS, spans_b, HASH, threshold, keep_scale,
    H, G, L, S, LP, SP, D, DV, v_b, v_h, v_s, w_b, w_h, first, C, first_bh, count,
    SERIES: tl.constexpr, PRECISION: tl.constexpr, SHARES: tl.constexpr, DP: tl.constexpr, DVP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, STEP: tl.constexpr,
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
    offset, limit = load_item(ITEMS, b, offset, limit)
    if prefix is not None:
        prefix = load_prefix(ITEMS, b, prefix)
    if QID is not None:
        QID, KID, SPANS = QID + b * idb_q, KID + b * idb_k, SPANS + b * spans_b
    lo, hi = query_range(j0, j0 + BN - 1, offset, L, limit, prefix, left, right)
    lo, hi = narrow(lo, hi, SPANS, j0, S, BN, DOC_ROWS)
    lo, hi = _part(lo, hi, share, SHARES, BM)
    w = w + b * w_b + h * w_h
    factor, weights = _weights(w, setting, D, DP)
    zero = tl.load(setting + 48).to(tl.int32, bitcast=True)
    touched = tl.zeros([AHEAD], tl.int32)
    scale = _scale(g_norm, v_norm, keep_scale, SERIES)
    values = tl.load(
        v + b * v_b + (h // G) * v_h + j[:, None].to(tl.int64) * v_s + d[None, :],
        mask=(j < S)[:, None] & (d < DV)[None, :],
        other=0.0,
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
        seen = visible(
            j[None, :] - position[:, None], j[None, :], load_ids(QID, i, L)[:, None], load_ids(KID, j, S)[None, :],
            limit, prefix, left, right, QID is not None,
        )  # fmt: skip
        s = tl.where(seen, s * LOG2E, -INF)
        sums = tl.load(lse2 + bh * L + i, mask=i < L, other=INF)
        p = tl.exp2(s - sums[:, None])
        g = tl.load(
            grad + (bh * L + i[:, None]) * DV + d[None, :], mask=(sums < INF)[:, None] & (d < DV)[None, :], other=0.0
        )
        dp = dot(g, tl.trans(values), tl.zeros([BM, BN], tl.float32), PRECISION)
        dropped = p
        if HASH is not None:
            keep = tl.where(survives(hash_rows(HASH, bh, i)[:, None], j[None, :], threshold), keep_scale, 0.0)
            dp, dropped = dp * keep, p * keep
        dv_acc = dot(tl.trans(dropped.to(g.dtype)), g, dv_acc, PRECISION)
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
    are every eighth number that the first CHUNK steps read of g and other, and g_k, other_k the steps: they prefetch dS
    from memory, whose latency there are too few warps to hide.
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
    ds, own, other, w, setting, dkey, out, dw, ITEMS, offset, limit, prefix, left, right, QID, KID, idb_q, idb_k,
    SPANS, spans_b,
    H, G, L, S, LP, SP, D, w_b, w_h, first, C, first_bh, count,
    SIDE: tl.constexpr, SHARES: tl.constexpr, DP: tl.constexpr, ROWS: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """Gradients of a (SIDE 0) or b (SIDE 1) from dS by fractions: w_d Σ dS (1 − tanh²), 1 − tanh² = 4 r (1 − r).

    A program keeps a block of rows × hidden dims in registers and steps along the other side one by one, so there are no
    sums across threads.
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
    offset, limit = load_item(ITEMS, b, offset, limit)
    if prefix is not None:
        prefix = load_prefix(ITEMS, b, prefix)
    if SPANS is not None:
        SPANS += b * spans_b
    wide = tl.load(setting + 3) != 0.0
    zero = tl.load(setting + 48).to(tl.int32, bitcast=True)
    ds += local.to(tl.int64) * LP * C
    eighth, part_of_chunk = tl.arange(0, CHUNK * ROWS // 8), tl.arange(0, CHUNK * HALF // 4)
    other_k, other_d = part_of_chunk // (HALF // 4), chunk * 2 * HALF + part_of_chunk % (HALF // 4) * 8
    if SIDE == 0:
        p0 = offset + block * ROWS
        lo, hi = key_range(p0, p0 + ROWS - 1, limit, prefix, left, right)
        lo, hi = narrow(lo, hi, SPANS, block * ROWS, L, ROWS, DOC_ROWS)
        lo, hi = tl.maximum(lo, first), tl.minimum(hi, first + C)
        own += (bh * LP + r[:, None]) * DP + d[None, :]
        other += bk * SP * DP
        g, step = ds + r[:, None].to(tl.int64) * C - first, tl.cast(1, tl.int64)
        g_k = eighth % (CHUNK // 8) * 8
        g_ahead = ds + (block * ROWS + eighth // (CHUNK // 8)).to(tl.int64) * C - first + g_k
    else:
        k0 = first + block * ROWS
        lo, hi = query_range(k0, k0 + ROWS - 1, offset, L, limit, prefix, left, right)
        lo, hi = narrow(lo, hi, SPANS, k0, S, ROWS, DOC_ROWS)
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
    ds, other, x, w, setting, g_norm, v_norm, out, dw, ITEMS, offset, limit, prefix, left, right,
    QID, KID, idb_q, idb_k, SPANS, spans_b, keep_scale,
    H, G, L, S, LP, SP, D, x_b, x_h, x_n, w_b, w_h, first, C, first_bh, count,
    SIDE: tl.constexpr, SHARES: tl.constexpr, DP: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, PAIR: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Gradients of a and w (SIDE 0) or b (SIDE 1) from dS by the series.

    The gradient of the features is dS times the other side's features; the chain rule through sin and cos is applied to
    each block of it in registers, PAIR terms at a time, so it is never stored.
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
    offset, limit = load_item(ITEMS, b, offset, limit)
    if prefix is not None:
        prefix = load_prefix(ITEMS, b, prefix)
    if SPANS is not None:
        SPANS += b * spans_b
    ds += local.to(tl.int64) * LP * C
    if SIDE == 0:
        p0 = offset + block * ROWS
        lo, hi = key_range(p0, p0 + ROWS - 1, limit, prefix, left, right)
        lo, hi = narrow(lo, hi, SPANS, block * ROWS, L, ROWS, DOC_ROWS)
        lo, hi = tl.maximum(lo, first), tl.minimum(hi, first + C)
        lo = lo // STEP * STEP
        other += bk * SP * F
        x += b * x_b + h * x_h
        n, row = L, r
    else:
        k0 = first + block * ROWS
        lo, hi = query_range(k0, k0 + ROWS - 1, offset, L, limit, prefix, left, right)
        lo, hi = narrow(lo, hi, SPANS, k0, S, ROWS, DOC_ROWS)
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
        # Volatile: reloaded for every term, not kept in registers that the product needs.
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
    scale = _scale(g_norm, v_norm, keep_scale, True)
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
    ds, setting, g_norm, v_norm, out, dslope, ITEMS, offset, H, L, LP, S, R, reach, first, C, first_bh, keep_scale,
    SERIES: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """Gradient of the offset table, [L, R] of each head: an inner entry belongs to one key, the outer two to many."""
    if (tl.load(setting) != 0.0) != SERIES:
        return
    pid = tl.program_id(0)
    blocks = LP // ROWS
    local = pid // blocks
    bh = first_bh + local.to(tl.int64)
    i = pid % blocks * ROWS + tl.arange(0, ROWS)
    offset, _ = load_item(ITEMS, bh // H, offset, S)
    into = out + (bh * L + i) * R
    low, high, beyond = tl.zeros([ROWS], tl.float32), tl.zeros([ROWS], tl.float32), tl.zeros([ROWS], tl.float32)
    inverse = 1.0 / _scale(g_norm, v_norm, keep_scale, SERIES)
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
