"""Custom masks: how they are bound to a problem, and what kernels see of them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from regard.mask.base import KINDS, Mask
from regard.mask.shape import Bound, Grid, Shape, Verdict, broadcasts


class ByVisible(Mask):
    """A bound custom mask, known to kernels by ``visible`` alone: checks its answers and cuts out items and heads."""

    def __init__(self, mask: Mask, batch: int, items: slice | None = None, heads: slice | None = None) -> None:
        self.mask, self.batch, self.items, self.heads = mask, batch, items, heads
        self.static, self.varies = mask.static, mask.varies if type(mask).varies != Mask.varies else "BHLS"
        self.reads_positions = mask.reads_positions

    def visible(self, rows: Tensor, positions: Tensor, cols: Tensor) -> Tensor:
        if self.items is not None and positions.shape[0] > 1:  # the mask may hold tensors of all items
            whole = positions.new_zeros(self.batch, positions.shape[1])
            whole[self.items] = positions
            positions = whole
        seen = self.mask.visible(rows, positions, cols)
        if not isinstance(seen, Tensor) or seen.dtype != torch.bool:
            got = seen.dtype if isinstance(seen, Tensor) else type(seen).__name__
            raise TypeError(f"{self}.visible must return a bool tensor, got {got}")
        if seen.ndim > 4 or not broadcasts(seen.shape[-2:], (len(rows), len(cols))):
            expected = f"[batch, heads, {len(rows)}, {len(cols)}]"
            raise ValueError(f"{self}.visible must return what broadcasts to {expected}, got {list(seen.shape)}")
        return self._cut(seen)

    def span(self, p_lo: Bound, p_hi: Bound, k_lo: Bound, k_hi: Bound) -> Verdict:
        return self.mask.span(p_lo, p_hi, k_lo, k_hi)

    def tiles(self, grid: Grid) -> Verdict:
        empty, full = (torch.as_tensor(x, device=grid.rows.device) for x in self.mask.tiles(grid))
        return self._cut(empty), self._cut(full)

    def _cut(self, x: Tensor) -> Tensor:
        x = x.reshape((1,) * (4 - x.ndim) + x.shape)
        x = x if self.items is None or x.shape[0] == 1 else x[self.items]
        return x if self.heads is None or x.shape[1] == 1 else x[:, self.heads]

    def for_heads(self, heads: slice) -> Mask:
        if _overrides(self.mask, "for_heads"):
            return ByVisible(self.mask.for_heads(heads), self.batch, self.items, None)
        return ByVisible(self.mask, self.batch, self.items, _within(self.heads, heads))

    def for_items(self, items: slice) -> Mask:
        if _overrides(self.mask, "for_items"):
            return ByVisible(self.mask.for_items(items), items.stop - items.start, None, self.heads)
        return ByVisible(self.mask, self.batch, _within(self.items, items), self.heads)

    def __repr__(self) -> str:
        return repr(self.mask)


def _within(outer: slice | None, inner: slice) -> slice:
    """The slice ``inner`` of the slice ``outer``."""
    return inner if outer is None else slice(outer.start + inner.start, outer.start + inner.stop)


def _overrides(mask: Mask, name: str) -> bool:
    """Does a custom mask override this method, rather than inherit it from one of ours?"""
    first = next(kind for kind in type(mask).__mro__ if name in vars(kind))
    return first is not Mask and first not in KINDS.values()


def bind(mask: Mask, shape: Shape) -> Mask:
    """The mask bound to a problem; a custom mask becomes a :class:`ByVisible`."""
    bound = mask.bind(shape)
    if isinstance(bound, ByVisible) or type(bound) in KINDS.values():
        return bound
    if shape.key_positions is not None and mask.reads_positions and not _overrides(mask, "bind"):
        raise ValueError(
            f"{type(mask).__name__} only has `visible`, which assumes key j at position j: it takes positions of "
            "queries, but not of keys (if it ignores positions, declare reads_positions = False); a "
            "Function receives both"
        )
    return ByVisible(bound, math.prod(shape.batch))


def custom_part(mask: Mask | None) -> str | None:
    """The class name of the first part of a bound mask that kernels know by ``visible`` alone, or None."""
    if mask is None:
        return None
    if isinstance(mask, ByVisible):
        return type(mask.mask).__name__
    names = [custom_part(part) for part in mask.parts]
    return next((name for name in names if name is not None), None)
