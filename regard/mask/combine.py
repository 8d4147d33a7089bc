"""Masks made of masks: and, or, not."""

from __future__ import annotations

from torch import Tensor

from regard.mask.base import Mask, register
from regard.mask.own import bind
from regard.mask.packed import Packed
from regard.mask.shape import Bound, Grid, Shape, Verdict


class _Combination(Mask):
    def __init__(self, *parts: Mask) -> None:
        self.parts = parts
        self.varies = "".join(part.varies for part in parts)

    @property
    def static(self) -> bool:  # type: ignore[override]
        return all(part.static for part in self.parts)

    @property
    def reads_positions(self) -> bool:  # type: ignore[override]
        return any(part.reads_positions for part in self.parts)

    def packing(self) -> Packed | None:
        if any(part.packing() for part in self.parts):
            raise ValueError(
                "Documents.packed restarts the positions of the whole call and combines with & only; to combine with "
                "| or ~ use Documents(ids), which does not restart positions, with positions= if they should restart"
            )
        return None

    def bind(self, shape: Shape) -> Mask:
        return type(self)(*[bind(part, shape) for part in self.parts])

    def for_heads(self, heads: slice) -> Mask:
        return type(self)(*[part.for_heads(heads) for part in self.parts])

    def visible(self, rows: Tensor, positions: Tensor, cols: Tensor) -> Tensor:
        return self._join([part.visible(rows, positions, cols) for part in self.parts])

    def span(self, p_lo: Bound, p_hi: Bound, k_lo: Bound, k_hi: Bound) -> Verdict:
        return self._combine([part.span(p_lo, p_hi, k_lo, k_hi) for part in self.parts])

    def tiles(self, grid: Grid) -> Verdict:
        return self._combine([part.tiles(grid) for part in self.parts])

    def _join(self, seen: list[Tensor]) -> Tensor:
        raise NotImplementedError

    def _combine(self, verdicts: list[Verdict]) -> Verdict:
        raise NotImplementedError


@register
class And(_Combination):
    """Visible where both parts say so. Written ``a & b``."""

    def packing(self) -> Packed | None:
        one, two = (part.packing() for part in self.parts)
        if one is not None and two is not None:
            raise ValueError("a call takes one Documents.packed, which sets its positions; got two joined by &")
        return two if one is None else one

    def _join(self, seen: list[Tensor]) -> Tensor:
        return seen[0] & seen[1]

    def _combine(self, verdicts: list[Verdict]) -> Verdict:
        (a_empty, a_full), (b_empty, b_full) = verdicts
        return a_empty | b_empty, a_full & b_full

    def __repr__(self) -> str:
        return f"({self.parts[0]} & {self.parts[1]})"


@register
class Or(_Combination):
    """Visible where either part says so. Written ``a | b``."""

    def _join(self, seen: list[Tensor]) -> Tensor:
        return seen[0] | seen[1]

    def _combine(self, verdicts: list[Verdict]) -> Verdict:
        (a_empty, a_full), (b_empty, b_full) = verdicts
        return a_empty & b_empty, a_full | b_full

    def __repr__(self) -> str:
        return f"({self.parts[0]} | {self.parts[1]})"


@register
class Not(_Combination):
    """Visible where the part says not. Written ``~a``."""

    def _join(self, seen: list[Tensor]) -> Tensor:
        return ~seen[0]

    def _combine(self, verdicts: list[Verdict]) -> Verdict:
        ((empty, full),) = verdicts
        return full, empty

    def __repr__(self) -> str:
        return f"~{self.parts[0]}"
