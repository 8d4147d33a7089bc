"""Nested tensors (``torch.jagged``): sequences of several lengths, treated as packed documents.

Their values are end to end already, so nothing is padded or copied. The result is nested in the same way. If a sequence
has more keys than queries, its last query is at the position of its last key, as in :meth:`Documents.packed`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.mask import Causal, Documents, Mask, Window
from regard.mask.dense import as_mask


@dataclass(frozen=True)
class Pack:
    """Nested tensors as one batch item: their values with a batch dim of 1, and the mask that separates sequences."""

    values: tuple[Tensor, Tensor, Tensor]
    mask: Mask
    offsets: Tensor  # of the queries and of the result
    dim: int  # the ragged dim

    def nest(self, x: Tensor) -> Tensor:
        """A result with one row per query, nested like the queries."""
        return torch.nested.nested_tensor_from_jagged(x[0], self.offsets, jagged_dim=self.dim)


def are_nested(*given: object) -> bool:
    return any(isinstance(x, Tensor) and x.is_nested for x in given)


def pack(queries: Any, keys: Any, values: Any, mask: Mask | Tensor | None, layout: str) -> Pack:
    """``layout`` is the shape required of the tensors, such as "[batch, heads, *, dim]"."""
    dim = layout.split(", ").index("*")
    for name, x in (("query", queries), ("key", keys), ("value", values)):
        _check(name, x, layout, dim)
    if not _same_lengths(keys, values, dim):
        raise ValueError("nested keys and values must have the same lengths, sequence by sequence")
    if len(queries) != len(keys):
        raise ValueError(
            f"nested queries and keys must have the same number of sequences, got {len(queries)} and {len(keys)}"
        )
    key_offsets = None if _same_lengths(queries, keys, dim) else keys.offsets()
    documents = Documents.from_valid(queries.offsets(), key_offsets)
    packed = queries.values()[None], keys.values()[None], values.values()[None]
    return Pack(packed, documents if mask is None else documents & _by_distance(mask), queries.offsets(), dim)


def _check(name: str, x: Any, layout: str, dim: int) -> None:
    if not are_nested(x) or x.layout != torch.jagged:
        kind = type(x).__name__ if not isinstance(x, Tensor) else f"one of layout {x.layout}"
        raise TypeError(f"query, key and value must all be nested, of layout torch.jagged, got {kind} as {name}")
    if x.ndim != layout.count(",") + 1 or x._ragged_idx != dim:
        raise ValueError(
            f"a nested {name} must be {layout}, the lengths at *, got {x.ndim} dims with the lengths at dim "
            f"{x._ragged_idx}; heads are split off by unflatten(-1, [heads, dim]).transpose(1, 2)"
        )
    if x.lengths() is not None:
        raise ValueError(
            f"the nested {name} has gaps between its sequences, such as narrow() leaves; call .contiguous()"
        )


def _same_lengths(a: Any, b: Any, dim: int) -> bool:
    """Do a and b have the same lengths? Tensors derived from one another share a symbol; others are compared."""
    if a is b or a.size(dim) == b.size(dim):
        return True
    return not torch.compiler.is_compiling() and torch.equal(a.offsets(), b.offsets())


def _by_distance(mask: Mask | Tensor) -> Mask:
    """The mask, if it depends on distances alone and so does not depend on where a sequence is in the pack."""
    mask = as_mask(mask)
    for leaf in _leaves(mask):
        if type(leaf) not in (Causal, Window):
            raise ValueError(
                "nested sequences have their own lengths; a mask for them is made of Causal(), "
                f"Window() and their combinations by &, | and ~, got {leaf}"
            )
    return mask


def _leaves(mask: Mask) -> list[Mask]:
    return [leaf for part in mask.parts for leaf in _leaves(part)] if mask.parts else [mask]
