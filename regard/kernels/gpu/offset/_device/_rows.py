"""Rows of matrices, and the terms per key and per head."""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from regard.kernels.gpu._pieces import LOG2E

# Not specialised: compiled once for all values of these.
VARY = ["L", "S", "reach", "offset", "limit", "prefix", "left", "right", "threshold", "first", "splits", "n"]


@triton.jit
def _tanh(x):
    y = x * x
    near = x * (1 + y * (-1 / 3 + y * (2 / 15 + y * (-17 / 315 + y * (62 / 2835)))))
    far = 1 - 2 / (1 + tl.exp(2 * tl.minimum(x, 20.0)))
    return tl.where(tl.abs(x) < 0.25, near, far)


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
def _key_term(KEY, cols, stride, S, EVEN: tl.constexpr):
    """The key term of a tile's keys."""
    x = cols
    if KEY is not None:
        if EVEN:
            x = tl.load(KEY + cols.to(tl.int64) * stride)
        else:
            x = tl.load(KEY + cols.to(tl.int64) * stride, mask=cols < S, other=0.0)
        x = x.to(tl.float32) * LOG2E
    return x


@triton.jit
def _slope(SLOPE, bh):
    slope = 0.0
    if SLOPE is not None:
        slope = tl.load(SLOPE + bh).to(tl.float32) * LOG2E
    return slope
