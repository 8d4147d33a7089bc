"""Few queries, many keys: every key and value is read once, chunks of keys in parallel."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from regard.kernels.cpu_additive._numba._compile import FAST, loop
from regard.kernels.cpu_additive._numba._forward import EMPTY, _accumulate
from regard.kernels.cpu_additive._numba._fractions import _exp, _limit, _query
from regard.kernels.cpu_additive._numba._rows import _add_terms, _clear, _hide, _multiply_add
from regard.kernels.cpu_additive._numba._vectors import ROWS


@loop(FAST)
def _row_scores(s: Any, a: Any, w: Any, b: Any, j0: int, count: int, exponential: bool, wide: bool) -> None:
    """s[j] = Σ_d w_d / x_d of one query against keys [S, D] in their own layout: one division per number."""
    one, top = s.dtype.type(1), s.dtype.type(math.log(_limit(s.itemsize)))
    most = s.dtype.type(86 if s.itemsize == 4 else 700)  # e^most is finite; with any A here its fraction is 0
    for j in range(count):
        row, total = b[j0 + j], s.dtype.type(0)
        if wide:
            for d in range(row.shape[0]):
                y = math.log(row[d]) if exponential else row[d] + row[d]
                total += w[d] / (_exp(min(a[d] + y, top)) + one)
        elif exponential:
            for d in range(row.shape[0]):
                total += w[d] / (a[d] * row[d] + one)
        else:
            for d in range(row.shape[0]):
                total += w[d] / (a[d] * _exp(min(row[d] + row[d], most)) + one)
        s[j] = total


@loop()
def decode(
    first: int, last: int, chunks: int, chunk: int, group: int, a: Any, b_flat: Any, b_at: Any, exponential: bool,
    wide: bool, w: Any, v_flat: Any, v_at: Any, key: Any, bias: Any, table: Any, slope: Any, positions: Any, state: Any,
    masks: Any, block_k: int, n: int, dims: int, sink: Any, acc: Any, top: Any, total: Any,
) -> None:  # fmt: skip
    """Partial context and softmax of all queries for units first … last: a unit is a chunk of one head's keys.

    ``gather`` combines the parts. Rows are (head of the group, query); the first chunk includes the sink.
    """
    kv_heads, queries = b_at.shape[1], a.shape[2]
    s, exps = np.zeros((acc.shape[1], block_k), a.dtype), np.zeros((acc.shape[1], dims), a.dtype)
    gain = a.dtype.type(2)
    for unit in range(first, last):
        b, k, c = unit // chunks // kv_heads, unit // chunks % kv_heads, unit % chunks
        keys_of = b_flat[b_at[b, k] : b_at[b, k] + n * dims].reshape(n, dims)
        values = v_flat[v_at[b, k] : v_at[b, k] + n * acc.shape[2]].reshape(n, acc.shape[2])
        for r in range(group * queries):
            h = k * group + r // queries
            _query(a[b, h, r % queries], wide, exps[r])
            top[unit, r] = sink[b, h] if c == 0 else -np.inf
            total[unit, r] = 1 if c == 0 and sink[b, h] > -np.inf else 0
        for j0 in range(c * chunk, min(n, (c + 1) * chunk), block_k):
            count = min(block_k, n - j0)
            _clear(s, count)
            for r in range(group * queries):
                h, i = k * group + r // queries, r % queries
                tile = state[b, h, 0, j0 // block_k]
                if tile == EMPTY:
                    continue
                _row_scores(s[r], exps[r], w[b, h], keys_of, j0, count, exponential, wide)
                shift = w[b, h].sum()
                _add_terms(
                    s[r], j0, count, shift, gain, key[b, k], bias[b, h, i], table[b, h, i], slope[b, h], positions[b, i]
                )
                _hide(s[r], tile, masks, i, count)
                _accumulate(s[r], count, top[unit], total[unit], acc[unit], r)
            for r in range(0, acc.shape[1], ROWS):
                _multiply_add(acc[unit, r : r + ROWS], s[r : r + ROWS], values, j0, count, 0, acc.shape[2])


@loop()
def gather(chunks: int, group: int, acc: Any, top: Any, total: Any, out: Any, lse: Any) -> None:
    """Combine the parts of all chunks to context and logsumexp."""
    kv_heads, queries = out.shape[1] // group, out.shape[2]
    for b in range(out.shape[0]):
        for h in range(out.shape[1]):
            first = (b * kv_heads + h // group) * chunks
            for i in range(queries):
                r, most, whole = h % group * queries + i, -np.inf, 0.0
                for u in range(first, first + chunks):
                    most = top[u, r] if not top[u, r] <= most else most  # NaN stays
                out[b, h, i] = 0
                for u in range(first, first + chunks):
                    share = 0.0 if most == -np.inf else math.exp(top[u, r] - most)
                    whole += share * total[u, r]
                    for c in range(out.shape[3]):
                        out[b, h, i, c] += share * acc[u, r, c]
                for c in range(out.shape[3]):
                    out[b, h, i, c] = 0.0 if whole == 0 else out[b, h, i, c] / whole
                lse[b, h, i] = -np.inf if whole == 0 else most + math.log(whole)
