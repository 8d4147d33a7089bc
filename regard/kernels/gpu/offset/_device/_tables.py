"""Tables by distance: zones of keys and of queries, look-up and storing of numbers by j − i."""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from regard.kernels.gpu._pieces import INF, INTERPRETED, LOG2E, key_range, narrow, query_range, visible

# tl.load and tl.store convert a tile of addresses to a coalesced layout, and the scores with it: dozens of barriers per
# tile. In assembly they work in the tensor cores' layout of the scores. The interpreter cannot run assembly.


@triton.jit
def _look_up(P):
    """The numbers at these addresses in float32. Nothing may write there at the same time."""
    if INTERPRETED:
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
def _put(P, x, mask):
    """Store float32 numbers at these addresses, rounded to the pointer's dtype."""
    if INTERPRETED:
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
def _at_distance(P, at, delta, reach):
    """The entry of each pair's distance in a table whose rows start at ``at``."""
    return _look_up(P + (at + (tl.minimum(tl.maximum(delta, -reach), reach) + reach)))


@triton.jit
def _near(T, at, delta, slope, reach, HAS_SLOPE: tl.constexpr, ONE: tl.constexpr):
    """The offset term of a tile, looked up pair by pair; ``at`` is the start of each query's row of the table."""
    if ONE:
        e = tl.load(T + at).to(tl.float32) * LOG2E
    else:
        e = _at_distance(T, at, delta, reach) * LOG2E
    if HAS_SLOPE:
        e = e - slope * tl.maximum(tl.abs(delta) - reach, 0).to(tl.float32)
    return e


@triton.jit
def _general(
    x, T, at, delta, cols, key, q_ids, k_ids, factor, slope, reach, limit, prefix, left, right,
    ONE: tl.constexpr, HAS_SLOPE: tl.constexpr, HAS_KEY: tl.constexpr, 
    DOCS: tl.constexpr,
):  # fmt: skip
    """The scores of a general tile, −∞ where masked."""
    x = x * factor + _near(T, at, delta, slope, reach, HAS_SLOPE, ONE)
    if HAS_KEY:
        x += key
    seen = visible(delta, cols, q_ids, k_ids, limit, prefix, left, right, DOCS)
    return tl.where(seen, x, -INF)


@triton.jit
def _by_distance(P, x, delta, reach, ok, ONE: tl.constexpr):
    """Numbers of a tile by distance: those between the ends are stored, the sums at both ends returned."""
    if ONE:
        left, right = tl.sum(x, 1), tl.sum(x, 1) * 0.0
    else:
        left = tl.sum(tl.where(delta <= -reach, x, 0.0), 1)
        right = tl.sum(tl.where(delta >= reach, x, 0.0), 1)
        _put(P[:, None] + (delta + reach), x, (delta > -reach) & (delta < reach) & ok)
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
    HAS_SLOPE: tl.constexpr, HAS_KEY: tl.constexpr, 
    DOCS: tl.constexpr,
):  # fmt: skip
    """The scores of a far tile as x + t: the offset t is given per query; the keys are start + near_j.

    On one side of the diagonal −slope·(|δ| − reach) = ±slope·(j − start) + slope·(±(start − position) + reach): one
    number per key, the same in every tile, plus one per query. Returns x, still without ``factor`` if nothing was added
    per key, and t.
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
    if DOCS or prefix is not None:
        cols = start + near_j
        seen = visible(cols - position, cols, q_ids, k_ids, limit, prefix, left, right, DOCS)
        if HAS_SLOPE or HAS_KEY:
            x = tl.where(seen, x + t, -INF)
        else:
            x = tl.where(seen, x * factor + t, -INF)
        t = tl.zeros_like(t)
    return x, t


@triton.jit
def _zones(lo, hi, whole_lo, whole_hi, near, beyond, N: tl.constexpr, MASKED: tl.constexpr):
    """lo, a, b, c, d, hi in tiles of N, from the visible range, the fully visible range, and the range near the
    diagonal, ``near`` to ``beyond``. If far tiles are MASKED, they need not be fully visible."""
    lo = lo // N * N
    hi = lo + tl.cdiv(tl.maximum(hi - lo, 0), N) * N
    if MASKED:
        whole_lo, whole_hi = lo, hi
    else:
        whole_lo = tl.cdiv(whole_lo, N) * N
        whole_hi = tl.minimum(tl.maximum(whole_hi, 0) // N * N, hi)
    b = tl.maximum(near, 0) // N * N
    b = tl.maximum(tl.minimum(b, whole_hi), lo)
    a = tl.minimum(tl.maximum(whole_lo, lo), b)
    c = tl.cdiv(tl.maximum(beyond, 0), N) * N
    c = tl.minimum(tl.maximum(c, b), hi)
    d = tl.maximum(whole_hi, c)
    return lo, a, b, c, d, hi


@triton.jit
def _key_zones(
    p0, p1, reach, L, limit, prefix, left, right, SPANS, i0, BM: tl.constexpr, BN: tl.constexpr, DOCS: tl.constexpr
):
    """lo, a, b, c, d, hi for queries at positions p0 … p1, multiples of BN."""
    lo, hi = key_range(p0, p1, limit, prefix, left, right)
    lo, hi = narrow(lo, hi, SPANS, i0, L, BM, BM)
    whole_lo, whole_hi = 0, limit
    if right is not None:
        whole_hi = tl.minimum(whole_hi, p0 + right + 1)
    if left is not None:
        whole_lo = tl.maximum(p1 - left, 0)
    return _zones(lo, hi, whole_lo, whole_hi, p0 - reach + 1, p1 + reach, BN, DOCS or prefix is not None)


@triton.jit
def _query_zones(
    k0, k1, offset, reach, L, S, limit, prefix, left, right, SPANS, BM: tl.constexpr, BN: tl.constexpr,
    DOCS: tl.constexpr,
):  # fmt: skip
    """The zones of query indices for keys k0 … k1: here a ‥ b is far to the right, c ‥ d far to the left."""
    lo, hi = query_range(k0, k1, offset, L, limit, prefix, left, right)
    lo, hi = narrow(lo, hi, SPANS, k0, S, BN, BN)
    whole_lo, whole_hi = 0, L + BM  # queries beyond the last have logsumexp ∞, so they need no mask
    if right is not None:
        whole_lo = tl.maximum(k1 - offset - right, 0)
    if left is not None:
        whole_hi = tl.maximum(k0 - offset + left + 1, 0)
    return _zones(
        lo, hi, whole_lo, whole_hi, k0 - reach - offset + 1, k1 + reach - offset, BM, DOCS or prefix is not None
    )


@triton.jit
def _far_start(n, a, b, c, N: tl.constexpr):
    """The start of the n-th far tile."""
    start = a + n * N
    return tl.where(start >= b, start + (c - b), start)


@triton.jit
def _general_start(n, lo, a, b, c, d, N: tl.constexpr):
    """The start of the n-th general tile."""
    start = lo + n * N
    start = tl.where(start >= a, start + (b - a), start)
    return tl.where(start >= c, start + (d - c), start)
