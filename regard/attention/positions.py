"""Positions of queries and keys: consecutive, given, or those of packed documents."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.attention.arguments import offset_of
from regard.mask.packed import Layout, Packed
from regard.mask.shape import Shape, per_position

Positions = Tensor | tuple[Tensor | None, Tensor | None]
"""Of both queries and keys, [L] or [*batch, L]; or a pair (of queries, of keys), None where they are the indices."""


@dataclass(frozen=True)
class Places:
    """The positions of a call: for masks and tables (offset, keys), and for a score's two halves (the starts).

    They only differ in packed documents. Masks and tables depend on distances, so keys may stay at their index in the
    pack; a rotary score needs positions that restart.
    """

    offset: int | Tensor = 0  # position(query i) − i, [B|1, 1|L]
    keys: Tensor | None = None  # positions of the keys, [B|1, S]; None: their indices
    query_start: int | Tensor = 0  # position(query i) − i, [B] or [B|1, L]
    key_start: int | Tensor = 0  # position(key j) − j, [B|1, S]
    packed: Packed | None = None  # the documents in which positions restart
    laid: Layout | None = None

    @property
    def among_keys(self) -> int | Tensor:
        """``offset`` in the form that scores take: a number, [B] or [B|1, L]."""
        if isinstance(self.offset, Tensor) and self.offset.shape[1] == 1:
            return self.offset[:, 0]
        return self.offset


def places_of(
    offset: int | Tensor, positions: Positions | None, packed: Packed | None, shape: Shape, lowered: bool
) -> Places:
    """The positions of a call. ``lowered`` keys keep those they were lowered at, their indices."""
    if positions is None and packed is None:
        start = offset_of(offset, shape)
        return Places(start[:, None] if isinstance(start, Tensor) else start, None, start)
    if isinstance(offset, Tensor) or offset != 0:
        what = "positions=" if packed is None else "Documents.packed"
        raise ValueError(
            f"{what} sets the positions of queries, and so does offset={_describe(offset)}; give one of them"
        )
    if packed is None:
        assert positions is not None
        return _explicit_places(positions, shape)
    if positions is not None:
        raise ValueError(
            "Documents.packed restarts positions in each document, and positions= was also given; use Documents(ids) "
            "with positions="
        )
    return _packed_places(packed, shape, lowered)


def _packed_places(packed: Packed, shape: Shape, lowered: bool) -> Places:
    laid = packed.lay_out(shape.queries, shape.keys, shape.device)
    queries, keys = (torch.arange(n, device=shape.device) for n in (shape.queries, shape.keys))
    offset: int | Tensor = 0 if packed.aligned else (laid.among_keys - queries)[None]
    if lowered:
        return Places(offset, None, offset, 0, packed, laid)
    starts = (laid.query_positions - queries)[None], (laid.key_positions - keys)[None]
    return Places(offset, None, *starts, packed, laid)


def _explicit_places(positions: Positions, shape: Shape) -> Places:
    if isinstance(positions, Tensor):
        if shape.queries != shape.keys:
            raise ValueError(
                f"one tensor of positions applies to queries and keys, but there are {shape.queries} queries and "
                f"{shape.keys} keys: give a pair (of queries, of keys), None for a side whose positions are its indices"
            )
        positions = positions, positions
    expected = "positions must be a tensor or a pair (of queries, of keys)"
    if not isinstance(positions, (tuple, list)):
        raise TypeError(f"{expected}, got {type(positions).__name__}")
    if len(positions) != 2:
        raise ValueError(f"{expected}, got {len(positions)} parts")
    queries, keys = (
        None if x is None else _check(side, x, shape, length)
        for side, x, length in zip(("queries", "keys"), positions, (shape.queries, shape.keys), strict=True)
    )
    start_q, start_k = (0 if x is None else x - torch.arange(x.shape[1], device=x.device) for x in (queries, keys))
    return Places(start_q, keys, start_q, start_k)


def _check(side: str, x: Tensor, shape: Shape, length: int) -> Tensor:
    if not isinstance(x, Tensor):
        raise TypeError(f"positions of {side} must be a tensor of whole numbers, got {type(x).__name__}")
    if x.is_floating_point() or x.dtype == torch.bool:
        raise TypeError(f"positions of {side} must be whole numbers, got {x.dtype}")
    name = f"positions of {side}"
    return per_position(name, "number", x.long(), shape, length)


def _describe(offset: int | Tensor) -> str:
    return f"a tensor of shape {list(offset.shape)}" if isinstance(offset, Tensor) else str(offset)
