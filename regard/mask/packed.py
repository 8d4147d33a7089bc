"""Packed sequences: documents end to end without padding, each with its own positions.

Positions restart in each document: its keys are at 0, 1, …, and its last query is at its last key, as in decoding. Only
pairs within a document are visible. So whatever depends on the distance of query and key alone may leave key j at its
index j in the pack, and place the query relative to that (``among_keys``).

Shapes: L queries, S keys, N documents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """The document and the position of each query and key of a pack."""

    query_ids: Tensor  # [L], the document
    key_ids: Tensor  # [S]
    query_positions: Tensor  # [L], restarted in each document
    key_positions: Tensor  # [S]
    among_keys: Tensor  # [L], the query's position if key j is at j

    def to(self, device: torch.device) -> Layout:
        return Layout(*(getattr(self, name).to(device) for name in self.__dataclass_fields__))


@dataclass(frozen=True)
class Packed:
    """The cumulative offsets of the documents of a pack."""

    queries: Tensor  # [N + 1]
    keys: Tensor  # [N + 1]
    aligned: bool  # every document is known to have as many keys as queries: query i is at key i
    laid: Layout | None  # computed if offsets are checked: not in a compiled program, not for nested tensors
    ends: tuple[list[int], list[int]] | None = None  # the same offsets as ints, if they were read

    @staticmethod
    def of(query_offsets: Tensor | Sequence[int], key_offsets: Tensor | Sequence[int] | None) -> Packed:
        queries = _offsets(query_offsets)
        shared = key_offsets is None or key_offsets is query_offsets
        keys = queries if shared else _offsets(key_offsets).to(queries.device)  # type: ignore[arg-type]
        if len(queries) != len(keys):
            raise ValueError(
                f"Documents.packed: queries and keys must be of as many documents, got {len(queries) - 1} and "
                f"{len(keys) - 1}; a document without queries or keys has two equal offsets"
            )
        if torch.compiler.is_compiling():
            return Packed(queries, keys, keys is queries, None)
        q, k = _check(queries), _check(keys)
        return Packed(queries, keys, q == k, _lay_out(queries, keys, q[-1], k[-1]), (q, k))

    @staticmethod
    def from_valid(query_offsets: Tensor, key_offsets: Tensor | None) -> Packed:
        """From offsets known to be valid. Nothing is read, so there is no wait for a GPU."""
        queries = query_offsets.long()
        keys = queries if key_offsets is None else key_offsets.long()
        return Packed(queries, keys, key_offsets is None, None)

    def documents(self) -> list[tuple[slice, slice]] | None:
        """Queries and keys of each document; None in a compiled program, which cannot read tensors of offsets."""
        ends = self.ends
        if ends is None and not torch.compiler.is_compiling():
            ends = self.queries.tolist(), self.keys.tolist()
        if ends is None:
            return None
        return [(slice(*q), slice(*k)) for q, k in zip(pairwise(ends[0]), pairwise(ends[1]), strict=True)]

    def lay_out(self, queries: int, keys: int, device: torch.device) -> Layout:
        """The layout of all queries and keys of a call; their numbers must match the offsets."""
        if self.laid is None:
            return _lay_out(self.queries.to(device), self.keys.to(device), queries, keys)
        ends = len(self.laid.query_ids), len(self.laid.key_ids)
        for side, end, length in zip(("query", "key"), ends, (queries, keys), strict=True):
            if end != length:
                raise ValueError(f"Documents.packed: the {side} offsets end at {end}, where q, k and v have {length}")
        return self.laid.to(device)


def _lay_out(query_offsets: Tensor, key_offsets: Tensor, queries: int, keys: int) -> Layout:
    index_q = torch.arange(queries, device=query_offsets.device)
    index_k = torch.arange(keys, device=query_offsets.device)
    query_ids = torch.searchsorted(query_offsets, index_q, right=True) - 1
    key_ids = torch.searchsorted(key_offsets, index_k, right=True) - 1
    last = len(query_offsets) - 2  # a compiled program does not check the end: what follows it is in no document
    q, k = query_ids.clamp(max=last), key_ids.clamp(max=last)
    from_end = index_q - query_offsets[q + 1]
    return Layout(
        query_ids,
        key_ids,
        from_end + (key_offsets[q + 1] - key_offsets[q]),
        index_k - key_offsets[k],
        from_end + key_offsets[q + 1],
    )


def _offsets(given: Tensor | Sequence[int]) -> Tensor:
    offsets = torch.as_tensor(given)
    if offsets.is_floating_point() or offsets.dtype == torch.bool or offsets.ndim != 1 or len(offsets) < 2:
        raise ValueError(
            "Documents.packed takes offsets 0, n₁, n₁ + n₂, …, whole numbers as in [0, 5, 8], got "
            f"{offsets.dtype} of shape {list(offsets.shape)}"
        )
    return offsets.long()


def _check(offsets: Tensor) -> list[int]:
    numbers: list[int] = offsets.tolist()
    if numbers[0] != 0 or any(a > b for a, b in pairwise(numbers)):
        raise ValueError(f"packed offsets start at 0 and do not fall, as in [0, 5, 8], got {_short(numbers)}")
    return numbers


def _short(numbers: list[int]) -> str:
    return str(numbers) if len(numbers) <= 12 else f"[{', '.join(map(str, numbers[:12]))}, …]"
