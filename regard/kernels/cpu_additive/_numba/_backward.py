"""The backward pass: gradients of shares of the queries, with weights recomputed from the logsumexp."""

from __future__ import annotations

from typing import Any

import numpy as np

from regard.kernels.cpu_additive._numba._compile import FAST, loop
from regard.kernels.cpu_additive._numba._forward import EMPTY, _queries, _scores
from regard.kernels.cpu_additive._numba._fractions import _add_gradients, _find_tame, _scale
from regard.kernels.cpu_additive._numba._rows import (
    _add_outer,
    _clear,
    _drop,
    _exponentials,
    _multiply_add,
    _row_key,
    _take_rows,
)
from regard.kernels.cpu_additive._numba._vectors import ROWS


@loop()
def backward(
    first: int, last: int, splits: int, group: int, a: Any, bt: Any, top_b: Any, w: Any, inverse: Any, gain: Any,
    v: Any, key: Any, bias: Any, table: Any, slope: Any, positions: Any, state: Any, masks: Any, block_q: int,
    block_k: int, wide: bool, seed: Any, threshold: Any, keep: Any, head: int, vt: Any, lse: Any, delta: Any,
    grad: Any, ga: Any, gbt: Any, gw: Any, gv: Any, gkey: Any, gbias: Any, gtable: Any,
) -> None:  # fmt: skip
    """Gradients of units first … last: a unit is one share of the queries of all heads of one key/value head."""
    kv_heads, queries = bt.shape[1], a.shape[2]
    s, gp = np.zeros((ROWS, block_k), a.dtype), np.zeros((ROWS, block_k), a.dtype)
    rows = np.zeros((ROWS, v.shape[3]), a.dtype)
    exps, scaled = np.zeros((ROWS, w.shape[2]), a.dtype), np.zeros((ROWS, w.shape[2]), a.dtype)
    gexps = np.zeros((ROWS, w.shape[2]), a.dtype)
    ones = np.ones(w.shape[2], a.dtype)
    tame, tame_x = np.zeros(w.shape[2] // 4, np.bool_), np.zeros(w.shape[2] // 4, np.bool_)
    of_head = np.zeros(bt.shape[2:], a.dtype)  # Σ_i g·r(1−r) of one head, before its weights
    for unit in range(first, last):
        b, k, share = unit // splits // kv_heads, unit // splits % kv_heads, unit % splits
        for g in range(group):
            h = k * group + g
            i, end = share * queries // splits, (share + 1) * queries // splits
            _clear(of_head, of_head.shape[1])
            while i < end:
                i1 = min(i + ROWS, end, (i // block_q + 1) * block_q)
                _take_rows(grad[b, h], i, i1, rows)
                _queries(a[b, h], i, i1, wide, exps)
                _scale(exps, inverse[b, h], scaled)
                _find_tame(exps, inverse[b, h], top_b[b, k], wide, tame)
                _find_tame(exps, ones, top_b[b, k], wide, tame_x)
                _clear(gexps, gexps.shape[1])
                _backward_rows(
                    b, h, i, i1, exps, scaled, bt[b, k], w[b, h], inverse[b, h], tame, tame_x, gain[b, h], v[b, k],
                    key[b, k], bias[b, h], table[b, h], slope[b, h], positions[b], state[b, h, i // block_q], masks,
                    block_q, block_k, wide, seed[b], threshold, keep, head, s, gp, rows, vt[b, k], lse[b, h],
                    delta[b, h], gexps, of_head, gw[unit, g], gv[unit], gkey[unit], gbias[b, h], gtable[b, h],
                )  # fmt: skip
                _put_scaled(ga[b, h], gexps, w[b, h], i, i1)
                i = i1
            _add_scaled(gbt[unit], of_head, w[b, h])


@loop(FAST)
def _put_scaled(ga: Any, rows: Any, w: Any, i0: int, i1: int) -> None:
    """ga[i, d] = 4 w_d rows[i − i0, d]."""
    for i in range(i0, i1):
        for d in range(ga.shape[1]):
            ga[i, d] = w.dtype.type(4) * w[d] * rows[i - i0, d]


@loop(FAST)
def _add_scaled(total: Any, part: Any, w: Any) -> None:
    """total[d, j] += 4 w_d part[d, j]."""
    for d in range(total.shape[0]):
        factor = w.dtype.type(4) * w[d]
        for j in range(total.shape[1]):
            total[d, j] += factor * part[d, j]


@loop()
def _backward_rows(
    b: int, h: int, i0: int, i1: int, exps: Any, scaled: Any, bt: Any, w: Any, inverse: Any, tame: Any, tame_x: Any,
    gain: Any, v: Any, key: Any, bias: Any, table: Any, slope: Any, positions: Any, state: Any, masks: Any,
    block_q: int, block_k: int, wide: bool, seed: Any, threshold: Any, keep: Any, head: int, s: Any, gp: Any,
    grad: Any, vt: Any, lse: Any, delta: Any, ga: Any, gbt: Any, gw: Any, gv: Any, gkey: Any, gbias: Any, gtable: Any,
) -> None:  # fmt: skip
    n, shift = bt.shape[1], w.sum()
    for j0 in range(0, n, block_k):
        tile = state[j0 // block_k]
        if tile == EMPTY:
            continue
        count = min(block_k, n - j0)
        _clear(gp, count)
        _multiply_add(gp, grad, vt, 0, vt.shape[0], j0, count)
        _scores(
            s, j0, count, i0, i1, exps, scaled, bt, inverse, tame, shift, gain, key, bias, table, slope, positions,
            tile, masks, block_q, wide,
        )  # fmt: skip
        for r in range(ROWS):
            i = i0 + r
            if i >= i1 or lse[i] == -np.inf:
                _clear(s[r : r + 1], count)
                _clear(gp[r : r + 1], count)
                continue
            _exponentials(s[r], count, lse[i])
            row_key = _row_key(seed, b, head + h, i) if threshold > 0 else np.uint64(0)
            _weights_to_gradients(s[r], gp[r], j0, count, delta[i], row_key, threshold, keep)
            _add_single_gradients(gp[r], j0, count, positions[i], gw, gkey, gbias[i], gtable[i])
        _add_gradients(gp, i1 - i0, exps, bt, tame_x, j0, count, wide, ga, gbt, gw[0])
        _add_outer(gv[j0 : j0 + count], s, grad, count)


@loop(FAST)
def _add_single_gradients(
    gp: Any, j0: int, count: int, position: int, gw: Any, gkey: Any, gbias: Any, gtable: Any
) -> None:
    """Add the scores' gradients to those of the key, bias and offset terms and of the constant Σ_d w_d."""
    total = gp.dtype.type(0)
    for j in range(count):
        total += gp[j]
    gw[1, 0] += total
    if gkey.shape[0] > 0:
        for j in range(count):
            gkey[j0 + j] += gp[j]
    if gbias.shape[0] > 0:
        for j in range(count):
            gbias[j0 + j] += gp[j]
    if gtable.shape[0] > 0:
        reach = gtable.shape[0] // 2
        for j in range(count):
            gtable[min(max(j0 + j - position, -reach), reach) + reach] += gp[j]


@loop(FAST)
def _weights_to_gradients(
    s: Any, gp: Any, j0: int, count: int, delta: Any, key: Any, threshold: Any, keep: Any
) -> None:
    """Given weights s and gradients gp of the weights after dropout: gp becomes the scores' gradient, s is dropped."""
    if threshold == 0:
        for j in range(count):
            gp[j] = s[j] * (gp[j] - delta)
        return
    kept = s[:count].copy()
    _drop(kept, key, threshold, keep, j0, count)
    for j in range(count):
        gp[j] = kept[j] * gp[j] - s[j] * delta
        s[j] = kept[j]
