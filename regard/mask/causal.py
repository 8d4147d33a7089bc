"""Masks by relative position: causal, and a sliding window."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.mask.base import Mask, register
from regard.mask.shape import WHOLE, Bound, Grid, Shape, Verdict


class _ByPosition(Mask):
    """Base of masks by relative position. ``tensors`` holds the key positions if they are not the indices."""

    def at(self, key_positions: Tensor) -> Mask:
        """The same mask for keys at these positions, [B|1, S]."""
        made = Window(self.left, self.right) if type(self) is Window else self._with()
        made.tensors = (key_positions,)
        made.varies = "BLS" if key_positions.shape[0] > 1 else "LS"
        return made

    @classmethod
    def rebuild(cls, tensors: tuple[Tensor, ...], ints: tuple[int, ...], parts: tuple[Mask, ...]) -> Mask:
        mask = cls(*(None if n == -1 else n for n in ints))
        return mask.at(*tensors) if tensors else mask

    @property
    def static(self) -> bool:  # type: ignore[override]
        return not self.tensors

    def bind(self, shape: Shape) -> Mask:
        return self if shape.key_positions is None else self.at(shape.key_positions)

    def visible(self, rows: Tensor, positions: Tensor, cols: Tensor) -> Tensor:
        keys = self.tensors[0][:, None, cols] if self.tensors else cols
        return self._compare(keys, positions[..., None])[:, None]

    def tiles(self, grid: Grid) -> Verdict:
        if not self.tensors:
            return super().tiles(grid)
        return self.span(*grid.query_range(grid.positions), *grid.key_range(self.tensors[0]))

    def _compare(self, keys: Tensor, queries: Tensor) -> Tensor:
        raise NotImplementedError


@register
class Causal(_ByPosition):
    """A query sees the keys at its own position and before: j ≤ i."""

    def _compare(self, keys: Tensor, queries: Tensor) -> Tensor:
        return keys <= queries

    def span(self, p_lo: Bound, p_hi: Bound, k_lo: Bound, k_hi: Bound) -> Verdict:
        return k_lo > p_hi, k_hi <= p_lo

    def _with(self, *tensors: Tensor) -> Mask:  # torch.compile cannot copy before PyTorch 2.13
        if type(self) is not Causal:
            return super()._with(*tensors)
        other = Causal()
        other.tensors = tensors
        return other


@register
class Window(_ByPosition):
    """A query sees ``left`` keys before and ``right`` keys after its own position: −left ≤ j − i ≤ right.

    None is unbounded.
    """

    def __init__(self, left: int | None = None, right: int | None = None) -> None:
        for side, n in (("left", left), ("right", right)):
            if n is not None and (isinstance(n, bool) or not isinstance(n, WHOLE) or n < 0):
                raise ValueError(f"Window: {side} must be an integer ≥ 0 or None for unbounded, got {n!r}")
        self.left, self.right = left, right
        self.ints = (-1 if left is None else left, -1 if right is None else right)

    def _compare(self, keys: Tensor, queries: Tensor) -> Tensor:
        delta = keys - queries
        seen = torch.ones_like(delta, dtype=torch.bool)
        if self.left is not None:
            seen = seen & (delta >= -self.left)
        if self.right is not None:
            seen = seen & (delta <= self.right)
        return seen

    def span(self, p_lo: Bound, p_hi: Bound, k_lo: Bound, k_hi: Bound) -> Verdict:
        low, high = k_lo - p_hi, k_hi - p_lo
        left = -(2**62) if self.left is None else -self.left
        right = 2**62 if self.right is None else self.right
        return (high < left) | (low > right), (low >= left) & (high <= right)

    def __repr__(self) -> str:
        return f"Window({self.left}, {self.right})"
