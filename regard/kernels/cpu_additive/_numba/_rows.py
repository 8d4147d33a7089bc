"""Operations on rows of scores and of values: sums and products, softmax, the other terms, masks, dropout."""

from __future__ import annotations

from typing import Any

import numpy as np

from regard.kernels.cpu_additive._numba._compile import FAST, loop
from regard.kernels.cpu_additive._numba._fractions import _exp
from regard.kernels.cpu_additive._numba._vectors import (
    BYTES,
    VECTORS,
    inner_tile,
    inner_vector,
    largest_of,
    outer_tile,
    outer_vector,
)

# --- scores ---


@loop(FAST)
def _add_terms(
    s: Any, j0: int, count: int, shift: Any, gain: Any, key: Any, bias: Any, table: Any, slope: Any, position: int
) -> None:
    """s[j] = shift − gain · s[j] + the offset, bias and key terms; an array of size 0 means no such term."""
    for j in range(count):
        s[j] = shift - gain * s[j]
    if key.shape[0] > 0:
        for j in range(count):
            s[j] += key[j0 + j]
    if bias.shape[0] > 0:
        for j in range(count):
            s[j] += bias[j0 + j]
    if table.shape[0] > 0:
        reach = table.shape[0] // 2
        for j in range(count):
            delta = j0 + j - position
            near = min(max(delta, -reach), reach)
            s[j] += table[near + reach] - slope * abs(delta - near)


@loop({"contract", "nsz"})
def _hide(s: Any, state: int, masks: Any, row: int, count: int) -> None:
    if state >= 0:
        for j in range(count):
            if not masks[state, row, j]:
                s[j] = -np.inf


@loop()
def _top(s: Any, count: int) -> Any:
    """The largest of s[:count], ignoring NaN, which stays in the sum."""
    top = largest_of(s, count)
    for j in range(count - count % (BYTES // s.itemsize), count):
        top = s[j] if s[j] > top else top
    return top


@loop(FAST)
def _exponentials(s: Any, count: int, top: Any) -> Any:
    """s = e^{s − top}, with e^{−inf} = 0; returns the sum."""
    total = s.dtype.type(0)
    low = s.dtype.type(-86) if s.itemsize == 4 else s.dtype.type(-700)
    for j in range(count):
        x = s[j] - top
        y = _exp(x)
        y = s.dtype.type(0) if x < low else y
        y = x if x != x else y  # NaN stays NaN
        s[j] = y
        total += y
    return total


# --- dropout ---


@loop()
def _mix(x: Any) -> Any:
    """The mixer of kernels/_dropout.py."""
    low = np.uint64(0xFFFFFFFF)
    x = x ^ (x >> np.uint64(16))
    x = (x * np.uint64(0x7FEB352D)) & low
    x = x ^ (x >> np.uint64(15))
    x = (x * np.uint64(0x846CA68B)) & low
    return x ^ (x >> np.uint64(16))


@loop()
def _row_key(seed: Any, batch: int, head: int, row: int) -> Any:
    low = np.uint64(0xFFFFFFFF)
    x = _mix((np.uint64(seed) & low) ^ _mix(np.uint64(seed) >> np.uint64(32)))
    x = _mix(x ^ _mix(np.uint64(batch) + np.uint64(0x9E3779B9)))
    x = _mix(x ^ _mix(np.uint64(head) + np.uint64(0x85EBCA6B)))
    return _mix(x ^ _mix(np.uint64(row) + np.uint64(0xC2B2AE35)))


@loop()
def _drop(p: Any, key: Any, threshold: Any, scale: Any, j0: int, count: int) -> None:
    """Set dropped weights to zero and scale up the others."""
    factor = p.dtype.type(scale)
    for j in range(count):
        x = _mix(key ^ _mix(np.uint64(j0 + j) + np.uint64(0x27D4EB2F)))
        p[j] = p[j] * factor if x >= np.uint64(threshold) else p[j] * 0


# --- values ---


@loop(FAST)
def _clear(x: Any, count: int) -> None:
    """x[:, :count] = 0; numba's own slice assignment is slow."""
    for r in range(x.shape[0]):
        row = x[r]
        for j in range(count):
            row[j] = 0


@loop(FAST)
def _take_rows(x: Any, i0: int, i1: int, out: Any) -> None:
    """out[r] = x[i0 + r], and zeros from i1 on."""
    _clear(out, out.shape[1])
    for i in range(i0, i1):
        source, target = x[i], out[i - i0]
        for c in range(target.shape[0]):
            target[c] = source[c]


@loop(FAST)
def _multiply_add(acc: Any, x: Any, y: Any, first: int, count: int, start: int, n: int) -> None:
    """acc[r, c] += Σ_j x[r, j] y[first + j, start + c] for ROWS rows r, j < count and c < n."""
    lanes = BYTES // acc.itemsize
    whole, tiles = n - n % lanes, n - n % (VECTORS * lanes)
    for c in range(0, tiles, VECTORS * lanes):
        inner_tile(acc, x, y, c, first, start + c, count)
    for c in range(tiles, whole, lanes):
        inner_vector(acc, x, y, c, first, start + c, count)
    if whole == n:
        return
    acc0, acc1, acc2, acc3 = acc[0, whole:n], acc[1, whole:n], acc[2, whole:n], acc[3, whole:n]
    for j in range(count):
        x0, x1, x2, x3 = x[0, j], x[1, j], x[2, j], x[3, j]
        row = y[first + j, start + whole : start + n]
        for c in range(row.shape[0]):
            acc0[c] += x0 * row[c]
            acc1[c] += x1 * row[c]
            acc2[c] += x2 * row[c]
            acc3[c] += x3 * row[c]


@loop(FAST)
def _add_outer(acc: Any, x: Any, y: Any, count: int) -> None:
    """acc[j, c] += Σ_r x[r, j] y[r, c] for ROWS rows r and j < count."""
    n, lanes = acc.shape[1], BYTES // acc.itemsize
    whole, tiles = n - n % lanes, n - n % (VECTORS * lanes)
    for c in range(0, tiles, VECTORS * lanes):
        outer_tile(acc, x, y, c, count)
    for c in range(tiles, whole, lanes):
        outer_vector(acc, x, y, c, count)
    if whole == n:
        return
    y0, y1, y2, y3 = y[0, whole:], y[1, whole:], y[2, whole:], y[3, whole:]
    for j in range(count):
        x0, x1, x2, x3 = x[0, j], x[1, j], x[2, j], x[3, j]
        row = acc[j, whole:]
        for c in range(row.shape[0]):
            row[c] += (x0 * y0[c] + x1 * y1[c]) + (x2 * y2[c] + x3 * y3[c])
