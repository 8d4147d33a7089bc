"""Device code shared by kernels: products, the hash of dropout, masks, the online softmax and merging its parts.

Imported only when it runs: importing needs triton. Pointers are upper case. An argument that is None, a pointer or a
number of the mask, is removed at compile time; masks.py and dropout.py define these arguments.
"""

# mypy: ignore-errors

from __future__ import annotations

import os

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")
LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
INF = tl.constexpr(float("inf"))
FAR = tl.constexpr(2**30)


@triton.jit
def dot(a, b, acc, PRECISION: tl.constexpr):
    if INTERPRETED:  # it multiplies half types wrongly
        acc = tl.dot(a.to(tl.float32), b.to(tl.float32), acc, input_precision="ieee")
    else:
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    return acc


# --- dropout ---


@triton.jit
def _mix(x):
    """The mixer of kernels/_dropout.py, on uint32."""
    x = x ^ (x >> 16)
    x = x * 0x7FEB352D
    x = x ^ (x >> 15)
    x = x * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def hash_rows(HASH, bh, rows):
    key = tl.load(HASH + bh).to(tl.uint32)
    return _mix(_mix(rows.to(tl.uint32) + 0xC2B2AE35) ^ key)


@triton.jit
def survives(row_hash, cols, threshold):
    """The pairs that dropout keeps; row_hash and cols broadcast to the tile."""
    return _mix(_mix(cols.to(tl.uint32) + 0x27D4EB2F) ^ row_hash) >= threshold


# --- masks ---


@triton.jit
def load_item(ITEMS, b, offset, limit):
    """Position of query 0 and number of keys, for all or per batch item."""
    if ITEMS is not None:
        offset, limit = tl.load(ITEMS + 3 * b), tl.load(ITEMS + 3 * b + 1)
    return offset, limit


@triton.jit
def load_prefix(ITEMS, b, prefix):
    """Number of keys visible to all queries. Call it only if there is a prefix: Triton 3.6 cannot return None."""
    if ITEMS is not None:
        prefix = tl.load(ITEMS + 3 * b + 2)
    return prefix


@triton.jit
def load_ids(IDS, index, length):
    """The document ids of queries or keys; without documents, the indices."""
    x = index
    if IDS is not None:
        x = tl.load(IDS + tl.minimum(index, length - 1))
    return x


@triton.jit
def visible(delta, cols, q_ids, k_ids, limit, prefix, left, right, DOCS: tl.constexpr):
    """The visible pairs of a tile: (in the window or in the prefix) and below the limit and in the same document."""
    seen = cols < limit
    if left is not None or right is not None:
        if left is not None and right is not None:
            band = (delta <= right) & (delta >= -left)
        elif right is not None:
            band = delta <= right
        else:
            band = delta >= -left
        if prefix is not None:
            band = band | (cols < prefix)
        seen = seen & band
    if DOCS:
        seen = seen & (q_ids == k_ids)
    return seen


@triton.jit
def key_range(p0, p1, limit, prefix, left, right):
    """The keys that queries at positions p0 … p1 may see."""
    lo, hi = 0, limit
    if right is not None:
        end = p1 + right + 1
        if prefix is not None:
            end = tl.maximum(end, prefix)
        hi = tl.minimum(hi, end)
    if left is not None:
        lo = tl.maximum(p0 - left, 0)
        if prefix is not None:
            lo = tl.where(prefix > 0, 0, lo)
    return lo, hi


@triton.jit
def query_range(k0, k1, offset, L, limit, prefix, left, right):
    """The queries that may see the keys k0 … k1."""
    lo, hi = 0, L
    if right is not None:
        lo = tl.maximum(k0 - offset - right, 0)
        if prefix is not None:
            lo = tl.where(k0 < prefix, 0, lo)
    if left is not None:
        end = k1 - offset + left + 1
        if prefix is not None:
            end = tl.where(k0 < prefix, L, end)
        hi = tl.minimum(hi, end)
    return lo, tl.where(k0 < limit, hi, 0)


@triton.jit
def narrow(lo, hi, SPANS, start, length, ROWS: tl.constexpr, EVERY: tl.constexpr):
    """The part of a range with documents of the ROWS rows from start on; SPANS has one entry per EVERY rows."""
    if SPANS is not None:
        at = start // EVERY + tl.arange(0, ROWS // EVERY)
        inside = at * EVERY < length
        lo = tl.maximum(lo, tl.min(tl.load(SPANS + 2 * at, mask=inside, other=FAR), 0))
        hi = tl.minimum(hi, tl.max(tl.load(SPANS + 2 * at + 1, mask=inside, other=0), 0))
    return lo, hi


# --- softmax ---


@triton.jit
def online(x, factor, t, m, l, acc, v, keep, DROP: tl.constexpr, VALUES: tl.constexpr, PRECISION: tl.constexpr):
    """One step of the online softmax; the scores are x·factor + t, with t per row. Also returns the factor by which
    earlier sums shrink, and the sum of the weights after dropout."""
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
    acc = dot(p.to(v.dtype), v, acc * shrink[:, None], PRECISION)
    return new, l, acc, shrink, kept


@triton.jit(do_not_specialize=["n", "splits"])
def combine(PARTS, LSES, OUT, LSE, n, splits, DV: tl.constexpr, BDV: tl.constexpr, BS: tl.constexpr):
    """One of n rows whose keys were split: the mean of the parts' contexts, weighted by their sums of exponentials."""
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
