"""Building blocks of the formulas. Shapes as in :mod:`regard.score`."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def repeat_heads(k: Tensor, q: Tensor) -> Tensor:
    """Repeat key heads so that every query head has its own."""
    group = q.shape[-3] // k.shape[-3]
    return k if group == 1 else k.repeat_interleave(group, -3)


def widen(weight: Tensor, x: Tensor) -> Tensor:
    """The weight in the wider dtype of weight and x, before anything is computed from it alone."""
    return weight.to(torch.promote_types(weight.dtype, x.dtype))


def project(x: Tensor, weight: Tensor) -> Tensor:
    """x Wᵀ with one W for all heads, [out, in], or one per head, [heads, out, in].

    A plain product would copy a W per head for every batch item. With few rows, as in a decoding step (L = 1), that
    copy is most of the work; one product per head over the rows of all items avoids it.
    """
    weight = weight.to(x.dtype)
    if torch.compiler.is_compiling():  # branching on the length would add a guard on it
        return x @ weight.mT
    if weight.ndim < 3 or x.ndim < 4 or weight.shape[0] != x.shape[-3] or x.shape[:-3].numel() == 1:
        return x @ weight.mT
    if x.shape[-2] >= min(weight.shape[-2:]):  # copying W is cheaper than rearranging x
        return x @ weight.mT
    by_head = x.movedim(-3, 0)
    rows: Tensor = by_head.flatten(1, -2) @ weight.mT  # [H, items · L, out]
    out: Tensor = rows.unflatten(1, by_head.shape[1:-1])
    return out.movedim(0, -3)


def query_table(q: Tensor, r: Tensor, scale: float) -> Tensor:
    """scale · q_i·r for each query and relative position, [..., L, R].

    Scaling r is cheaper than scaling the table. On a GPU, half-precision products are fast only if rows of the result
    are a multiple of 16 bytes. R is odd, so r is padded with zeros there and their columns are dropped.
    """
    r = widen(r, q) * scale
    entries = r.shape[-2]
    if q.is_cuda and q.element_size() == 2:
        r = F.pad(r, (0, 0, 0, -entries % 8))
    table = project(q, r)
    return table if r.shape[-2] == entries else table[..., :entries]


def with_head_dim(weight: Tensor, dims: int) -> Tensor:
    """Give a parameter of ``dims`` dims per head its leading [1, H|1]."""
    return weight[None] if weight.ndim > dims else weight[None, None]


def positions(length: int, start: int | Tensor, device: torch.device) -> Tensor:
    """start + (0, 1, …): [L]; or [B, 1, L] for one start per batch item, [B], or one per vector, [B, L]."""
    index = torch.arange(length, device=device)
    if isinstance(start, Tensor) and start.ndim:
        return index + (start[:, None] if start.ndim > 1 else start[:, None, None]).to(device)
    return index + start


def distances(q: Tensor, keys: int, offset: int | Tensor) -> Tensor:
    """δ_ij = j − position(i), [L, S] or [B, 1, L, S]."""
    return torch.arange(keys, device=q.device) - positions(q.shape[-2], offset, q.device)[..., None]


def look_up(table: Tensor, distance: Tensor) -> Tensor:
    """table_i[clip(δ_ij)] for one table per query, [..., L, R]."""
    reach = table.shape[-1] // 2
    index = distance.clamp(-reach, reach) + reach
    return table.gather(-1, index.expand(*table.shape[:-1], index.shape[-1]))


def glorot_(weight: Tensor) -> None:
    bound = math.sqrt(6 / (weight.shape[-1] + weight.shape[-2]))
    nn.init.uniform_(weight, -bound, bound)
