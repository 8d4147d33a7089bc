"""The Triton kernels of kernels/_guard.py. Imported only when they run: importing needs triton.

Rows are contiguous vectors of D numbers; D is padded to BD. Pointers are upper case.
"""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

INF = tl.constexpr(float("inf"))
FAR = tl.constexpr(2**30)
VARY = ["n0", "n1", "n2", "h0", "h1", "h2", "mb0", "mb1", "mb2", "items0", "items1", "items2", "L", "S"]


@triton.jit
def _clean_rows(X, Y, MARKS, sb, sh, sn, h, n, mb, items, D: tl.constexpr, BD: tl.constexpr, BR: tl.constexpr):
    """A block of the rows of one head."""
    blocks = tl.cdiv(n, BR)
    bh, start = tl.program_id(0) // blocks, tl.program_id(0) % blocks * BR
    if bh < items * h:
        item, head = (bh // h).to(tl.int64), (bh % h).to(tl.int64)
        row, d = start + tl.arange(0, BR), tl.arange(0, BD)
        mask = (row < n)[:, None] & (d < D)[None, :]
        X += item * sb + head * sh + start.to(tl.int64) * sn
        x = tl.load(X + tl.arange(0, BR)[:, None] * sn + d[None, :], mask=mask, other=0.0)
        wide = x.to(tl.float32)
        bad = (tl.abs(wide) == INF) | (wide != wide)
        Y += (bh.to(tl.int64) * n + start) * D
        clean = tl.where(bad, 0.0, wide).to(Y.dtype.element_ty)
        tl.store(Y + tl.arange(0, BR)[:, None] * D + d[None, :], clean, mask=mask)
        any_bad = tl.max(bad.to(tl.int32), 1)
        tl.store(MARKS + item * mb + head * n + row, any_bad.to(tl.uint8), mask=(row < n) & (any_bad != 0))


@triton.jit(do_not_specialize=VARY)
def clean(
    X0, X1, X2, Y0, Y1, Y2, MARKS0, MARKS1, MARKS2, sb0, sh0, sn0, sb1, sh1, sn1, sb2, sh2, sn2,
    h0, h1, h2, n0, n1, n2, mb0, mb1, mb2, items0, items1, items2,
    D0: tl.constexpr, D1: tl.constexpr, D2: tl.constexpr, BD0: tl.constexpr, BD1: tl.constexpr, BD2: tl.constexpr,
    BR: tl.constexpr,
):  # fmt: skip
    """Three tensors [B, h, n, D] at once: Y = X, contiguous, with 0 for NaN and Inf; rows that had any are marked.

    Marks are [B, ·, n] with batch stride mb, zero beforehand; several tensors may share them.
    """
    which = tl.program_id(1)
    if which == 0:
        _clean_rows(X0, Y0, MARKS0, sb0, sh0, sn0, h0, n0, mb0, items0, D0, BD0, BR)
    elif which == 1:
        _clean_rows(X1, Y1, MARKS1, sb1, sh1, sn1, h1, n1, mb1, items1, D1, BD1, BR)
    else:
        _clean_rows(X2, Y2, MARKS2, sb2, sh2, sn2, h2, n2, mb2, items2, D2, BD2, BR)


@triton.jit(do_not_specialize=VARY)
def spoil_causal(
    X, Y, BAD_KEYS, BAD_ROWS, xb, xh, xi, yb, yh, yi, H, G, L, S, value,
    D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, COPY: tl.constexpr,
):  # fmt: skip
    """Set row i of X [B, H, L, D] to ``value`` if i or any of the keys 0 … i is marked; with COPY in a copy, Y."""
    blocks = tl.cdiv(L, BM)
    bh = (tl.program_id(0) // blocks).to(tl.int64)
    i0 = tl.program_id(0) % blocks * BM
    b, h = bh // H, bh % H
    rows = i0 + tl.arange(0, BM)
    bad = tl.load(BAD_ROWS + bh * L + rows, mask=rows < L, other=0).to(tl.int32)
    BAD_KEYS += (b * (H // G) + h // G) * S
    first = tl.full([BN], FAR, tl.int32)
    for j0 in range(0, tl.minimum(i0 + BM, S), BN):
        cols = j0 + tl.arange(0, BN)
        marked = tl.load(BAD_KEYS + cols, mask=cols < S, other=0).to(tl.int32)
        first = tl.minimum(first, tl.where(marked != 0, cols, FAR))
    spoiled = (bad != 0) | (rows >= tl.min(first, 0))
    d = tl.arange(0, BD)
    ok = (rows < L)[:, None] & (d < D)[None, :]
    X += b * xb + h * xh + rows.to(tl.int64)[:, None] * xi + d[None, :]
    Y += b * yb + h * yh + rows.to(tl.int64)[:, None] * yi + d[None, :]
    if COPY:
        x = tl.load(X, mask=ok, other=0.0).to(tl.float32)
        tl.store(Y, tl.where(spoiled[:, None], value, x).to(Y.dtype.element_ty), mask=ok)
    else:
        new = tl.zeros([BM, BD], tl.float32) + value
        tl.store(Y, new.to(Y.dtype.element_ty), mask=ok & spoiled[:, None])
