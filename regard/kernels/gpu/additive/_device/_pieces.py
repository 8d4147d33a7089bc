"""Small functions of numbers, dropout's hash, and which pairs a mask lets meet."""

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
DOC_ROWS = tl.constexpr(32)  # queries (keys) per entry of the tables of key (query) spans of documents
FAR = tl.constexpr(2**30)


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
