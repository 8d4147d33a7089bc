"""A problem as arguments of the kernels of triton_offset."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from regard.kernels import _dropout
from regard.kernels.gpu.launch import interpreted, power
from regard.kernels.gpu.offset._config import OffsetConfig
from regard.kernels.gpu.offset._masks import OffsetMask
from regard.mask import Grid
from regard.score.terms import Problem

FURTHEST = 2**30  # positions and distances are 32-bit numbers
WORD = 16  # numbers: what Triton must know a stride to be a multiple of, to load rows of half types asynchronously
PRECISION = "ieee"  # of float32 products; "tf32x3" takes tensor cores and keeps 22 of 24 bits
LOG2E = math.log2(math.e)


class OffsetArguments:
    """A problem as arguments of the kernels."""

    def __init__(self, p: Problem) -> None:
        self.p = p
        (offset,) = p.terms.offsets
        self.reach = offset.reach
        self.table = rows_of(offset.table if offset.table.dtype != torch.float64 else offset.table.float())
        self.table_strides = strides("t", self.table)
        self.slope = None if offset.slope is None else per_head(offset.slope, p)
        self.v = rows_of(p.v)
        self.key: Tensor | None = p.terms.keys[0].c if p.terms.keys else None
        self.scale, self.sign = 1.0, 1.0
        dots = p.terms.dots
        if not dots:  # then one of zeros: see the kernels
            self.q = self.v.new_zeros(1, 1, 1, 16).expand(p.batch, p.heads, p.queries, 16)
            self.k = self.q[:, :1, :1].expand(p.batch, p.kv_heads, p.keys, 16)
        for term in dots:
            assert not isinstance(term.scale, Tensor) and term.k is not None
            self.scale, self.sign = (abs(term.scale), math.copysign(1.0, term.scale)) if term.scale else (1.0, 0.0)
            # The kernels take the maximum of q·k before scaling: the scale must be positive.
            self.q = rows_of(term.q if self.sign == 1.0 else term.q * self.sign)
            self.k = rows_of(term.k)
        self.values = p.terms.values
        self.grad_values: Tensor | None = None
        self.numbers = 4 if self.values is None else 8
        seen = OffsetMask.of(p.mask)
        assert isinstance(seen, OffsetMask)
        self.seen = seen
        self.items, self.offset, self.limit, self.prefix = self._items()
        self.hash = _hash(p) if p.dropout > 0 else None

    def _items(self) -> tuple[Tensor | None, int, int, int]:
        """Offset, limit and prefix: per batch item, [B, 3], or one of each."""
        p, seen = self.p, self.seen
        offset = p.offset[:, 0] if isinstance(p.offset, Tensor) else p.offset
        numbers = (offset, *seen.limits, 0 if seen.prefix is None else seen.prefix)
        if all(isinstance(n, int) for n in numbers):
            limit = max(min((p.keys, *(n for n in seen.limits if isinstance(n, int)))), 0)
            prefix = seen.prefix if isinstance(seen.prefix, int) else 0
            assert isinstance(offset, int)
            return None, offset, limit, min(prefix, p.keys)
        columns = [on_device(n, p.device).clamp(-FURTHEST, FURTHEST).expand(p.batch) for n in numbers]
        limits = torch.stack((torch.full_like(columns[0], p.keys), *columns[1:-1])).amin(0).clamp(min=0)
        items = torch.stack((columns[0], limits, columns[-1]), -1)
        return items.to(torch.int32).contiguous(), 0, p.keys, 0

    def by_distance(self) -> Tensor | None:
        """Room for the weights by distance, if values go by it."""
        if self.values is None:
            return None
        p = self.p
        return self.v.new_zeros(p.batch, p.heads, p.queries, self.values.shape[-2])

    def look_at(self, grad: Tensor) -> None:
        """grad·r', what the value term adds to the gradient of the weights."""
        if self.values is not None:
            self.grad_values = (grad @ self.values.mT).contiguous()

    def gradient(self, grad: Tensor, stats: Tensor) -> dict[str, Any]:
        """What the backward kernels are given beside the scores."""
        return {
            "GRAD": grad, "STATS": stats, "TV": self.grad_values, "NS": self.numbers, "scale": self.scale,
            "HAS_DOT": bool(self.p.terms.dots), **strides("g", grad),
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

    def mask(self) -> dict[str, Any]:
        """What the kernels evaluate of the mask."""
        seen, ids = self.seen, (None, None) if self.seen.documents is None else self.seen.documents.tensors
        query_ids, key_ids = (None if x is None else x.contiguous() for x in ids)
        return {
            "ITEMS": self.items, "offset": self.offset, "limit": self.limit, "prefix": self.prefix,
            "left": min(seen.left or 0, FURTHEST), "right": min(seen.right or 0, FURTHEST), "QID": query_ids,
            "KID": key_ids, "idb_q": batch_stride(query_ids), "idb_k": batch_stride(key_ids),
            "PER_ITEM": self.items is not None, "HAS_LEFT": seen.left is not None, "HAS_RIGHT": seen.right is not None,
            "PREFIX": seen.prefix is not None, "DOCS": seen.documents is not None,
        }  # fmt: skip

    def scores(self, config: OffsetConfig, by_keys: bool) -> dict[str, Any]:
        """What every kernel that computes scores is given."""
        p, cap = self.p, self.p.terms.cap
        bounds = self._bounds(config, by_keys)
        key = None if self.key is None else self.key[..., 0]
        return {
            "Q": self.q, "K": self.k, "V": self.v, "T": self.table, "SLOPE": self.slope, "KEY": key,
            "BOUNDS": bounds, "HASH": self.hash, "bb": batch_stride(bounds), "reach": self.reach,
            "factor": self.scale * LOG2E if cap is None else 1.0, "inner": self.scale / (cap or 1.0),
            "cap": (cap or 0.0) * LOG2E, "threshold": min(round(p.dropout * 2**32), 2**32 - 1),
            "keep_scale": 1 / (1 - p.dropout), "BM": config.q, "BN": config.k, "ONE": self.table.shape[-1] == 1,
            "HAS_SLOPE": self.slope is not None, "HAS_KEY": key is not None, "CAP": cap is not None,
            "DROP": p.dropout > 0, "VALUES": self.values is not None, "EVEN_Q": p.queries % config.q == 0,
            "EVEN_K": p.keys % config.k == 0, "MODE": "interpreter" if interpreted() else PRECISION,
            **config.options(), **strides("q", self.q), **strides("k", self.k), **strides("v", self.v),
            **strides("c", self.key), **self.table_strides, **self.sizes(), **self.mask(),
        }  # fmt: skip

    def _bounds(self, config: OffsetConfig, by_keys: bool) -> Tensor | None:
        """For every block the first and the end of the other side's indices that may share a document, [B|1, n, 2]."""
        p, documents = self.p, self.seen.documents
        if documents is None:
            return None
        empty, _ = documents.tiles(Grid(p.row_index(), p.positions(), p.keys, config.q, config.k))
        some, size = (~empty[:, 0].mT, config.q) if by_keys else (~empty[:, 0], config.k)
        first = some.to(torch.int32).argmax(-1)
        end = torch.where(some.any(-1), some.shape[-1] - some.flip(-1).to(torch.int32).argmax(-1), 0)
        return (torch.stack((first, end), -1) * size).to(torch.int32).contiguous()


def _hash(p: Problem) -> Tensor:
    """The part of dropout's hash that is the same for a whole head, [B·H]."""
    assert p.seed is not None
    heads = _dropout.head_index(p.first_head, p.heads, p.device)
    return _dropout.head_keys(p.seed, torch.arange(p.batch, device=p.device), heads).flatten()


def on_device(n: int | Tensor, device: torch.device) -> Tensor:
    """A number as a tensor, made there: a copy from the host would wait, and cannot stand in a CUDA graph."""
    return n.to(device) if isinstance(n, Tensor) else torch.full((), n, dtype=torch.int64, device=device)


def rows_of(x: Tensor) -> Tensor:
    """With dims next to each other; in half types whole words also begin at whole words."""
    whole = x.stride(-1) == 1 or x.shape[-1] == 1
    if x.element_size() == 2 and x.shape[-1] % WORD == 0:
        whole = whole and x.storage_offset() % WORD == 0 and all(s % WORD == 0 for s in x.stride()[:-1])
    return x if whole else x.clone(memory_format=torch.contiguous_format)


def strides(letter: str, x: Tensor | None) -> dict[str, int]:
    """Strides of the batch, head and length dims, 0 where broadcast."""
    names = [letter + n for n in ("bhj" if letter in "kvc" else "bhi")]
    if x is None:
        return dict.fromkeys(names, 0)
    return {name: 0 if n == 1 else stride for name, n, stride in zip(names, x.shape, x.stride(), strict=False)}


def batch_stride(x: Tensor | None) -> int:
    return 0 if x is None or x.shape[0] == 1 else x.stride(0)


def per_head(x: Tensor, p: Problem) -> Tensor:
    """[B|1, H|1] → [B, H] of float32."""
    return x.float().expand(p.batch, p.heads).contiguous()
