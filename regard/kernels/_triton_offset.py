"""The GPU code of triton_offset. Imported only when it runs: importing it needs triton.

Everything is in powers of two: with c = scale·log₂e and the table times log₂e, a weight is 2^(c·q·k + offset − lse₂).

A block of BM queries goes through the keys in tiles of BN. Seen from a block, keys lie in five zones,

    lo ‥ a   cut by the mask's left edge            general
    a ‥ b    all at most −reach away, all visible   far: table[i, 0] for the whole tile
    b ‥ c    around the diagonal                    general
    c ‥ d    all at least reach away, all visible   far: table[i, R − 1] for the whole tile
    d ‥ hi   cut by the mask's right edge           general

and there are two loops, one over the far tiles and one over the general ones. In a far tile the offset is one number
per query, which goes into the maximum that is subtracted anyway: such a tile costs what a plain dot product costs. A
slope adds one fused multiply-add by a vector that is the same for every tile. Only general tiles look up the table and
evaluate the mask. (Document ids and prefixes are compared in far tiles as well.)

The backward pass has no atomics: one kernel per block of keys (dk, dv), one per block of queries (dq, dtable). A table
entry between the ends belongs to one key only, so its gradient is stored, not added up; the two ends are row sums.

Shaw's value term adds Σ_c W[i, c]·r'[c] to the context, W being the weights by distance: of these, too, those between
the ends are stored (when the logsumexp is known, in a second loop over general tiles) and the ends are row sums. Its
gradient adds (grad·r')[i, clip(j − i)] to the gradient of the weights, a table like the first.

A score without a dot product has one of zeros, 16 dims wide: tensor cores give the scores their layout.

MODE is how float32 numbers are multiplied ("ieee" or "tf32x3", see tl.dot), or "interpreter".

Shapes: BM queries × BN keys in a tile, [BN, BM] in the kernel that goes by keys. Pointers are upper case.
"""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
INF = tl.constexpr(float("inf"))
# Compiled once for all values of these.
VARY = ["L", "S", "reach", "offset", "limit", "prefix", "left", "right", "threshold", "first", "splits", "n"]


# --- pieces ---


@triton.jit
def _dot(a, b, acc, MODE: tl.constexpr):
    if MODE == "interpreter":  # it multiplies half types wrongly
        acc = tl.dot(a.to(tl.float32), b.to(tl.float32), acc, input_precision="ieee")
    else:
        acc = tl.dot(a, b, acc, input_precision=MODE)
    return acc


@triton.jit
def _tanh(x):
    y = x * x
    near = x * (1 + y * (-1 / 3 + y * (2 / 15 + y * (-17 / 315 + y * (62 / 2835)))))
    far = 1 - 2 / (1 + tl.exp(2 * tl.minimum(x, 20.0)))
    return tl.where(tl.abs(x) < 0.25, near, far)


@triton.jit
def _mix(x):
    """The mixer of kernels/_dropout.py, on uint32."""
    x = x ^ (x >> 16)
    x = x * 0x7FEB352D
    x = x ^ (x >> 15)
    x = x * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def _row_keys(HASH, bh, rows):
    key = tl.load(HASH + bh).to(tl.uint32)
    return _mix(_mix(rows.to(tl.uint32) + 0xC2B2AE35) ^ key)


@triton.jit
def _kept(row_keys, cols, threshold):
    """Which pairs dropout keeps; row_keys and cols broadcast to the tile."""
    return _mix(_mix(cols.to(tl.uint32) + 0x27D4EB2F) ^ row_keys) >= threshold


@triton.jit
def _items(ITEMS, b, offset, limit, prefix, PER_ITEM: tl.constexpr):
    """Position of query 0, number of keys, keys visible to all: one of each, or one per batch item."""
    if PER_ITEM:
        offset, limit, prefix = tl.load(ITEMS + 3 * b), tl.load(ITEMS + 3 * b + 1), tl.load(ITEMS + 3 * b + 2)
    return offset, limit, prefix


@triton.jit
def _rows(P, start, stride, count, length, D: tl.constexpr, BD: tl.constexpr, EVEN: tl.constexpr):
    """Rows start + count of a matrix [length, D], zeros beyond; D is padded to BD."""
    d = tl.arange(0, BD)
    P = P + start.to(tl.int64) * stride + count[:, None] * stride + d[None, :]
    if EVEN and D == BD:
        x = tl.load(P)
    elif EVEN:
        x = tl.load(P, mask=d[None, :] < D, other=0.0)
    elif D == BD:
        x = tl.load(P, mask=(start + count)[:, None] < length, other=0.0)
    else:
        x = tl.load(P, mask=((start + count)[:, None] < length) & (d[None, :] < D), other=0.0)
    return x


@triton.jit
def _store_rows(P, x, start, stride, count, length, D: tl.constexpr, BD: tl.constexpr):
    d = tl.arange(0, BD)
    P = P + start.to(tl.int64) * stride + count[:, None] * stride + d[None, :]
    tl.store(P, x.to(P.dtype.element_ty), mask=((start + count)[:, None] < length) & (d[None, :] < D))


@triton.jit
def _visible(
    delta, cols, q_ids, k_ids, limit, prefix, left, right,
    HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr, PREFIX: tl.constexpr, DOCS: tl.constexpr,
):  # fmt: skip
    """Which pairs of a tile may attend: ((within the window) or (in the prefix)), within the limit, same document."""
    seen = cols < limit
    if HAS_LEFT or HAS_RIGHT:
        if HAS_LEFT and HAS_RIGHT:
            band = (delta <= right) & (delta >= -left)
        elif HAS_RIGHT:
            band = delta <= right
        else:
            band = delta >= -left
        if PREFIX:
            band = band | (cols < prefix)
        seen = seen & band
    if DOCS:
        seen = seen & (q_ids == k_ids)
    return seen


# tl.load and tl.store bring a tile of addresses into a layout where neighbouring threads have neighbouring addresses,
# and the scores with it: dozens of barriers per tile. Written in assembly they work in the layout the tensor cores
# left the scores in. The interpreter knows no assembly.


@triton.jit
def _look_up(P, MODE: tl.constexpr):
    """The numbers at these addresses in float32. Nothing may be writing there."""
    if MODE == "interpreter":
        x = tl.load(P).to(tl.float32)
    elif P.dtype.element_ty == tl.float32:
        x = tl.inline_asm_elementwise(
            "ld.global.nc.f32 $0, [$1];", "=f,l", [P.to(tl.int64)], dtype=tl.float32, is_pure=True, pack=1
        )
    elif P.dtype.element_ty == tl.float16:
        x = tl.inline_asm_elementwise(
            "{ .reg .b16 h; ld.global.nc.b16 h, [$1]; cvt.f32.f16 $0, h; }",
            "=f,l", [P.to(tl.int64)], dtype=tl.float32, is_pure=True, pack=1,
        )  # fmt: skip
    else:
        x = tl.inline_asm_elementwise(
            "{ .reg .b16 h, z; mov.b16 z, 0; ld.global.nc.b16 h, [$1]; mov.b32 $0, {z, h}; }",
            "=f,l", [P.to(tl.int64)], dtype=tl.float32, is_pure=True, pack=1,
        )  # fmt: skip
    return x


@triton.jit
def _put(P, x, mask, MODE: tl.constexpr):
    """Store float32 numbers at these addresses, rounded to the type that is there."""
    if MODE == "interpreter":
        tl.store(P, x.to(P.dtype.element_ty), mask=mask)
    elif P.dtype.element_ty == tl.float32:
        tl.inline_asm_elementwise(
            "{ .reg .pred p; setp.ne.s32 p, $3, 0; @p st.global.f32 [$1], $2; mov.b32 $0, 0; }",
            "=r,l,f,r", [P.to(tl.int64), x, mask.to(tl.int32)], dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip
    elif P.dtype.element_ty == tl.float16:
        tl.inline_asm_elementwise(
            "{ .reg .pred p; .reg .b16 h; setp.ne.s32 p, $3, 0; cvt.rn.f16.f32 h, $2; @p st.global.b16 [$1], h; "
            "mov.b32 $0, 0; }",
            "=r,l,f,r", [P.to(tl.int64), x, mask.to(tl.int32)], dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip
    else:
        tl.inline_asm_elementwise(
            "{ .reg .pred p; .reg .b16 h; setp.ne.s32 p, $3, 0; cvt.rn.bf16.f32 h, $2; @p st.global.b16 [$1], h; "
            "mov.b32 $0, 0; }",
            "=r,l,f,r", [P.to(tl.int64), x, mask.to(tl.int32)], dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip


@triton.jit
def _at_distance(P, at, delta, reach, MODE: tl.constexpr):
    """The entry of each pair's distance in a table whose rows start at ``at``."""
    return _look_up(P + (at + (tl.minimum(tl.maximum(delta, -reach), reach) + reach)), MODE)


@triton.jit
def _near(T, at, delta, slope, reach, HAS_SLOPE: tl.constexpr, ONE: tl.constexpr, MODE: tl.constexpr):
    """The offset term of a tile, looked up pair by pair; at is where each query's row of the table starts."""
    if ONE:
        e = tl.load(T + at).to(tl.float32) * LOG2E
    else:
        e = _at_distance(T, at, delta, reach, MODE) * LOG2E
    if HAS_SLOPE:
        e = e - slope * tl.maximum(tl.abs(delta) - reach, 0).to(tl.float32)
    return e


@triton.jit
def _general(
    x, T, at, delta, cols, key, q_ids, k_ids, factor, slope, reach, limit, prefix, left, right,
    ONE: tl.constexpr, HAS_SLOPE: tl.constexpr, HAS_KEY: tl.constexpr, HAS_LEFT: tl.constexpr,
    HAS_RIGHT: tl.constexpr, PREFIX: tl.constexpr, DOCS: tl.constexpr, MODE: tl.constexpr,
):  # fmt: skip
    """A general tile's scores, −∞ where they are not seen."""
    x = x * factor + _near(T, at, delta, slope, reach, HAS_SLOPE, ONE, MODE)
    if HAS_KEY:
        x += key
    seen = _visible(delta, cols, q_ids, k_ids, limit, prefix, left, right, HAS_LEFT, HAS_RIGHT, PREFIX, DOCS)
    return tl.where(seen, x, -INF)


@triton.jit
def _by_distance(P, x, delta, reach, ok, ONE: tl.constexpr, MODE: tl.constexpr):
    """Numbers of a tile by distance: those between the ends are stored, the sums at the ends returned."""
    if ONE:
        left, right = tl.sum(x, 1), tl.sum(x, 1) * 0.0
    else:
        left = tl.sum(tl.where(delta <= -reach, x, 0.0), 1)
        right = tl.sum(tl.where(delta >= reach, x, 0.0), 1)
        _put(P[:, None] + (delta + reach), x, (delta > -reach) & (delta < reach) & ok, MODE)
    return left, right


@triton.jit
def _store_ends(P, left, right, reach, ok, ONE: tl.constexpr):
    if ONE:
        tl.store(P, (left + right).to(P.dtype.element_ty), mask=ok)
    else:
        tl.store(P, left.to(P.dtype.element_ty), mask=ok)
        tl.store(P + 2 * reach, right.to(P.dtype.element_ty), mask=ok)


@triton.jit
def _far(
    x, t, is_left, start, near_j, position, key, q_ids, k_ids, factor, slope, reach, limit, prefix, left, right,
    HAS_SLOPE: tl.constexpr, HAS_KEY: tl.constexpr, HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr,
    PREFIX: tl.constexpr, DOCS: tl.constexpr,
):  # fmt: skip
    """A far tile's scores as x + t: the offset is t, given per query; keys start + near_j.

    On one side of the diagonal −slope·(|δ| − reach) = ±slope·(j − start) + slope·(±(start − position) + reach): a
    number per key, the same in every tile, plus one per query. Returned are x, still to be multiplied by ``factor`` if
    nothing was added per key, and t.
    """
    if HAS_SLOPE:
        sign = tl.where(is_left, 1, -1)
        t += slope * (sign * (start - position) + reach).to(tl.float32)
        x = x * factor + slope * (sign * near_j).to(tl.float32)
    if HAS_KEY:
        if HAS_SLOPE:
            x += key
        else:
            x = x * factor + key
    if DOCS or PREFIX:
        cols = start + near_j
        seen = _visible(
            cols - position, cols, q_ids, k_ids, limit, prefix, left, right, HAS_LEFT, HAS_RIGHT, PREFIX, DOCS
        )
        if HAS_SLOPE or HAS_KEY:
            x = tl.where(seen, x + t, -INF)
        else:
            x = tl.where(seen, x * factor + t, -INF)
        t = tl.zeros_like(t)
    return x, t


@triton.jit
def _key_zones(
    p0, p1, reach, limit, prefix, left, right, from_key, to_key, BN: tl.constexpr,
    HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr, PREFIX: tl.constexpr, DOCS: tl.constexpr,
):  # fmt: skip
    """lo, a, b, c, d, hi for queries at positions p0 … p1, multiples of BN."""
    lo, hi = 0, limit
    whole_lo, whole_hi = 0, limit
    if HAS_RIGHT:
        end = p1 + right + 1
        whole_hi = tl.minimum(whole_hi, p0 + right + 1)
        if PREFIX:
            end = tl.maximum(end, prefix)
        hi = tl.minimum(hi, end)
    if HAS_LEFT:
        start = tl.maximum(p0 - left, 0)
        whole_lo = tl.maximum(p1 - left, 0)
        if PREFIX:
            start = tl.where(prefix > 0, 0, start)
        lo = start // BN * BN
    if DOCS:
        lo, hi = tl.maximum(lo, from_key), tl.minimum(hi, to_key)
    hi = lo + tl.cdiv(tl.maximum(hi - lo, 0), BN) * BN
    if DOCS or PREFIX:  # far tiles are masked too
        whole_lo, whole_hi = lo, hi
    else:
        whole_lo = tl.cdiv(whole_lo, BN) * BN
        whole_hi = tl.minimum(tl.maximum(whole_hi, 0) // BN * BN, hi)
    b = tl.maximum(p0 - reach + 1, 0) // BN * BN
    b = tl.maximum(tl.minimum(b, whole_hi), lo)
    a = tl.minimum(tl.maximum(whole_lo, lo), b)
    c = tl.cdiv(tl.maximum(p1 + reach, 0), BN) * BN
    c = tl.minimum(tl.maximum(c, b), hi)
    d = tl.maximum(whole_hi, c)
    return lo, a, b, c, d, hi


@triton.jit
def _query_zones(
    k0, k1, offset, reach, L, limit, prefix, left, right, from_row, to_row, BM: tl.constexpr,
    HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr, PREFIX: tl.constexpr, DOCS: tl.constexpr,
):  # fmt: skip
    """The same for keys k0 … k1 and query indices: here a ‥ b is far to the right, c ‥ d far to the left."""
    lo, hi = 0, L
    whole_lo, whole_hi = 0, L + BM  # queries beyond the last have logsumexp ∞ and need no mask
    if HAS_RIGHT:
        start = tl.maximum(k0 - offset - right, 0)
        whole_lo = tl.maximum(k1 - offset - right, 0)
        if PREFIX:
            start = tl.where(k0 < prefix, 0, start)
        lo = start // BM * BM
    if HAS_LEFT:
        end = k1 - offset + left + 1
        whole_hi = tl.maximum(k0 - offset + left + 1, 0)
        if PREFIX:
            end = tl.where(k0 < prefix, L, end)
        hi = tl.minimum(hi, end)
    if DOCS:
        lo, hi = tl.maximum(lo, from_row), tl.minimum(hi, to_row)
    hi = tl.where(k0 < limit, hi, 0)
    hi = lo + tl.cdiv(tl.maximum(hi - lo, 0), BM) * BM
    if DOCS or PREFIX:
        whole_lo, whole_hi = lo, hi
    else:
        whole_lo = tl.cdiv(whole_lo, BM) * BM
        whole_hi = tl.minimum(whole_hi // BM * BM, hi)
    b = tl.maximum(k0 - reach - offset + 1, 0) // BM * BM
    b = tl.maximum(tl.minimum(b, whole_hi), lo)
    a = tl.minimum(tl.maximum(whole_lo, lo), b)
    c = tl.cdiv(tl.maximum(k1 + reach - offset, 0), BM) * BM
    c = tl.minimum(tl.maximum(c, b), hi)
    d = tl.maximum(whole_hi, c)
    return lo, a, b, c, d, hi


@triton.jit
def _far_start(n, a, b, c, N: tl.constexpr):
    """Where the n-th far tile starts."""
    start = a + n * N
    return tl.where(start >= b, start + (c - b), start)


@triton.jit
def _general_start(n, lo, a, b, c, d, N: tl.constexpr):
    """Where the n-th general tile starts."""
    start = lo + n * N
    start = tl.where(start >= a, start + (b - a), start)
    return tl.where(start >= c, start + (d - c), start)


@triton.jit
def _key_term(KEY, cols, stride, S, HAS_KEY: tl.constexpr, EVEN: tl.constexpr):
    """The key term of a tile's keys."""
    x = cols
    if HAS_KEY:
        if EVEN:
            x = tl.load(KEY + cols.to(tl.int64) * stride)
        else:
            x = tl.load(KEY + cols.to(tl.int64) * stride, mask=cols < S, other=0.0)
        x = x.to(tl.float32) * LOG2E
    return x


@triton.jit
def _ids(P, index, length, DOCS: tl.constexpr):
    x = index
    if DOCS:
        x = tl.load(P + tl.minimum(index, length - 1))
    return x


@triton.jit
def _bounds(BOUNDS, DOCS: tl.constexpr):
    """Where the blocks begin and end in which a block of the other side can have a document of its own."""
    first, last = 0, 0
    if DOCS:
        first, last = tl.load(BOUNDS), tl.load(BOUNDS + 1)
    return first, last


@triton.jit
def _slope(SLOPE, bh, HAS_SLOPE: tl.constexpr):
    slope = 0.0
    if HAS_SLOPE:
        slope = tl.load(SLOPE + bh).to(tl.float32) * LOG2E
    return slope


# --- forward ---


@triton.jit
def _online(x, factor, t, m, l, acc, v, keep, DROP: tl.constexpr, VALUES: tl.constexpr, MODE: tl.constexpr):
    """One step of the online softmax; the scores are x·factor + t, with t per row. Also by how much what was added up
    before shrinks, and the sum of the weights kept."""
    new = tl.maximum(m, tl.max(x, 1) * factor + t)
    safe = tl.where(new == -INF, 0.0, new)
    p = tl.exp2(x * factor - (safe - t)[:, None])
    shrink = tl.exp2(m - safe)
    kept = tl.sum(p, 1)
    l = l * shrink + kept
    if DROP:
        p = tl.where(keep, p, 0.0)
        if VALUES:
            kept = tl.sum(p, 1)
    acc = _dot(p.to(v.dtype), v, acc * shrink[:, None], MODE)
    return new, l, acc, shrink, kept


@triton.jit
def _share(n, split, splits, SPLIT: tl.constexpr):
    """Which of n tiles a program goes through if several share them."""
    first, last = 0, n
    if SPLIT:
        first, last = n * split // splits, n * (split + 1) // splits
    return first, last


@triton.jit(do_not_specialize=VARY)
def forward(
    Q, K, V, T, SLOPE, KEY, SINK, OUT, LSE, W, ITEMS, QID, KID, BOUNDS, HASH,
    qb, qh, qi, kb, kh, kj, vb, vh, vj, tb, th, ti, cb, ch, cj, idb_q, idb_k, bb,
    H, G, L, S, reach, offset, limit, prefix, left, right, threshold, factor, inner, cap, keep_scale, splits,
    D: tl.constexpr, DV: tl.constexpr, BD: tl.constexpr, BDV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    ONE: tl.constexpr, HAS_SLOPE: tl.constexpr, HAS_KEY: tl.constexpr, CAP: tl.constexpr,
    HAS_SINK: tl.constexpr, PER_ITEM: tl.constexpr, HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr,
    PREFIX: tl.constexpr, DOCS: tl.constexpr, DROP: tl.constexpr, EVEN_Q: tl.constexpr, EVEN_K: tl.constexpr,
    VALUES: tl.constexpr, SPLIT: tl.constexpr, MODE: tl.constexpr,
):  # fmt: skip
    """Context and logsumexp of a block of queries of one head; with SPLIT, of a part of the keys each."""
    blocks = tl.cdiv(L, BM)
    bh = (tl.program_id(0) // blocks).to(tl.int64)
    i0 = (blocks - 1 - tl.program_id(0) % blocks) * BM  # under a causal mask the last blocks have most to do
    b, h = bh // H, bh % H
    kv = h // G
    offset, limit, prefix = _items(ITEMS, b, offset, limit, prefix, PER_ITEM)
    near_i, near_j = tl.arange(0, BM), tl.arange(0, BN)
    rows = i0 + near_i
    position = offset + rows
    T += b * tb + h * th + i0.to(tl.int64) * ti
    at = tl.minimum(near_i, L - 1 - i0) * ti
    t_left = tl.load(T + at).to(tl.float32) * LOG2E
    t_right = tl.load(T + at + 2 * reach).to(tl.float32) * LOG2E
    slope = _slope(SLOPE, bh, HAS_SLOPE)
    K += b * kb + kv * kh
    q = _rows(Q + b * qb + h * qh, i0, qi, near_i, L, D, BD, EVEN_Q)
    V += b * vb + kv * vh
    if HAS_KEY:
        KEY += b * cb + kv * ch
    if DOCS:
        BOUNDS += b * bb + i0 // BM * 2
        QID += b * idb_q
        KID += b * idb_k
    q_ids = _ids(QID, rows, L, DOCS)
    from_key, to_key = _bounds(BOUNDS, DOCS)
    row_keys = rows
    if DROP:
        row_keys = _row_keys(HASH, bh, rows)
    lo, a, z, c, d, hi = _key_zones(
        offset + i0, offset + i0 + BM - 1, reach, limit, prefix, left, right, from_key, to_key, BN,
        HAS_LEFT, HAS_RIGHT, PREFIX, DOCS,
    )  # fmt: skip
    split = tl.program_id(1)
    m = tl.full([BM], -INF, tl.float32)
    l = tl.zeros([BM], tl.float32)
    if HAS_SINK:
        m = tl.where(split == 0, tl.load(SINK + bh).to(tl.float32) * LOG2E, m)
        l = tl.where(split == 0, 1.0, l)
    acc = tl.zeros([BM, BDV], tl.float32)
    left_end = tl.zeros([BM], tl.float32)
    right_end = tl.zeros([BM], tl.float32)
    f = factor
    if DOCS or PREFIX or HAS_SLOPE or HAS_KEY:
        f = 1.0

    first, last = _share((z - a + d - c) // BN, split, splits, SPLIT)
    for n in range(first, last):
        j0 = _far_start(n, a, z, c, BN)
        cols = j0 + near_j
        k = _rows(K, j0, kj, near_j, S, D, BD, EVEN_K)
        x = _dot(q, tl.trans(k), tl.zeros([BM, BN], tl.float32), MODE)
        v = _rows(V, j0, vj, near_j, S, DV, BDV, EVEN_K)
        if CAP:
            x = cap * _tanh(x * inner)
        k_ids, key = _ids(KID, cols, S, DOCS), _key_term(KEY, cols, cj, S, HAS_KEY, EVEN_K)
        is_left = j0 < c
        t = tl.where(is_left, t_left, t_right)[:, None]
        x, t = _far(
            x, t, is_left, j0, near_j[None, :], position[:, None], key[None, :], q_ids[:, None], k_ids[None, :], factor,
            slope, reach, limit, prefix, left, right, HAS_SLOPE, HAS_KEY, HAS_LEFT, HAS_RIGHT, PREFIX, DOCS,
        )  # fmt: skip
        keep = x
        if DROP:
            keep = _kept(row_keys[:, None], cols[None, :], threshold)
        m, l, acc, shrink, kept = _online(x, f, tl.reshape(t, [BM]), m, l, acc, v, keep, DROP, VALUES, MODE)
        if VALUES:
            left_end = left_end * shrink + tl.where(is_left, kept, 0.0)
            right_end = right_end * shrink + tl.where(is_left, 0.0, kept)

    first, last = _share((a - lo + c - z + hi - d) // BN, split, splits, SPLIT)
    for n in range(first, last):
        j0 = _general_start(n, lo, a, z, c, d, BN)
        cols = j0 + near_j
        k = _rows(K, j0, kj, near_j, S, D, BD, EVEN_K)
        x = _dot(q, tl.trans(k), tl.zeros([BM, BN], tl.float32), MODE)
        v = _rows(V, j0, vj, near_j, S, DV, BDV, EVEN_K)
        if CAP:
            x = cap * _tanh(x * inner)
        delta = cols[None, :] - position[:, None]
        k_ids, key = _ids(KID, cols, S, DOCS), _key_term(KEY, cols, cj, S, HAS_KEY, EVEN_K)
        x = _general(
            x, T, at[:, None], delta, cols[None, :], key[None, :], q_ids[:, None], k_ids[None, :], factor, slope, reach,
            limit, prefix, left, right, ONE, HAS_SLOPE, HAS_KEY, HAS_LEFT, HAS_RIGHT, PREFIX, DOCS, MODE,
        )  # fmt: skip
        keep = x
        if DROP:
            keep = _kept(row_keys[:, None], cols[None, :], threshold)
        m, l, acc, shrink, kept = _online(x, 1.0, tl.zeros([BM], tl.float32), m, l, acc, v, keep, DROP, VALUES, MODE)
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
            x = _dot(q, tl.trans(k), tl.zeros([BM, BN], tl.float32), MODE)
            if CAP:
                x = cap * _tanh(x * inner)
            delta = cols[None, :] - position[:, None]
            k_ids, key = _ids(KID, cols, S, DOCS), _key_term(KEY, cols, cj, S, HAS_KEY, EVEN_K)
            x = _general(
                x, T, at[:, None], delta, cols[None, :], key[None, :], q_ids[:, None], k_ids[None, :], factor, slope,
                reach, limit, prefix, left, right, ONE, HAS_SLOPE, HAS_KEY, HAS_LEFT, HAS_RIGHT, PREFIX, DOCS, MODE,
            )  # fmt: skip
            p = tl.exp2(x - lse[:, None]) * keep_scale
            if DROP:
                p = tl.where(_kept(row_keys[:, None], cols[None, :], threshold), p, 0.0)
            left_sum, right_sum = _by_distance(W, p, delta, reach, (rows < L)[:, None], ONE, MODE)
            left_end += left_sum
            right_end += right_sum
        _store_ends(W, left_end, right_end, reach, rows < L, ONE)


@triton.jit(do_not_specialize=VARY)
def combine(PARTS, LSES, OUT, LSE, n, splits, DV: tl.constexpr, BDV: tl.constexpr, BS: tl.constexpr):
    """One row of n, whose keys were split: the contexts of the parts weighted by their sums of exponentials."""
    row = tl.program_id(0).to(tl.int64)
    part, dims = tl.arange(0, BS), tl.arange(0, BDV)
    lses = tl.load(LSES + part * n + row, mask=part < splits, other=-INF)
    top = tl.max(lses, 0)
    weights = tl.exp(lses - tl.where(top == -INF, 0.0, top))
    total = tl.sum(weights, 0)
    safe = tl.where(total == 0, 1.0, total)
    mask = (part < splits)[:, None] & (dims < DV)[None, :]
    x = tl.load(PARTS + (part[:, None] * n + row) * DV + dims[None, :], mask=mask, other=0.0)
    out = tl.sum(x * (weights / safe)[:, None], 0)
    tl.store(OUT + row * DV + dims, out.to(OUT.dtype.element_ty), mask=dims < DV)
    tl.store(LSE + row, tl.where(total == 0, -INF, top + tl.log(safe)))


@triton.jit(do_not_specialize=VARY)
def spoil(
    OUT, LSE, BAD_KEYS, BAD_ROWS, ITEMS, QID, KID, idb_q, idb_k,
    H, G, L, S, offset, limit, prefix, left, right,
    DV: tl.constexpr, BDV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PER_ITEM: tl.constexpr,
    HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr, PREFIX: tl.constexpr, DOCS: tl.constexpr,
):  # fmt: skip
    """NaN into the rows that see a bad key, or are bad and see anything. Looks at no pair if nothing is bad."""
    blocks = tl.cdiv(L, BM)
    bh = (tl.program_id(0) // blocks).to(tl.int64)
    i0 = tl.program_id(0) % blocks * BM
    b, kv = bh // H, bh % H // G
    offset, limit, prefix = _items(ITEMS, b, offset, limit, prefix, PER_ITEM)
    near_i, near_j = tl.arange(0, BM), tl.arange(0, BN)
    rows = i0 + near_i
    if DOCS:
        QID += b * idb_q
        KID += b * idb_k
    q_ids = _ids(QID, rows, L, DOCS)
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
        k_ids = _ids(KID, cols, S, DOCS)
        seen = _visible(
            cols[None, :] - (offset + rows)[:, None], cols[None, :], q_ids[:, None], k_ids[None, :],
            limit, prefix, left, right, HAS_LEFT, HAS_RIGHT, PREFIX, DOCS,
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


# --- backward ---


@triton.jit(do_not_specialize=VARY)
def statistics(
    OUT, GRAD, LSE, T, TV, STATS, gb, gh, gi, tb, th, ti, H, L, reach,
    DV: tl.constexpr, BDV: tl.constexpr, BM: tl.constexpr, NS: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """NS numbers per query: Σ out·grad, the logsumexp in powers of two (∞ where nothing is seen), that less either end
    of the table; with a value term also both ends of grad·r'."""
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
    """Σ out·grad, the logsumexp asked for and, if there is one, that end of grad·r'. All are loaded in one piece and
    the rest dropped: loaded alone, a row of numbers would be fetched by every thread that needs it."""
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
    """dE of a tile, and the weights that met the values."""
    met = p
    if DROP:
        met = tl.where(keep, p * keep_scale, 0.0)
        dp = tl.where(keep, dp * keep_scale, 0.0)
    return p * (dp - delta), met


@triton.jit(do_not_specialize=VARY)
def backward_keys(
    Q, K, V, T, TV, SLOPE, KEY, GRAD, STATS, DK, DV_, DKEY, ITEMS, QID, KID, BOUNDS, HASH,
    qb, qh, qi, kb, kh, kj, vb, vh, vj, tb, th, ti, cb, ch, cj, gb, gh, gi, idb_q, idb_k, bb,
    H, G, L, S, reach, offset, limit, prefix, left, right, threshold, scale, factor, inner, cap, keep_scale,
    D: tl.constexpr, DV: tl.constexpr, BD: tl.constexpr, BDV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    HAS_DOT: tl.constexpr, ONE: tl.constexpr, HAS_SLOPE: tl.constexpr, HAS_KEY: tl.constexpr, CAP: tl.constexpr,
    PER_ITEM: tl.constexpr, HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr, PREFIX: tl.constexpr,
    DOCS: tl.constexpr, DROP: tl.constexpr, EVEN_Q: tl.constexpr, EVEN_K: tl.constexpr, NS: tl.constexpr,
    VALUES: tl.constexpr, MODE: tl.constexpr,
):  # fmt: skip
    """dk, dv and the key term's gradient for a block of keys of one key/value head; tiles are [BN, BM]."""
    blocks = tl.cdiv(S, BN)
    bk = (tl.program_id(0) // blocks).to(tl.int64)
    j0 = tl.program_id(0) % blocks * BN  # under a causal mask the first blocks have most to do
    heads = H // G
    b, kv = bk // heads, bk % heads
    offset, limit, prefix = _items(ITEMS, b, offset, limit, prefix, PER_ITEM)
    near_i, near_j = tl.arange(0, BM), tl.arange(0, BN)
    cols = j0 + near_j
    k = _rows(K + b * kb + kv * kh, j0, kj, near_j, S, D, BD, EVEN_K)
    v = _rows(V + b * vb + kv * vh, j0, vj, near_j, S, DV, BDV, EVEN_K)
    if HAS_KEY:
        KEY += b * cb + kv * ch
    if DOCS:
        BOUNDS += b * bb + j0 // BN * 2
        QID += b * idb_q
        KID += b * idb_k
    key = _key_term(KEY, cols, cj, S, HAS_KEY, EVEN_K)
    k_ids = _ids(KID, cols, S, DOCS)
    from_row, to_row = _bounds(BOUNDS, DOCS)
    lo, a, z, c, d, hi = _query_zones(
        j0, j0 + BN - 1, offset, reach, L, limit, prefix, left, right, from_row, to_row, BM,
        HAS_LEFT, HAS_RIGHT, PREFIX, DOCS,
    )  # fmt: skip
    f = factor
    if DOCS or PREFIX or HAS_SLOPE or HAS_KEY:
        f = 1.0
    dk = tl.zeros([BN, BD], tl.float32)
    dv = tl.zeros([BN, BDV], tl.float32)
    dkey = tl.zeros([BN], tl.float32)
    width = 2 * reach + 1

    for g in range(G):
        h = kv * G + g
        bh = b * H + h
        slope = _slope(SLOPE, bh, HAS_SLOPE)
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
            x = _dot(k, tl.trans(q), tl.zeros([BN, BM], tl.float32), MODE)
            grad = _rows(Gh, i0, gi, near_i, L, DV, BDV, EVEN_Q)
            is_left = i0 >= c
            delta, lse, value = _statistics_of(Sh, rows, L, tl.where(is_left, 2, 3), NS, EVEN_Q)
            if CAP:
                capped = _tanh(x * inner)
                x = cap * capped
            position, q_ids = offset + rows, _ids(QID, rows, L, DOCS)
            x, t = _far(
                x, -lse[None, :], is_left, j0, near_j[:, None], position[None, :], key[:, None], q_ids[None, :],
                k_ids[:, None], factor, slope, reach, limit, prefix, left, right,
                HAS_SLOPE, HAS_KEY, HAS_LEFT, HAS_RIGHT, PREFIX, DOCS,
            )  # fmt: skip
            p = tl.exp2(x * f + t)
            keep = x
            if DROP:
                keep = _kept(_row_keys(HASH, bh, rows)[None, :], cols[:, None], threshold)
            dp = _dot(v, tl.trans(grad), tl.zeros([BN, BM], tl.float32), MODE)
            if VALUES:
                dp += value[None, :]
            ds, met = _score_gradient(p, dp, delta[None, :], keep, keep_scale, DROP)
            dv = _dot(met.to(grad.dtype), grad, dv, MODE)
            if HAS_KEY:
                dkey += tl.sum(ds, 1)
            if CAP:
                ds = ds * (1 - capped * capped)
            if HAS_DOT:
                dk = _dot(ds.to(q.dtype), q, dk, MODE)

        for n in range((a - lo + c - z + hi - d) // BM):
            i0 = _general_start(n, lo, a, z, c, d, BM)
            rows = i0 + near_i
            q = _rows(Qh, i0, qi, near_i, L, D, BD, EVEN_Q)
            x = _dot(k, tl.trans(q), tl.zeros([BN, BM], tl.float32), MODE)
            grad = _rows(Gh, i0, gi, near_i, L, DV, BDV, EVEN_Q)
            delta, lse, _ = _statistics_of(Sh, rows, L, 1, NS, EVEN_Q)
            if CAP:
                capped = _tanh(x * inner)
                x = cap * capped
            distance = cols[:, None] - (offset + rows)[None, :]
            at = tl.minimum(near_i, L - 1 - i0) * ti
            q_ids, Ti = _ids(QID, rows, L, DOCS), Th + i0.to(tl.int64) * ti
            x = _general(
                x, Ti, at[None, :], distance, cols[:, None], key[:, None], q_ids[None, :], k_ids[:, None], factor,
                slope, reach, limit, prefix, left, right, ONE, HAS_SLOPE, HAS_KEY, HAS_LEFT, HAS_RIGHT, PREFIX, DOCS,
                MODE,
            )  # fmt: skip
            p = tl.exp2(x - lse[None, :])
            keep = x
            if DROP:
                keep = _kept(_row_keys(HASH, bh, rows)[None, :], cols[:, None], threshold)
            dp = _dot(v, tl.trans(grad), tl.zeros([BN, BM], tl.float32), MODE)
            if VALUES:
                at = tl.minimum(near_i, L - 1 - i0) * width
                dp += _at_distance(TVh + i0.to(tl.int64) * width, at[None, :], distance, reach, MODE)
            ds, met = _score_gradient(p, dp, delta[None, :], keep, keep_scale, DROP)
            dv = _dot(met.to(grad.dtype), grad, dv, MODE)
            if HAS_KEY:
                dkey += tl.sum(ds, 1)
            if CAP:
                ds = ds * (1 - capped * capped)
            if HAS_DOT:
                dk = _dot(ds.to(q.dtype), q, dk, MODE)

    # Keys beyond the limit went through far tiles unmasked: what was added up for them is not meant.
    ok = cols < limit
    _store_rows(DV_ + bk * S * DV, tl.where(ok[:, None], dv, 0.0), j0, DV, near_j, S, DV, BDV)
    if HAS_DOT:
        _store_rows(DK + bk * S * D, tl.where(ok[:, None], dk * scale, 0.0), j0, D, near_j, S, D, BD)
    if HAS_KEY:
        tl.store(DKEY + bk * S + cols, tl.where(ok, dkey, 0.0), mask=cols < S)


@triton.jit(do_not_specialize=VARY)
def backward_queries(
    Q, K, V, T, TV, SLOPE, KEY, GRAD, STATS, DQ, DT, W, ITEMS, QID, KID, BOUNDS, HASH,
    qb, qh, qi, kb, kh, kj, vb, vh, vj, tb, th, ti, cb, ch, cj, gb, gh, gi, idb_q, idb_k, bb,
    H, G, L, S, reach, offset, limit, prefix, left, right, threshold, scale, factor, inner, cap, keep_scale, first,
    D: tl.constexpr, DV: tl.constexpr, BD: tl.constexpr, BDV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    HAS_DOT: tl.constexpr, ONE: tl.constexpr, HAS_SLOPE: tl.constexpr, HAS_KEY: tl.constexpr, CAP: tl.constexpr,
    PER_ITEM: tl.constexpr, HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr, PREFIX: tl.constexpr,
    DOCS: tl.constexpr, DROP: tl.constexpr, EVEN_Q: tl.constexpr, EVEN_K: tl.constexpr, NS: tl.constexpr,
    VALUES: tl.constexpr, MODE: tl.constexpr,
):  # fmt: skip
    """dq and the table's gradient, zero beforehand, for a block of queries; ``first``: the head that DT begins with."""
    blocks = tl.cdiv(L, BM)
    bt = (tl.program_id(0) // blocks).to(tl.int64)
    bh = bt + first
    i0 = (blocks - 1 - tl.program_id(0) % blocks) * BM
    b, h = bh // H, bh % H
    kv = h // G
    offset, limit, prefix = _items(ITEMS, b, offset, limit, prefix, PER_ITEM)
    near_i, near_j = tl.arange(0, BM), tl.arange(0, BN)
    rows = i0 + near_i
    position = offset + rows
    T += b * tb + h * th + i0.to(tl.int64) * ti
    at = tl.minimum(near_i, L - 1 - i0) * ti
    slope = _slope(SLOPE, bh, HAS_SLOPE)
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
        BOUNDS += b * bb + i0 // BM * 2
        QID += b * idb_q
        KID += b * idb_k
    q_ids = _ids(QID, rows, L, DOCS)
    from_key, to_key = _bounds(BOUNDS, DOCS)
    row_keys = rows
    if DROP:
        row_keys = _row_keys(HASH, bh, rows)
    lo, a, z, c, d, hi = _key_zones(
        offset + i0, offset + i0 + BM - 1, reach, limit, prefix, left, right, from_key, to_key, BN,
        HAS_LEFT, HAS_RIGHT, PREFIX, DOCS,
    )  # fmt: skip
    f = factor
    if DOCS or PREFIX or HAS_SLOPE or HAS_KEY:
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
        x = _dot(q, tl.trans(k), tl.zeros([BM, BN], tl.float32), MODE)
        v = _rows(V, j0, vj, near_j, S, DV, BDV, EVEN_K)
        if CAP:
            capped = _tanh(x * inner)
            x = cap * capped
        k_ids, key = _ids(KID, cols, S, DOCS), _key_term(KEY, cols, cj, S, HAS_KEY, EVEN_K)
        is_left = j0 < c
        t = -tl.where(is_left, lse_left, lse_right)[:, None]
        x, t = _far(
            x, t, is_left, j0, near_j[None, :], position[:, None], key[None, :], q_ids[:, None], k_ids[None, :], factor,
            slope, reach, limit, prefix, left, right, HAS_SLOPE, HAS_KEY, HAS_LEFT, HAS_RIGHT, PREFIX, DOCS,
        )  # fmt: skip
        p = tl.exp2(x * f + t)
        keep = x
        if DROP:
            keep = _kept(row_keys[:, None], cols[None, :], threshold)
        dp = _dot(grad, tl.trans(v), tl.zeros([BM, BN], tl.float32), MODE)
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
            dq = _dot(ds.to(k.dtype), k, dq, MODE)

    for n in range((a - lo + c - z + hi - d) // BN):
        j0 = _general_start(n, lo, a, z, c, d, BN)
        cols = j0 + near_j
        k = _rows(K, j0, kj, near_j, S, D, BD, EVEN_K)
        x = _dot(q, tl.trans(k), tl.zeros([BM, BN], tl.float32), MODE)
        v = _rows(V, j0, vj, near_j, S, DV, BDV, EVEN_K)
        if CAP:
            capped = _tanh(x * inner)
            x = cap * capped
        distance = cols[None, :] - position[:, None]
        k_ids, key = _ids(KID, cols, S, DOCS), _key_term(KEY, cols, cj, S, HAS_KEY, EVEN_K)
        x = _general(
            x, T, at[:, None], distance, cols[None, :], key[None, :], q_ids[:, None], k_ids[None, :], factor, slope,
            reach, limit, prefix, left, right, ONE, HAS_SLOPE, HAS_KEY, HAS_LEFT, HAS_RIGHT, PREFIX, DOCS, MODE,
        )  # fmt: skip
        p = tl.exp2(x - lse[:, None])
        keep = x
        if DROP:
            keep = _kept(row_keys[:, None], cols[None, :], threshold)
        dp = _dot(grad, tl.trans(v), tl.zeros([BM, BN], tl.float32), MODE)
        if VALUES:
            dp += _at_distance(TV, (tl.minimum(near_i, L - 1 - i0) * width)[:, None], distance, reach, MODE)
        ds, met = _score_gradient(p, dp, delta[:, None], keep, keep_scale, DROP)
        if VALUES:
            left_sum, right_sum = _by_distance(W, met, distance, reach, (rows < L)[:, None], ONE, MODE)
            met_left += left_sum
            met_right += right_sum
        if not ONE:
            left_sum, right_sum = _by_distance(DT, ds, distance, reach, (rows < L)[:, None], ONE, MODE)
            left_end += left_sum
            right_end += right_sum
        if CAP:
            ds = ds * (1 - capped * capped)
        if HAS_DOT:
            dq = _dot(ds.to(k.dtype), k, dq, MODE)

    if HAS_DOT:
        _store_rows(DQ + bh * L * D, dq * scale, i0, D, near_i, L, D, BD)
    if not ONE:
        _store_ends(DT, left_end, right_end, reach, rows < L, ONE)
    if VALUES:
        _store_ends(W, met_left, met_right, reach, rows < L, ONE)
