"""Products, dropout's hash, rows of matrices, and which pairs a mask lets meet."""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
INF = tl.constexpr(float("inf"))
# Compiled once for all values of these.
VARY = ["L", "S", "reach", "offset", "limit", "prefix", "left", "right", "threshold", "first", "splits", "n"]


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
