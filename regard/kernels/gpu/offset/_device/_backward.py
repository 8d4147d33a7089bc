"""The backward pass: statistics per query, then one kernel by keys and one by queries."""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from regard.kernels.gpu._pieces import (
    INF,
    LOG2E,
    dot,
    hash_rows,
    load_ids,
    load_item,
    load_prefix,
    survives,
)
from regard.kernels.gpu.offset._device._rows import (
    VARY,
    _key_term,
    _rows,
    _slope,
    _store_rows,
    _tanh,
)
from regard.kernels.gpu.offset._device._tables import (
    _at_distance,
    _by_distance,
    _far,
    _far_start,
    _general,
    _general_start,
    _key_zones,
    _query_zones,
    _store_ends,
)


@triton.jit(do_not_specialize=VARY)
def statistics(
    OUT, GRAD, LSE, T, TV, STATS, gb, gh, gi, tb, th, ti, H, L, reach,
    DV: tl.constexpr, BDV: tl.constexpr, BM: tl.constexpr, NS: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """NS numbers per query: Σ out·grad, the logsumexp to base 2 (∞ for a row with no visible key), and that minus
    either end of the table; with a value term also both ends of grad·r'."""
    blocks = tl.cdiv(L, BM)
    bh = (tl.program_id(0) // blocks).to(tl.int64)
    i0 = tl.program_id(0) % blocks * BM
    b, h = bh // H, bh % H
    near_i = tl.arange(0, BM)
    rows = i0 + near_i
    ok = rows < L
    out = _rows(OUT + bh * L * DV, i0, DV, near_i, L, DV, BDV, False).to(tl.float32)
    grad = _rows(GRAD + b * gb + h * gh, i0, gi, near_i, L, DV, BDV, False).to(tl.float32)
    lse = tl.load(LSE + bh * L + rows, mask=ok, other=0.0)
    nothing = (lse == -INF) | (lse != lse)
    delta = tl.where(lse != lse, 0.0, tl.sum(out * grad, 1))
    lse = tl.where(nothing, INF, lse * LOG2E)
    T += b * tb + h * th + i0.to(tl.int64) * ti
    at = tl.minimum(near_i, L - 1 - i0) * ti
    t_left = tl.load(T + at).to(tl.float32) * LOG2E
    t_right = tl.load(T + at + 2 * reach).to(tl.float32) * LOG2E
    STATS += (bh * L + rows) * NS
    tl.store(STATS, delta, mask=ok)
    tl.store(STATS + 1, lse, mask=ok)
    tl.store(STATS + 2, lse - t_left, mask=ok)
    tl.store(STATS + 3, lse - t_right, mask=ok)
    if VALUES:
        TV += (bh * L + rows) * (2 * reach + 1)
        tl.store(STATS + 4, tl.load(TV, mask=ok, other=0.0).to(tl.float32), mask=ok)
        tl.store(STATS + 5, tl.load(TV + 2 * reach, mask=ok, other=0.0).to(tl.float32), mask=ok)
        tl.store(STATS + 6, tl.zeros([BM], tl.float32), mask=ok)
        tl.store(STATS + 7, tl.zeros([BM], tl.float32), mask=ok)


@triton.jit
def _statistics_of(STATS, rows, L, which, NS: tl.constexpr, EVEN: tl.constexpr):
    """Σ out·grad, the logsumexp ``which`` and, with a value term, that end of grad·r'. All are loaded at once and the
    rest discarded: loaded separately, every thread that needs a number would fetch it."""
    n = tl.arange(0, NS)[None, :]
    if EVEN:
        all_of = tl.load(STATS + (rows[:, None] * NS + n))
    else:
        all_of = tl.load(STATS + (rows[:, None] * NS + n), mask=rows[:, None] < L, other=INF)
    delta = tl.sum(tl.where(n == 0, all_of, 0.0), 1)
    lse = tl.sum(tl.where(n == which, all_of, 0.0), 1)
    value = delta
    if NS == 8:
        value = tl.sum(tl.where(n == which + 2, all_of, 0.0), 1)
    if not EVEN:
        delta, value = tl.where(rows < L, delta, 0.0), tl.where(rows < L, value, 0.0)
    return delta, lse, value


@triton.jit
def _score_gradient(p, dp, delta, keep, keep_scale, DROP: tl.constexpr):
    """dE of a tile, and the weights after dropout."""
    met = p
    if DROP:
        met = tl.where(keep, p * keep_scale, 0.0)
        dp = tl.where(keep, dp * keep_scale, 0.0)
    return p * (dp - delta), met


@triton.jit(do_not_specialize=VARY)
def backward_keys(
    Q, K, V, T, TV, SLOPE, KEY, GRAD, STATS, DK, DV_, DKEY, ITEMS, QID, KID, SPANS, HASH,
    qb, qh, qi, kb, kh, kj, vb, vh, vj, tb, th, ti, cb, ch, cj, gb, gh, gi, idb_q, idb_k, spans_b,
    H, G, L, S, reach, offset, limit, prefix, left, right, threshold, scale, factor, inner, cap, keep_scale,
    D: tl.constexpr, DV: tl.constexpr, BD: tl.constexpr, BDV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    HAS_DOT: tl.constexpr, ONE: tl.constexpr, CAP: tl.constexpr, EVEN_Q: tl.constexpr, EVEN_K: tl.constexpr,
    NS: tl.constexpr, VALUES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dk, dv and the key term's gradient for a block of keys of one key/value head; tiles are [BN, BM]."""
    DOCS: tl.constexpr = QID is not None
    HAS_KEY: tl.constexpr = KEY is not None
    HAS_SLOPE: tl.constexpr = SLOPE is not None
    DROP: tl.constexpr = HASH is not None
    blocks = tl.cdiv(S, BN)
    bk = (tl.program_id(0) // blocks).to(tl.int64)
    j0 = tl.program_id(0) % blocks * BN  # with a causal mask the first blocks have the most work
    heads = H // G
    b, kv = bk // heads, bk % heads
    offset, limit = load_item(ITEMS, b, offset, limit)
    if prefix is not None:
        prefix = load_prefix(ITEMS, b, prefix)
    near_i, near_j = tl.arange(0, BM), tl.arange(0, BN)
    cols = j0 + near_j
    k = _rows(K + b * kb + kv * kh, j0, kj, near_j, S, D, BD, EVEN_K)
    v = _rows(V + b * vb + kv * vh, j0, vj, near_j, S, DV, BDV, EVEN_K)
    if HAS_KEY:
        KEY += b * cb + kv * ch
    if DOCS:
        SPANS += b * spans_b
        QID += b * idb_q
        KID += b * idb_k
    key = _key_term(KEY, cols, cj, S, EVEN_K)
    k_ids = load_ids(KID, cols, S)
    lo, a, z, c, d, hi = _query_zones(
        j0, j0 + BN - 1, offset, reach, L, S, limit, prefix, left, right, SPANS, BM, BN, DOCS
    )
    f = factor
    if DOCS or prefix is not None or HAS_SLOPE or HAS_KEY:
        f = 1.0
    dk = tl.zeros([BN, BD], tl.float32)
    dv = tl.zeros([BN, BDV], tl.float32)
    dkey = tl.zeros([BN], tl.float32)
    width = 2 * reach + 1

    for g in range(G):
        h = kv * G + g
        bh = b * H + h
        slope = _slope(SLOPE, bh)
        Qh = Q + b * qb + h * qh
        Th = T + b * tb + h * th
        Gh = GRAD + b * gb + h * gh
        Sh = STATS + bh * L * NS
        if VALUES:
            TVh = TV + bh * L * width

        for n in range((z - a + d - c) // BM):
            i0 = _far_start(n, a, z, c, BM)
            rows = i0 + near_i
            q = _rows(Qh, i0, qi, near_i, L, D, BD, EVEN_Q)
            x = dot(k, tl.trans(q), tl.zeros([BN, BM], tl.float32), PRECISION)
            grad = _rows(Gh, i0, gi, near_i, L, DV, BDV, EVEN_Q)
            is_left = i0 >= c
            delta, lse, value = _statistics_of(Sh, rows, L, tl.where(is_left, 2, 3), NS, EVEN_Q)
            if CAP:
                capped = _tanh(x * inner)
                x = cap * capped
            position, q_ids = offset + rows, load_ids(QID, rows, L)
            x, t = _far(
                x, -lse[None, :], is_left, j0, near_j[:, None], position[None, :], key[:, None], q_ids[None, :],
                k_ids[:, None], factor, slope, reach, limit, prefix, left, right,
                HAS_SLOPE, HAS_KEY, DOCS,
            )  # fmt: skip
            p = tl.exp2(x * f + t)
            keep = x
            if DROP:
                keep = survives(hash_rows(HASH, bh, rows)[None, :], cols[:, None], threshold)
            dp = dot(v, tl.trans(grad), tl.zeros([BN, BM], tl.float32), PRECISION)
            if VALUES:
                dp += value[None, :]
            ds, met = _score_gradient(p, dp, delta[None, :], keep, keep_scale, DROP)
            dv = dot(met.to(grad.dtype), grad, dv, PRECISION)
            if HAS_KEY:
                dkey += tl.sum(ds, 1)
            if CAP:
                ds = ds * (1 - capped * capped)
            if HAS_DOT:
                dk = dot(ds.to(q.dtype), q, dk, PRECISION)

        for n in range((a - lo + c - z + hi - d) // BM):
            i0 = _general_start(n, lo, a, z, c, d, BM)
            rows = i0 + near_i
            q = _rows(Qh, i0, qi, near_i, L, D, BD, EVEN_Q)
            x = dot(k, tl.trans(q), tl.zeros([BN, BM], tl.float32), PRECISION)
            grad = _rows(Gh, i0, gi, near_i, L, DV, BDV, EVEN_Q)
            delta, lse, _ = _statistics_of(Sh, rows, L, 1, NS, EVEN_Q)
            if CAP:
                capped = _tanh(x * inner)
                x = cap * capped
            distance = cols[:, None] - (offset + rows)[None, :]
            at = tl.minimum(near_i, L - 1 - i0) * ti
            q_ids, Ti = load_ids(QID, rows, L), Th + i0.to(tl.int64) * ti
            x = _general(
                x, Ti, at[None, :], distance, cols[:, None], key[:, None], q_ids[None, :], k_ids[:, None], factor,
                slope, reach, limit, prefix, left, right, ONE, HAS_SLOPE, HAS_KEY, DOCS,
            )  # fmt: skip
            p = tl.exp2(x - lse[None, :])
            keep = x
            if DROP:
                keep = survives(hash_rows(HASH, bh, rows)[None, :], cols[:, None], threshold)
            dp = dot(v, tl.trans(grad), tl.zeros([BN, BM], tl.float32), PRECISION)
            if VALUES:
                at = tl.minimum(near_i, L - 1 - i0) * width
                dp += _at_distance(TVh + i0.to(tl.int64) * width, at[None, :], distance, reach)
            ds, met = _score_gradient(p, dp, delta[None, :], keep, keep_scale, DROP)
            dv = dot(met.to(grad.dtype), grad, dv, PRECISION)
            if HAS_KEY:
                dkey += tl.sum(ds, 1)
            if CAP:
                ds = ds * (1 - capped * capped)
            if HAS_DOT:
                dk = dot(ds.to(q.dtype), q, dk, PRECISION)

    # Far tiles do not mask keys beyond the limit: discard their sums.
    ok = cols < limit
    _store_rows(DV_ + bk * S * DV, tl.where(ok[:, None], dv, 0.0), j0, DV, near_j, S, DV, BDV)
    if HAS_DOT:
        _store_rows(DK + bk * S * D, tl.where(ok[:, None], dk * scale, 0.0), j0, D, near_j, S, D, BD)
    if HAS_KEY:
        tl.store(DKEY + bk * S + cols, tl.where(ok, dkey, 0.0), mask=cols < S)


@triton.jit(do_not_specialize=VARY)
def backward_queries(
    Q, K, V, T, TV, SLOPE, KEY, GRAD, STATS, DQ, DT, W, ITEMS, QID, KID, SPANS, HASH,
    qb, qh, qi, kb, kh, kj, vb, vh, vj, tb, th, ti, cb, ch, cj, gb, gh, gi, idb_q, idb_k, spans_b,
    H, G, L, S, reach, offset, limit, prefix, left, right, threshold, scale, factor, inner, cap, keep_scale, first,
    D: tl.constexpr, DV: tl.constexpr, BD: tl.constexpr, BDV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    HAS_DOT: tl.constexpr, ONE: tl.constexpr, CAP: tl.constexpr, EVEN_Q: tl.constexpr, EVEN_K: tl.constexpr,
    NS: tl.constexpr, VALUES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dq and the table's gradient (zero beforehand) for a block of queries; ``first`` is the first head of DT."""
    DOCS: tl.constexpr = QID is not None
    HAS_KEY: tl.constexpr = KEY is not None
    HAS_SLOPE: tl.constexpr = SLOPE is not None
    DROP: tl.constexpr = HASH is not None
    blocks = tl.cdiv(L, BM)
    bt = (tl.program_id(0) // blocks).to(tl.int64)
    bh = bt + first
    i0 = (blocks - 1 - tl.program_id(0) % blocks) * BM
    b, h = bh // H, bh % H
    kv = h // G
    offset, limit = load_item(ITEMS, b, offset, limit)
    if prefix is not None:
        prefix = load_prefix(ITEMS, b, prefix)
    near_i, near_j = tl.arange(0, BM), tl.arange(0, BN)
    rows = i0 + near_i
    position = offset + rows
    T += b * tb + h * th + i0.to(tl.int64) * ti
    at = tl.minimum(near_i, L - 1 - i0) * ti
    slope = _slope(SLOPE, bh)
    K += b * kb + kv * kh
    q = _rows(Q + b * qb + h * qh, i0, qi, near_i, L, D, BD, EVEN_Q)
    V += b * vb + kv * vh
    grad = _rows(GRAD + b * gb + h * gh, i0, gi, near_i, L, DV, BDV, EVEN_Q)
    STATS += (bh * L + rows) * NS
    delta = tl.load(STATS, mask=rows < L, other=0.0)
    lse = tl.load(STATS + 1, mask=rows < L, other=INF)
    lse_left = tl.load(STATS + 2, mask=rows < L, other=INF)
    lse_right = tl.load(STATS + 3, mask=rows < L, other=INF)
    if HAS_KEY:
        KEY += b * cb + kv * ch
    if DOCS:
        SPANS += b * spans_b
        QID += b * idb_q
        KID += b * idb_k
    q_ids = load_ids(QID, rows, L)
    row_hash = rows
    if DROP:
        row_hash = hash_rows(HASH, bh, rows)
    lo, a, z, c, d, hi = _key_zones(
        offset + i0, offset + i0 + BM - 1, reach, L, limit, prefix, left, right, SPANS, i0, BM, BN, DOCS
    )
    f = factor
    if DOCS or prefix is not None or HAS_SLOPE or HAS_KEY:
        f = 1.0
    dq = tl.zeros([BM, BD], tl.float32)
    left_end = tl.zeros([BM], tl.float32)
    right_end = tl.zeros([BM], tl.float32)
    width = 2 * reach + 1
    if not ONE:
        DT += (bt * L + i0) * width + near_i * width
    if VALUES:
        value_left = tl.load(STATS + 4, mask=rows < L, other=0.0)
        value_right = tl.load(STATS + 5, mask=rows < L, other=0.0)
        W += (bh * L + i0) * width + near_i * width
        TV += (bh * L + i0) * width
        met_left = tl.zeros([BM], tl.float32)
        met_right = tl.zeros([BM], tl.float32)

    for n in range((z - a + d - c) // BN):
        j0 = _far_start(n, a, z, c, BN)
        cols = j0 + near_j
        k = _rows(K, j0, kj, near_j, S, D, BD, EVEN_K)
        x = dot(q, tl.trans(k), tl.zeros([BM, BN], tl.float32), PRECISION)
        v = _rows(V, j0, vj, near_j, S, DV, BDV, EVEN_K)
        if CAP:
            capped = _tanh(x * inner)
            x = cap * capped
        k_ids, key = load_ids(KID, cols, S), _key_term(KEY, cols, cj, S, EVEN_K)
        is_left = j0 < c
        t = -tl.where(is_left, lse_left, lse_right)[:, None]
        x, t = _far(
            x, t, is_left, j0, near_j[None, :], position[:, None], key[None, :], q_ids[:, None], k_ids[None, :], factor,
            slope, reach, limit, prefix, left, right, HAS_SLOPE, HAS_KEY, DOCS,
        )  # fmt: skip
        p = tl.exp2(x * f + t)
        keep = x
        if DROP:
            keep = survives(row_hash[:, None], cols[None, :], threshold)
        dp = dot(grad, tl.trans(v), tl.zeros([BM, BN], tl.float32), PRECISION)
        if VALUES:
            dp += tl.where(is_left, value_left, value_right)[:, None]
        ds, met = _score_gradient(p, dp, delta[:, None], keep, keep_scale, DROP)
        if VALUES:
            end = tl.sum(met, 1)
            met_left += tl.where(is_left, end, 0.0)
            met_right += tl.where(is_left, 0.0, end)
        if not ONE:
            end = tl.sum(ds, 1)
            left_end += tl.where(is_left, end, 0.0)
            right_end += tl.where(is_left, 0.0, end)
        if CAP:
            ds = ds * (1 - capped * capped)
        if HAS_DOT:
            dq = dot(ds.to(k.dtype), k, dq, PRECISION)

    for n in range((a - lo + c - z + hi - d) // BN):
        j0 = _general_start(n, lo, a, z, c, d, BN)
        cols = j0 + near_j
        k = _rows(K, j0, kj, near_j, S, D, BD, EVEN_K)
        x = dot(q, tl.trans(k), tl.zeros([BM, BN], tl.float32), PRECISION)
        v = _rows(V, j0, vj, near_j, S, DV, BDV, EVEN_K)
        if CAP:
            capped = _tanh(x * inner)
            x = cap * capped
        distance = cols[None, :] - position[:, None]
        k_ids, key = load_ids(KID, cols, S), _key_term(KEY, cols, cj, S, EVEN_K)
        x = _general(
            x, T, at[:, None], distance, cols[None, :], key[None, :], q_ids[:, None], k_ids[None, :], factor, slope,
            reach, limit, prefix, left, right, ONE, HAS_SLOPE, HAS_KEY, DOCS,
        )  # fmt: skip
        p = tl.exp2(x - lse[:, None])
        keep = x
        if DROP:
            keep = survives(row_hash[:, None], cols[None, :], threshold)
        dp = dot(grad, tl.trans(v), tl.zeros([BM, BN], tl.float32), PRECISION)
        if VALUES:
            dp += _at_distance(TV, (tl.minimum(near_i, L - 1 - i0) * width)[:, None], distance, reach)
        ds, met = _score_gradient(p, dp, delta[:, None], keep, keep_scale, DROP)
        if VALUES:
            left_sum, right_sum = _by_distance(W, met, distance, reach, (rows < L)[:, None], ONE)
            met_left += left_sum
            met_right += right_sum
        if not ONE:
            left_sum, right_sum = _by_distance(DT, ds, distance, reach, (rows < L)[:, None], ONE)
            left_end += left_sum
            right_end += right_sum
        if CAP:
            ds = ds * (1 - capped * capped)
        if HAS_DOT:
            dq = dot(ds.to(k.dtype), k, dq, PRECISION)

    if HAS_DOT:
        _store_rows(DQ + bh * L * D, dq * scale, i0, D, near_i, L, D, BD)
    if not ONE:
        _store_ends(DT, left_end, right_end, reach, rows < L, ONE)
    if VALUES:
        _store_ends(W, met_left, met_right, reach, rows < L, ONE)
