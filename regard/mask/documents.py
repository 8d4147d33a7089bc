"""Several documents in one sequence: a query sees the keys of its own document."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.mask.base import Mask, register
from regard.mask.packed import Packed
from regard.mask.shape import Grid, Shape, per_position


@register
class Documents(Mask):
    """Only keys with the query's document id. Positions continue from document to document, except in :meth:`packed`.

    >>> Documents([0, 0, 1]).dense(3).int()
    tensor([[1, 1, 0],
            [1, 1, 0],
            [0, 0, 1]], dtype=torch.int32)
    """

    reads_positions = False

    def __init__(self, query_ids: Tensor | Sequence[int], key_ids: Tensor | Sequence[int] | None = None) -> None:
        ids = torch.as_tensor(query_ids)
        key = ids if key_ids is None else torch.as_tensor(key_ids)
        if any(x.is_floating_point() or x.dtype == torch.bool for x in (ids, key)):
            raise TypeError(f"Documents takes whole numbers as ids, got {ids.dtype} and {key.dtype}")
        self.tensors = (ids, key)
        self.varies = "BLS" if max(ids.ndim, key.ndim) > 1 else "LS"

    @classmethod
    def packed(
        cls, query_offsets: Tensor | Sequence[int], key_offsets: Tensor | Sequence[int] | None = None
    ) -> Documents:
        """Documents end to end without padding, from cumulative offsets 0, n₁, n₁ + n₂, … (``cu_seqlens``).

        Positions restart in each document, for every score and mask, so that a call equals one call per document.
        If a document has more keys than queries, its last query is at the position of its last key, as in decoding.

        >>> from regard.mask import Causal
        >>> (Documents.packed([0, 2, 3], [0, 3, 5]) & Causal()).dense(3, 5).int()
        tensor([[1, 1, 0, 0, 0],
                [1, 1, 1, 0, 0],
                [0, 0, 0, 1, 1]], dtype=torch.int32)
        """
        return _PackedDocuments(Packed.of(query_offsets, key_offsets))

    @classmethod
    def from_valid(cls, query_offsets: Tensor, key_offsets: Tensor | None) -> Documents:
        """``packed`` without checks, for offsets known to be valid, such as a nested tensor's."""
        return _PackedDocuments(Packed.from_valid(query_offsets, key_offsets))

    def bind(self, shape: Shape) -> Mask:
        q = per_position("Documents: query_ids", "id", self.tensors[0], shape, shape.queries)
        k = per_position("Documents: key_ids", "id", self.tensors[1], shape, shape.keys)
        return self._with(q, k)

    def _with(self, *tensors: Tensor) -> Mask:  # torch.compile cannot copy before PyTorch 2.13
        return type(self)(*tensors) if type(self) is Documents else super()._with(*tensors)

    def visible(self, rows: Tensor, positions: Tensor, cols: Tensor) -> Tensor:
        q, k = self.tensors
        return (q[:, rows, None] == k[:, None, cols])[:, None]

    def tiles(self, grid: Grid) -> tuple[Tensor, Tensor]:
        q_lo, q_hi = grid.query_range(self.tensors[0][:, grid.rows])
        k_lo, k_hi = grid.key_range(self.tensors[1])
        return (q_hi < k_lo) | (q_lo > k_hi), (q_lo == k_hi) & (q_hi == k_lo)


class _PackedDocuments(Documents):
    """Documents by their offsets; ``bind`` turns them into Documents by ids."""

    def __init__(self, packed: Packed) -> None:
        self.packed_as, self.varies = packed, "LS"

    def packing(self) -> Packed:
        return self.packed_as

    def bind(self, shape: Shape) -> Mask:
        laid = self.packed_as.lay_out(shape.queries, shape.keys, shape.device)
        return Documents(laid.query_ids[None], laid.key_ids[None])

    def __repr__(self) -> str:
        return f"Documents.packed({len(self.packed_as.queries) - 1} documents)"
