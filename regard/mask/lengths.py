"""Masks by the number of keys: padding, and a visible prefix."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.mask.base import Mask, register
from regard.mask.shape import WHOLE, Bound, Shape, Verdict, per_item


class _UpTo(Mask):
    """Base: keys j < n are visible, with one n for all or one per batch item."""

    varies, reads_positions = "S", False

    def __init__(self, n: int | Sequence[int] | Tensor) -> None:
        if isinstance(n, WHOLE) and not isinstance(n, bool):
            self.static, self.ints = True, (n,)
            return
        n = torch.as_tensor(n)
        if n.is_floating_point() or n.dtype == torch.bool:
            raise TypeError(f"{type(self).__name__} takes whole numbers, got {n.dtype}")
        self.tensors, self.varies = (n,), "BS" if n.numel() > 1 else "S"

    def bind(self, shape: Shape) -> Mask:
        if self.static:
            return self
        return self._with(per_item(type(self).__name__, self.tensors[0], shape))

    def _with(self, *tensors: Tensor) -> Mask:  # torch.compile cannot copy before PyTorch 2.13
        return type(self)(*tensors) if type(self) in (Lengths, Prefix) else super()._with(*tensors)

    def visible(self, rows: Tensor, positions: Tensor, cols: Tensor) -> Tensor:
        if self.static:
            return (cols < self.ints[0])[None, None, None]
        return cols < self.tensors[0][:, None, None, None]

    def span(self, p_lo: Bound, p_hi: Bound, k_lo: Bound, k_hi: Bound) -> Verdict:
        n = self.ints[0] if self.static else self.tensors[0][:, None, None, None]
        return k_lo >= n, k_hi < n


@register
class Lengths(_UpTo):
    """Keys j ≥ n_b are hidden: padding at the end of each batch item."""


@register
class Prefix(_UpTo):
    """The first n keys are visible; a prefix language model is ``Causal() | Prefix(n)``."""
