"""The forward pass: exponentials of the keys, then online softmax for a few queries at a time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from regard.kernels.cpu_additive._numba._compile import FAST, loop
from regard.kernels.cpu_additive._numba._fractions import _find_tame, _query, _scale, _sum_fractions
from regard.kernels.cpu_additive._numba._rows import (
    _add_terms,
    _clear,
    _drop,
    _exponentials,
    _hide,
    _multiply_add,
    _row_key,
    _top,
)
from regard.kernels.cpu_additive._numba._vectors import ROWS

EMPTY = -2  # the state of a tile that is skipped; -1 is full, others are the index of the tile's mask


@loop(FAST)
def keys(first: int, last: int, b: Any, bt: Any, top: Any, wide: bool) -> None:
    """B = e^{2b} (or 2b, if wide) with keys along the last dim, and its largest value per dim: units first … last."""
    kv_heads, n, dims = b.shape[1], b.shape[2], b.shape[3]
    rows = np.zeros((16, dims), bt.dtype)
    for unit in range(first, last):
        source, target, most = b[unit // kv_heads, unit % kv_heads], bt[unit // kv_heads, unit % kv_heads], top[unit]
        for j0 in range(0, n, 16):
            count = min(16, n - j0)
            for j in range(count):
                _query(source[j0 + j], wide, rows[j])
                row = rows[j]
                for d in range(dims):
                    most[d] = row[d] if row[d] > most[d] else most[d]
            for d in range(dims):
                line = target[d, j0 : j0 + count]
                for j in range(count):
                    line[j] = rows[j, d]


@loop()
def _queries(a: Any, i0: int, i1: int, wide: bool, exps: Any) -> None:
    """Exponentials of ROWS queries; if there are fewer, the last one is repeated."""
    for r in range(ROWS):
        _query(a[min(i0 + r, i1 - 1)], wide, exps[r])


@loop()
def _scores(
    s: Any, j0: int, count: int, i0: int, i1: int, exps: Any, scaled: Any, bt: Any, inverse: Any, tame: Any,
    shift: Any, gain: Any, key: Any, bias: Any, table: Any, slope: Any, positions: Any, tile: int, masks: Any,
    block_q: int, wide: bool,
) -> None:  # fmt: skip
    """The scores of queries i0 … i1 against a block of keys."""
    _sum_fractions(s, i1 - i0, exps, scaled, bt, inverse, tame, j0, count, wide)
    for i in range(i0, i1):
        r = i - i0
        _add_terms(s[r], j0, count, shift, gain, key, bias[i], table[i], slope, positions[i])
        _hide(s[r], tile, masks, i % block_q, count)


@loop()
def forward(
    first: int, last: int, group: int, a: Any, bt: Any, top_b: Any, w: Any, inverse: Any, gain: Any, v: Any,
    key: Any, bias: Any, table: Any, slope: Any, positions: Any, state: Any, masks: Any, block_q: int, block_k: int,
    wide: bool, sink: Any, seed: Any, threshold: Any, keep: Any, head: int, out: Any, lse: Any,
) -> None:  # fmt: skip
    """Context and logsumexp of tasks first … last: a task is ROWS queries of one head, or fewer at its end."""
    heads, each = a.shape[1], (a.shape[2] + ROWS - 1) // ROWS
    s = np.zeros((ROWS, block_k), a.dtype)
    acc = np.zeros((ROWS, v.shape[3]), a.dtype)
    exps, scaled = np.zeros((ROWS, w.shape[2]), a.dtype), np.zeros((ROWS, w.shape[2]), a.dtype)
    tame = np.zeros(w.shape[2] // 4, np.bool_)
    top, total = np.zeros(ROWS, a.dtype), np.zeros(ROWS, a.dtype)
    for t in range(first, last):
        b, h, i0 = t // each // heads, t // each % heads, t % each * ROWS
        i1 = min(i0 + ROWS, a.shape[2])
        k, n = h // group, bt.shape[3]
        shift = w[b, h].sum()
        _queries(a[b, h], i0, i1, wide, exps)
        _scale(exps, inverse[b, h], scaled)
        _find_tame(exps, inverse[b, h], top_b[b, k], wide, tame)
        _clear(acc, acc.shape[1])
        top[:], total[:] = sink[b, h], (0 if sink[b, h] == -np.inf else 1)
        for j0 in range(0, n, block_k):
            tile = state[b, h, i0 // block_q, j0 // block_k]
            if tile == EMPTY:
                continue
            count = min(block_k, n - j0)
            _scores(
                s, j0, count, i0, i1, exps, scaled, bt[b, k], inverse[b, h], tame, shift, gain[b, h], key[b, k],
                bias[b, h], table[b, h], slope[b, h], positions[b], tile, masks, block_q, wide,
            )  # fmt: skip
            for i in range(i0, i1):
                r = i - i0
                _accumulate(s[r], count, top, total, acc, r)
                if threshold > 0:
                    _drop(s[r], _row_key(seed[b], b, head + h, i), threshold, keep, j0, count)
            _clear(s[i1 - i0 :], count)
            _multiply_add(acc, s, v[b, k], j0, count, 0, acc.shape[1])
        for i in range(i0, i1):
            r = i - i0
            scale = a.dtype.type(0) if total[r] == 0 else a.dtype.type(1) / total[r]
            for c in range(acc.shape[1]):
                out[b, h, i, c] = acc[r, c] * scale
            lse[b, h, i] = -np.inf if total[r] == 0 else top[r] + math.log(total[r])


@loop()
def _accumulate(s: Any, count: int, top: Any, total: Any, acc: Any, r: int) -> None:
    """One step of the online softmax: s becomes e^{s − top} with the new top, and earlier sums are rescaled."""
    new = max(top[r], _top(s, count))
    if new == -np.inf:
        for j in range(count):
            s[j] = 0 if s[j] == -np.inf else s[j]  # NaN stays
            total[r] += s[j]
        return
    if new != top[r]:
        shrink = s.dtype.type(math.exp(top[r] - new))
        total[r] *= shrink
        for c in range(acc.shape[1]):
            acc[r, c] *= shrink
        top[r] = new
    total[r] += _exponentials(s, count, new)
