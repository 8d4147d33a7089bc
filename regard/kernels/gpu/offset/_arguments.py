"""The arguments of triton_offset's kernels."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from regard.kernels.gpu import dropout, masks
from regard.kernels.gpu.launch import options, per_head, power, strides
from regard.kernels.gpu.offset._config import OffsetConfig
from regard.score.terms import Problem

WORD = 16  # numbers: strides must be multiples of it for asynchronous loads of rows in half precision
PRECISION = "ieee"  # of float32 products; "tf32x3" uses tensor cores and keeps 22 of 24 bits
LOG2E = math.log2(math.e)


class OffsetArguments:
    """A problem as arguments of the kernels."""

    def __init__(self, p: Problem) -> None:
        self.p = p
        (offset,) = p.terms.offsets
        self.reach = offset.reach
        self.table = rows_of(offset.table if offset.table.dtype != torch.float64 else offset.table.float())
        self.table_strides = strides("tb th ti", self.table)
        self.slope = per_head(offset.slope, p)
        self.v = rows_of(p.v)
        self.key: Tensor | None = p.terms.keys[0].c if p.terms.keys else None
        self.scale, self.sign = 1.0, 1.0
        dots = p.terms.dots
        if not dots:  # then use zeros, see _device
            self.q = self.v.new_zeros(1, 1, 1, 16).expand(p.batch, p.heads, p.queries, 16)
            self.k = self.q[:, :1, :1].expand(p.batch, p.kv_heads, p.keys, 16)
        for term in dots:
            assert not isinstance(term.scale, Tensor) and term.k is not None
            self.scale, self.sign = (abs(term.scale), math.copysign(1.0, term.scale)) if term.scale else (1.0, 0.0)
            # The kernels take the maximum of q·k before scaling, so the scale must be positive.
            self.q = rows_of(term.q if self.sign == 1.0 else term.q * self.sign)
            self.k = rows_of(term.k)
        self.values = p.terms.values
        self.grad_values: Tensor | None = None
        self.numbers = 4 if self.values is None else 8
        self.mask, self.dropout = masks.arguments(p), dropout.arguments(p)

    def by_distance(self) -> Tensor | None:
        """Memory for the weights by distance, if there is a value term."""
        if self.values is None:
            return None
        p = self.p
        return self.v.new_zeros(p.batch, p.heads, p.queries, self.values.shape[-2])

    def look_at(self, grad: Tensor) -> None:
        """Compute grad·r', the contribution of the value term to the gradient of the weights."""
        if self.values is not None:
            self.grad_values = (grad @ self.values.mT).contiguous()

    def gradient(self, grad: Tensor, stats: Tensor) -> dict[str, Any]:
        """The arguments of backward kernels besides those of the scores."""
        return {
            "GRAD": grad, "STATS": stats, "TV": self.grad_values, "NS": self.numbers, "scale": self.scale,
            "HAS_DOT": bool(self.p.terms.dots), **strides("gb gh gi", grad),
        }  # fmt: skip

    def sizes(self, dot: bool = True) -> dict[str, Any]:
        p = self.p
        dims = p.v.shape[-1]
        sizes = {
            "H": p.heads,
            "G": p.heads // p.kv_heads,
            "L": p.queries,
            "S": p.keys,
            "DV": dims,
            "BDV": power(dims, 16),
        }
        if dot:
            sizes |= {"D": self.q.shape[-1], "BD": power(self.q.shape[-1], 16)}
        return sizes

    def scores(self, config: OffsetConfig, by_keys: bool) -> dict[str, Any]:
        """The arguments of every kernel that computes scores."""
        p, cap = self.p, self.p.terms.cap
        blocks = (config.k, config.q) if by_keys else (config.q, config.k)
        key = None if self.key is None else self.key[..., 0]
        return {
            "Q": self.q, "K": self.k, "V": self.v, "T": self.table, "SLOPE": self.slope, "KEY": key,
            "reach": self.reach, "factor": self.scale * LOG2E if cap is None else 1.0,
            "inner": self.scale / (cap or 1.0), "cap": (cap or 0.0) * LOG2E, "BM": config.q, "BN": config.k,
            "ONE": self.table.shape[-1] == 1, "CAP": cap is not None, "VALUES": self.values is not None,
            "EVEN_Q": p.queries % config.q == 0, "EVEN_K": p.keys % config.k == 0, "PRECISION": PRECISION,
            **options(config),
            **strides("qb qh qi", self.q), **strides("kb kh kj", self.k), **strides("vb vh vj", self.v),
            **strides("cb ch cj", self.key), **self.table_strides, **self.sizes(), **self.mask, **self.dropout,
            **masks.spans(p, *blocks, by_keys=by_keys),
        }  # fmt: skip


def rows_of(x: Tensor) -> Tensor:
    """x with contiguous rows; in half precision, rows of whole words are also aligned to words."""
    whole = x.stride(-1) == 1 or x.shape[-1] == 1
    if x.element_size() == 2 and x.shape[-1] % WORD == 0:
        whole = whole and x.storage_offset() % WORD == 0 and all(s % WORD == 0 for s in x.stride()[:-1])
    return x if whole else x.clone(memory_format=torch.contiguous_format)
