"""Dropout as a function of (seed, batch, head, query, key): every kernel drops the same weights.

A counter-based hash in 32-bit arithmetic, which PyTorch, numba and Triton can all compute: two rounds of a
xorshift-multiply mixer (constants of H. Wellons's "lowbias32" search) over the row's key and the column.
"""

from __future__ import annotations

import torch
from torch import Tensor

_LOW = 0xFFFFFFFF


def mix(x: Tensor) -> Tensor:
    """Scramble 32-bit numbers held in int64."""
    x = x ^ (x >> 16)
    x = (x * 0x7FEB352D) & _LOW
    x = x ^ (x >> 15)
    x = (x * 0x846CA68B) & _LOW
    return x ^ (x >> 16)


def keep(p: float, seed: Tensor, batch: Tensor, heads: Tensor, rows: Tensor, cols: Tensor) -> Tensor:
    """The pairs that dropout keeps: bool [B, H, l, s] for seed [B|1] and indices [B], [H], [l], [s]."""
    x = head_keys(seed, batch, heads)[..., None]
    x = mix(x ^ mix(rows + 0xC2B2AE35))[..., None]
    return mix(x ^ mix(cols + 0x27D4EB2F)) >= round(p * 2**32)


def head_keys(seed: Tensor, batch: Tensor, heads: Tensor) -> Tensor:
    """The part of the hash that is constant in a head, [B, H], for seed [B|1] and indices [B], [H]."""
    x = mix((seed & _LOW) ^ mix((seed >> 32) & _LOW))[:, None]
    x = mix(x ^ mix(batch[:, None] + 0x9E3779B9))
    return mix(x ^ mix(heads + 0x85EBCA6B))


def head_index(first: int, heads: int, device: torch.device) -> Tensor:
    return torch.arange(first, first + heads, device=device)
