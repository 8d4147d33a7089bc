"""A mask given as a function of batch item, head, query and key."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from regard.mask.base import Mask
from regard.mask.shape import Shape


class Function(Mask):
    """``f(b, h, i, j)``: may query i see key j in head h of batch item b?

    The arguments are integer tensors that broadcast to [batch, heads, l, s]; so must the result. i is the position of
    the query, ``offset`` included, so a decoding step asks the same questions as the whole sequence. j is the index of
    the key; with ``positions=`` or in packed documents it is a position too. f has the signature of FlexAttention's
    ``mask_mod``; several batch dims count as one.

    >>> Function(lambda b, h, i, j: (j <= i) & (i - j < 2)).dense(3).int()
    tensor([[1, 0, 0],
            [1, 1, 0],
            [0, 1, 1]], dtype=torch.int32)
    """

    def __init__(self, f: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]) -> None:
        if not callable(f):
            raise TypeError(f"Function takes a function of (b, h, i, j) that returns booleans, got {type(f).__name__}")
        self.f = f

    def bind(self, shape: Shape) -> Mask:
        items, heads = (torch.arange(n, device=shape.device) for n in (math.prod(shape.batch), shape.heads))
        if shape.laid is not None:  # f gets the positions within documents, which ``visible`` is not given
            return self._with(items, heads, shape.laid.key_positions[None], shape.laid.query_positions[None])
        keys = shape.key_positions
        return self._with(items, heads, torch.arange(shape.keys, device=shape.device)[None] if keys is None else keys)

    def visible(self, rows: Tensor, positions: Tensor, cols: Tensor) -> Tensor:
        items, heads, keys, *queries = self.tensors
        positions = queries[0][:, rows] if queries else positions
        at = positions[:, None, :, None], keys[:, None, None, cols]
        return self.f(items[:, None, None, None], heads[:, None, None], *at)

    def for_heads(self, heads: slice) -> Mask:
        items, own, *places = self.tensors
        return self._with(items, own[heads], *places)

    def for_items(self, items: slice) -> Mask:
        own, heads, *places = self.tensors
        return self._with(own[items], heads, *(x if len(x) == 1 else x[items] for x in places))

    def __repr__(self) -> str:
        return f"Function({getattr(self.f, '__name__', type(self.f).__name__)})"
