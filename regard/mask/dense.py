"""A mask given as booleans."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.mask.base import Mask, register
from regard.mask.shape import Grid, Shape, Verdict, broadcast_pairs


@register
class Dense(Mask):
    """Any bool tensor that broadcasts to [batch, heads, L, S]."""

    reads_positions = False

    def __init__(self, mask: Tensor) -> None:
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
            raise TypeError(f"a mask is a bool tensor (True = may attend), got {_describe_argument(mask)}")
        self.tensors = (mask,)
        self.varies = "".join(d for d, n in zip("SLHB", reversed(mask.shape), strict=False) if n > 1)

    def bind(self, shape: Shape) -> Mask:
        return self._with(broadcast_pairs("the mask", self.tensors[0], shape))

    def _with(self, *tensors: Tensor) -> Mask:  # torch.compile cannot copy before PyTorch 2.13
        return type(self)(*tensors) if type(self) is Dense else super()._with(*tensors)

    def visible(self, rows: Tensor, positions: Tensor, cols: Tensor) -> Tensor:
        mask = self.tensors[0]
        mask = mask if mask.shape[-2] == 1 else mask[:, :, rows]
        return mask if mask.shape[-1] == 1 else mask[..., cols]

    def tiles(self, grid: Grid) -> Verdict:
        mask = self.tensors[0]
        mask = (mask if mask.shape[-2] == 1 else mask[:, :, grid.rows]).expand(-1, -1, len(grid.rows), grid.keys)
        pad = (0, -grid.keys % grid.block_k, 0, -len(grid.rows) % grid.block_q)
        blocks = (-1, grid.block_k), (-1, grid.block_q)
        some, every = F.pad(mask, pad, value=False), F.pad(mask, pad, value=True)
        some = some.unflatten(-1, blocks[0]).any(-1).unflatten(-2, blocks[1]).any(-2)
        every = every.unflatten(-1, blocks[0]).all(-1).unflatten(-2, blocks[1]).all(-2)
        return ~some, every

    def for_heads(self, heads: slice) -> Mask:
        mask = self.tensors[0]
        return self if mask.shape[1] == 1 else Dense(mask[:, heads])

    def __repr__(self) -> str:
        return f"Dense({list(self.tensors[0].shape)})"


def as_mask(mask: Mask | Tensor) -> Mask:
    """A mask as it is, a bool tensor as Dense; anything else raises TypeError."""
    return mask if isinstance(mask, Mask) else Dense(mask)


def _describe_argument(given: object) -> str:
    """What was passed instead of a mask, and what to do about it."""
    if isinstance(given, Tensor) and given.is_floating_point():
        return f"{given.dtype}; numbers to add to the scores go into regard.score.Bias"
    if isinstance(given, Tensor):
        return f"{given.dtype}; write .bool() if 1 means that a key may be seen, or == 0 if it means that it is hidden"
    if isinstance(given, type) and issubclass(given, Mask):
        return f"the class {given.__name__}; write {given.__name__}(), with its arguments"
    if callable(given):
        return f"{type(given).__name__}; a function of (b, h, i, j) goes into regard.mask.Function"
    return f"{type(given).__name__}; or one of regard.mask: Causal(), Window(), Lengths(), Prefix(), Documents()"
