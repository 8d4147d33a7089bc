"""Masks in the one form that GPU kernels evaluate, and as their arguments. _pieces.py has the device code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.kernels.gpu.launch import batch_stride
from regard.mask import And, Causal, Documents, Lengths, Mask, Or, Prefix, Window
from regard.mask.shape import Grid
from regard.score.terms import Problem

FURTHEST = 2**30  # positions and distances are 32-bit integers
WIDEST = FURTHEST - 2**20  # a position plus a window must fit too


@dataclass(frozen=True)
class Conditions:
    """A mask as kernels evaluate it: (in the window or in the prefix) and below the limits and in the same document."""

    left: int | None = None
    right: int | None = None
    prefix: int | Tensor | None = None
    limits: tuple[int | Tensor, ...] = ()
    documents: Documents | None = None

    @staticmethod
    def of(mask: Mask | None) -> Conditions | str:
        """The mask in that form, or why it has none."""
        left = right = prefix = documents = None
        limits: tuple[int | Tensor, ...] = ()
        for part in _parts(mask):
            if isinstance(part, (Causal, Window)) and prefix is None:
                left, right = _narrow(left, right, part)
            elif isinstance(part, (Lengths, Prefix)):
                limits = (*limits, _number(part))
            elif isinstance(part, Documents) and documents is None:
                documents = part
            elif isinstance(part, Or) and left is None and right is None and prefix is None:
                window, other = sorted(part.parts, key=lambda m: isinstance(m, (Lengths, Prefix)))
                windows = _parts(window)
                near = all(isinstance(w, (Causal, Window)) for w in windows)
                if not near or not isinstance(other, (Lengths, Prefix)):
                    return _unknown(part)
                for w in windows:
                    left, right = _narrow(left, right, w)
                prefix = _number(other)
            else:
                return _unknown(part)
        return Conditions(left, right, prefix, limits, documents)


def _unknown(part: Mask) -> str:
    return (
        "it evaluates Causal, Window, Lengths, Prefix and Documents joined by &, and a window | Prefix, "
        f"but {part} is none of these or one too many"
    )


def _parts(mask: Mask | None) -> list[Mask]:
    """The operands of &, flattened."""
    if isinstance(mask, And):
        return [part for m in mask.parts for part in _parts(m)]
    return [] if mask is None else [mask]


def _narrow(left: int | None, right: int | None, part: Mask) -> tuple[int | None, int | None]:
    """The intersection of a window with another."""
    more = (None, 0) if isinstance(part, Causal) else (part.left, part.right)  # type: ignore[attr-defined]
    return _least(left, more[0]), _least(right, more[1])


def _least(x: int | None, y: int | None) -> int | None:
    return y if x is None else x if y is None else min(x, y)


def _number(part: Mask) -> int | Tensor:
    return part.ints[0] if part.ints else part.tensors[0]


# --- as arguments ---


def arguments(p: Problem) -> dict[str, Any]:
    """The mask as arguments of kernels; those that are None are removed at compile time."""
    mask = conditions(p)
    items, offset, limit, prefix = _items(p, mask)
    ids = (None, None) if mask.documents is None else mask.documents.tensors
    query_ids, key_ids = (None if x is None else x.contiguous() for x in ids)
    left, right = (None if n is None else min(n, WIDEST) for n in (mask.left, mask.right))
    return {
        "ITEMS": items, "offset": offset, "limit": limit, "prefix": prefix, "left": left, "right": right,
        "QID": query_ids, "KID": key_ids, "idb_q": batch_stride(query_ids), "idb_k": batch_stride(key_ids),
    }  # fmt: skip


def conditions(p: Problem) -> Conditions:
    found = Conditions.of(p.mask)
    assert isinstance(found, Conditions), found
    return found


def _items(p: Problem, mask: Conditions) -> tuple[Tensor | None, int, int, int | None]:
    """Offset, limit and prefix: one of each, or per batch item, [B, 3]."""
    offset = p.offset[:, 0] if isinstance(p.offset, Tensor) else p.offset
    numbers = (offset, *mask.limits, 0 if mask.prefix is None else mask.prefix)
    if all(isinstance(n, int) for n in numbers):
        limit = max(min((p.keys, *(n for n in mask.limits if isinstance(n, int)))), 0)
        assert isinstance(offset, int)
        return None, offset, limit, min(mask.prefix, p.keys) if isinstance(mask.prefix, int) else None
    columns = [_on_device(n, p.device).clamp(-FURTHEST, FURTHEST).expand(p.batch) for n in numbers]
    limits = torch.stack((torch.full_like(columns[0], p.keys), *columns[1:-1])).amin(0).clamp(min=0)
    items = torch.stack((columns[0], limits, columns[-1]), -1)
    return items.to(torch.int32).contiguous(), 0, p.keys, None if mask.prefix is None else 0


def _on_device(n: int | Tensor, device: torch.device) -> Tensor:
    """A number as a tensor, filled on the device: a copy from the host would synchronise and break CUDA graphs."""
    return n.to(device) if isinstance(n, Tensor) else torch.full((), n, dtype=torch.int64, device=device)


def spans(p: Problem, rows: int, step: int, *, by_keys: bool = False) -> dict[str, Any]:
    """For every ``rows`` queries (or keys), the range of keys (queries) in their documents, rounded to ``step``."""
    documents = conditions(p).documents
    if documents is None:
        return {"SPANS": None, "spans_b": 0}
    blocks = (step, rows) if by_keys else (rows, step)
    empty, _ = documents.tiles(Grid(p.row_index(), p.positions(), p.keys, *blocks))
    some = (~empty[:, 0].mT if by_keys else ~empty[:, 0]).to(torch.int8)  # [B|1, blocks, steps of the other side]
    first, last = some.argmax(-1), some.shape[-1] - some.flip(-1).argmax(-1)
    found = torch.stack((first, last), -1) * some.any(-1, keepdim=True) * step
    found = found.to(torch.int32).contiguous()
    return {"SPANS": found, "spans_b": batch_stride(found)}
