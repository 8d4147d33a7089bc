"""The forward pass, and NaN in rows that see NaN or Inf."""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from regard.kernels.gpu._pieces import (
    INF,
    LN2,
    LOG2E,
    dot,
    hash_rows,
    load_ids,
    load_item,
    load_prefix,
    online,
    survives,
    visible,
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
    _by_distance,
    _far,
    _far_start,
    _general,
    _general_start,
    _key_zones,
    _store_ends,
)


@triton.jit
def _share(n, split, splits, SPLIT: tl.constexpr):
    """The range of n tiles for one of several programs that split them."""
    first, last = 0, n
    if SPLIT:
        first, last = n * split // splits, n * (split + 1) // splits
    return first, last


@triton.jit(do_not_specialize=VARY)
def forward(
    Q, K, V, T, SLOPE, KEY, SINK, OUT, LSE, W, ITEMS, QID, KID, SPANS, HASH,
    qb, qh, qi, kb, kh, kj, vb, vh, vj, tb, th, ti, cb, ch, cj, idb_q, idb_k, spans_b,
    H, G, L, S, reach, offset, limit, prefix, left, right, threshold, factor, inner, cap, keep_scale, splits,
    D: tl.constexpr, DV: tl.constexpr, BD: tl.constexpr, BDV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    ONE: tl.constexpr, CAP: tl.constexpr, EVEN_Q: tl.constexpr, EVEN_K: tl.constexpr, VALUES: tl.constexpr,
    SPLIT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Context and logsumexp of a block of queries of one head; with SPLIT, of one part of the keys."""
    DOCS: tl.constexpr = QID is not None
    HAS_KEY: tl.constexpr = KEY is not None
    HAS_SLOPE: tl.constexpr = SLOPE is not None
    DROP: tl.constexpr = HASH is not None
    blocks = tl.cdiv(L, BM)
    bh = (tl.program_id(0) // blocks).to(tl.int64)
    i0 = (blocks - 1 - tl.program_id(0) % blocks) * BM  # with a causal mask the last blocks have the most work
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
    t_left = tl.load(T + at).to(tl.float32) * LOG2E
    t_right = tl.load(T + at + 2 * reach).to(tl.float32) * LOG2E
    slope = _slope(SLOPE, bh)
    K += b * kb + kv * kh
    q = _rows(Q + b * qb + h * qh, i0, qi, near_i, L, D, BD, EVEN_Q)
    V += b * vb + kv * vh
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
    split = tl.program_id(1)
    m = tl.full([BM], -INF, tl.float32)
    l = tl.zeros([BM], tl.float32)
    if SINK is not None:
        m = tl.where(split == 0, tl.load(SINK + bh).to(tl.float32) * LOG2E, m)
        l = tl.where(split == 0, 1.0, l)
    acc = tl.zeros([BM, BDV], tl.float32)
    left_end = tl.zeros([BM], tl.float32)
    right_end = tl.zeros([BM], tl.float32)
    f = factor
    if DOCS or prefix is not None or HAS_SLOPE or HAS_KEY:
        f = 1.0

    first, last = _share((z - a + d - c) // BN, split, splits, SPLIT)
    for n in range(first, last):
        j0 = _far_start(n, a, z, c, BN)
        cols = j0 + near_j
        k = _rows(K, j0, kj, near_j, S, D, BD, EVEN_K)
        x = dot(q, tl.trans(k), tl.zeros([BM, BN], tl.float32), PRECISION)
        v = _rows(V, j0, vj, near_j, S, DV, BDV, EVEN_K)
        if CAP:
            x = cap * _tanh(x * inner)
        k_ids, key = load_ids(KID, cols, S), _key_term(KEY, cols, cj, S, EVEN_K)
        is_left = j0 < c
        t = tl.where(is_left, t_left, t_right)[:, None]
        x, t = _far(
            x, t, is_left, j0, near_j[None, :], position[:, None], key[None, :], q_ids[:, None], k_ids[None, :], factor,
            slope, reach, limit, prefix, left, right, HAS_SLOPE, HAS_KEY, DOCS,
        )  # fmt: skip
        keep = x
        if DROP:
            keep = survives(row_hash[:, None], cols[None, :], threshold)
        m, l, acc, shrink, kept = online(x, f, tl.reshape(t, [BM]), m, l, acc, v, keep, DROP, VALUES, PRECISION)
        if VALUES:
            left_end = left_end * shrink + tl.where(is_left, kept, 0.0)
            right_end = right_end * shrink + tl.where(is_left, 0.0, kept)

    first, last = _share((a - lo + c - z + hi - d) // BN, split, splits, SPLIT)
    for n in range(first, last):
        j0 = _general_start(n, lo, a, z, c, d, BN)
        cols = j0 + near_j
        k = _rows(K, j0, kj, near_j, S, D, BD, EVEN_K)
        x = dot(q, tl.trans(k), tl.zeros([BM, BN], tl.float32), PRECISION)
        v = _rows(V, j0, vj, near_j, S, DV, BDV, EVEN_K)
        if CAP:
            x = cap * _tanh(x * inner)
        delta = cols[None, :] - position[:, None]
        k_ids, key = load_ids(KID, cols, S), _key_term(KEY, cols, cj, S, EVEN_K)
        x = _general(
            x, T, at[:, None], delta, cols[None, :], key[None, :], q_ids[:, None], k_ids[None, :], factor, slope, reach,
            limit, prefix, left, right, ONE, HAS_SLOPE, HAS_KEY, DOCS,
        )  # fmt: skip
        keep = x
        if DROP:
            keep = survives(row_hash[:, None], cols[None, :], threshold)
        m, l, acc, shrink, kept = online(
            x, 1.0, tl.zeros([BM], tl.float32), m, l, acc, v, keep, DROP, VALUES, PRECISION
        )
        if VALUES:
            left_end, right_end = left_end * shrink, right_end * shrink

    total = tl.where(l == 0, 1.0, l)
    lse = tl.where(l == 0, -INF, m + tl.log2(total))
    if SPLIT:
        bo = bh + split.to(tl.int64) * (tl.num_programs(0) // blocks)
    else:
        bo = bh
    tl.store(LSE + bo * L + rows, lse * LN2, mask=rows < L)
    _store_rows(OUT + bo * L * DV, acc * (keep_scale / total)[:, None], i0, DV, near_i, L, DV, BDV)

    if VALUES:  # the weights by distance
        width = 2 * reach + 1
        W += (bh * L + i0) * width + near_i * width
        lse = tl.where(l == 0, INF, lse)
        left_end, right_end = left_end * (keep_scale / total), right_end * (keep_scale / total)
        for n in range((a - lo + c - z + hi - d) // BN):
            j0 = _general_start(n, lo, a, z, c, d, BN)
            cols = j0 + near_j
            k = _rows(K, j0, kj, near_j, S, D, BD, EVEN_K)
            x = dot(q, tl.trans(k), tl.zeros([BM, BN], tl.float32), PRECISION)
            if CAP:
                x = cap * _tanh(x * inner)
            delta = cols[None, :] - position[:, None]
            k_ids, key = load_ids(KID, cols, S), _key_term(KEY, cols, cj, S, EVEN_K)
            x = _general(
                x, T, at[:, None], delta, cols[None, :], key[None, :], q_ids[:, None], k_ids[None, :], factor, slope,
                reach, limit, prefix, left, right, ONE, HAS_SLOPE, HAS_KEY, DOCS,
            )  # fmt: skip
            p = tl.exp2(x - lse[:, None]) * keep_scale
            if DROP:
                p = tl.where(survives(row_hash[:, None], cols[None, :], threshold), p, 0.0)
            left_sum, right_sum = _by_distance(W, p, delta, reach, (rows < L)[:, None], ONE)
            left_end += left_sum
            right_end += right_sum
        _store_ends(W, left_end, right_end, reach, rows < L, ONE)


@triton.jit(do_not_specialize=VARY)
def spoil(
    OUT, LSE, BAD_KEYS, BAD_ROWS, ITEMS, QID, KID, idb_q, idb_k,
    H, G, L, S, offset, limit, prefix, left, right,
    DV: tl.constexpr, BDV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Set rows to NaN that see a bad key, or are bad and see any key. Evaluates no pairs if nothing is bad."""
    DOCS: tl.constexpr = QID is not None
    blocks = tl.cdiv(L, BM)
    bh = (tl.program_id(0) // blocks).to(tl.int64)
    i0 = tl.program_id(0) % blocks * BM
    b, kv = bh // H, bh % H // G
    offset, limit = load_item(ITEMS, b, offset, limit)
    if prefix is not None:
        prefix = load_prefix(ITEMS, b, prefix)
    near_i, near_j = tl.arange(0, BM), tl.arange(0, BN)
    rows = i0 + near_i
    if DOCS:
        QID += b * idb_q
        KID += b * idb_k
    q_ids = load_ids(QID, rows, L)
    BAD_KEYS += (b * (H // G) + kv) * S
    bad_row = tl.load(BAD_ROWS + bh * L + rows, mask=rows < L, other=0).to(tl.int32)
    marked = tl.zeros([1024], tl.int32)
    for j0 in range(0, S, 1024):
        cols = j0 + tl.arange(0, 1024)
        marked = tl.maximum(marked, tl.load(BAD_KEYS + cols, mask=cols < S, other=0).to(tl.int32))
    any_bad = tl.maximum(tl.max(marked, 0), tl.max(bad_row, 0))
    sees = tl.zeros([BM], tl.int32)
    sees_bad = tl.zeros([BM], tl.int32)
    for n in range(tl.where(any_bad != 0, tl.cdiv(limit, BN), 0)):
        cols = n * BN + near_j
        k_ids = load_ids(KID, cols, S)
        seen = visible(
            cols[None, :] - (offset + rows)[:, None], cols[None, :], q_ids[:, None], k_ids[None, :],
            limit, prefix, left, right, DOCS,
        )  # fmt: skip
        seen = (seen & (rows < L)[:, None]).to(tl.int32)
        bad = tl.load(BAD_KEYS + cols, mask=cols < S, other=0).to(tl.int32)
        sees = tl.maximum(sees, tl.max(seen, 1))
        sees_bad = tl.maximum(sees_bad, tl.max(seen * bad[None, :], 1))
    spoiled = (sees_bad + bad_row * sees) > 0
    nan = tl.full([BM], float("nan"), tl.float32)
    tl.store(LSE + bh * L + rows, nan, mask=spoiled)
    dims = tl.arange(0, BDV)
    OUT += bh * L * DV + i0.to(tl.int64) * DV
    value = tl.full([BM, BDV], float("nan"), tl.float32).to(OUT.dtype.element_ty)
    tl.store(OUT + near_i[:, None] * DV + dims[None, :], value, mask=spoiled[:, None] & (dims < DV)[None, :])
