"""The sizes of a call, the grid of its tiles, and checks of tensors against them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.mask.packed import Layout

WHOLE = (int, torch.SymInt)  # an int, or its symbol while a program is traced for any size
Bound = int | Tensor  # of a span: a position or an index, or a tensor with one per tile
Verdict = tuple[bool | Tensor, bool | Tensor]  # (empty, full): bools, or tensors that broadcast to [B, H, tiles, tiles]


@dataclass(frozen=True)
class Shape:
    """The sizes of a call, against which the tensors of a mask are checked."""

    batch: tuple[int, ...]
    heads: int
    queries: int
    keys: int
    device: torch.device
    key_positions: Tensor | None = None  # [B|1, S]; None: key j is at position j
    laid: Layout | None = None  # of packed documents, in which positions restart


@dataclass(frozen=True)
class Grid:
    """All tiles of a problem: rows × columns in blocks."""

    rows: Tensor  # [L] indices of the queries
    positions: Tensor  # [B|1, L]
    keys: int
    block_q: int
    block_k: int

    def query_range(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Smallest and largest of x [B|1, L] in each block of rows, [B|1, 1, blocks, 1]."""
        low, high = _block_range(x, self.block_q)
        return low[:, None, :, None], high[:, None, :, None]

    def key_range(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Smallest and largest of x [B|1, S] in each block of columns, [B|1, 1, 1, blocks]."""
        low, high = _block_range(x, self.block_k)
        return low[:, None, None, :], high[:, None, None, :]


def broadcasts(shape: Sequence[int], full: Sequence[int]) -> bool:
    """Does a tensor of this shape broadcast to the full one? (Symbolic sizes compare with ==, not with ``in``.)"""
    pairs = zip(reversed(shape), reversed(full), strict=False)
    return len(shape) <= len(full) and all(n == 1 or n == m for n, m in pairs)


def broadcast_pairs(name: str, x: Tensor, shape: Shape) -> Tensor:
    """Bring a tensor that broadcasts to [*batch, H, L, S] to [B|1, H|1, L|1, S|1]."""
    full = (*shape.batch, shape.heads, shape.queries, shape.keys)
    _check_device(name, x, shape)
    if not broadcasts(x.shape, full):
        raise ValueError(f"{name} must broadcast to [batch, heads, queries, keys] = {list(full)}, got {list(x.shape)}")
    x = x.reshape((1,) * (len(full) - x.ndim) + x.shape)
    if all(n == 1 for n in x.shape[:-3]):
        return x.reshape(1, *x.shape[-3:])
    return x.expand(*shape.batch, *x.shape[-3:]).reshape(math.prod(shape.batch), *x.shape[-3:])


def per_item(name: str, x: Tensor, shape: Shape) -> Tensor:
    """One number per batch item, or one for all: [B|1]."""
    x = x.to(shape.device)
    if x.numel() == 1:
        return x.reshape(1)
    if x.shape != shape.batch and x.shape != (math.prod(shape.batch),):
        raise ValueError(f"{name} takes one number per batch item, {list(shape.batch)}, got shape {list(x.shape)}")
    return x.reshape(math.prod(shape.batch))


def per_position(name: str, what: str, x: Tensor, shape: Shape, length: int) -> Tensor:
    """One number per query or key, per batch item or for all: [B|1, length]."""
    x = x.to(shape.device)
    if x.ndim == 0 or x.shape[-1] != length or (x.shape[:-1].numel() != 1 and x.shape[:-1] != shape.batch):
        expected = f"[{length}] or {[*shape.batch, length]}"
        raise ValueError(f"{name} must have one {what} per position, {expected}, got shape {list(x.shape)}")
    return x.reshape(math.prod(x.shape[:-1]), length)


def _check_device(name: str, x: Tensor, shape: Shape) -> None:
    if x.device != shape.device:
        raise ValueError(f"{name} is on {x.device}, but q, k and v are on {shape.device}")


def _block_range(x: Tensor, block: int) -> tuple[Tensor, Tensor]:
    padded = torch.cat((x, x[:, -1:].expand(-1, -x.shape[-1] % block)), -1)
    blocks = padded.unflatten(-1, (-1, block))
    return blocks.amin(-1), blocks.amax(-1)
