"""Dot products on a CPU under any mask, in O(n) memory: PyTorch's fused kernel, a block of queries at a time.

PyTorch's CPU attention (FlashAttention-2, Dao 2023, https://arxiv.org/abs/2307.08691) knows one mask by itself, the
causal one. Any other is a dense tensor, of which it computes every pair. Here each block of queries goes to it with the
keys that it may see and no others: a window costs its width, packed documents cost their own lengths. The dense mask of
one block is the largest temporary. The logsumexp comes with it, and with that a sink: an extra key of value 0 scales a
row of the context by Σ exp e / (Σ exp e + exp sink).

Shapes: B batch, H query heads, K key/value heads (H = K·G), L queries, S keys, D dims; l and s of a block. The G query
heads of a key/value head are rows of one matrix, [B, K, G·l, D].
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard.kernels import _guard as guard
from regard.kernels import operator
from regard.mask.shape import Grid
from regard.score.terms import DotTerm, Problem, Terms

NAME = "cpu_dot"
QUERIES, KEYS = 128, 128  # of a tile that the mask may call empty or full
WHOLE = 2**17  # pairs of a head up to which one block has them all: looking for empty tiles would take longer
APART = 2**18  # pairs of an item from which items that see different keys go one by one
ROOM = 2**22  # numbers in the mask of a block


def refuses(problem: Problem) -> str | None:
    p = problem
    if p.device.type != "cpu":
        return f"it runs on a CPU, not on {p.device.type}"
    if len(p.terms.terms) != 1 or not isinstance(p.terms.terms[0], DotTerm):
        return "it computes one dot product and nothing else"
    if p.terms.cap is not None:
        return "it has no softcap"
    if p.terms.values is not None:
        return "it has no relative-position term for the values"
    if p.dropout > 0:
        return "its dropout is not a function of (seed, batch, head, i, j)"
    if p.rows is not None:
        return "it computes whole sequences, not a selection of rows"
    if not p.batch or not p.queries or not p.keys or not p.v.shape[-1]:
        return "the problem is empty"
    return operator.stays_out(p)


def memory_bytes(problem: Problem) -> int:
    """What it needs beyond its inputs: the context, the logsumexp, and the mask of a block as bool and as float."""
    p = problem
    rows, size = p.batch * p.heads * p.queries, p.v.element_size()
    return rows * (p.v.shape[-1] * size + 4) + _mask_numbers(p) * (1 + size)


def _mask_numbers(p: Problem) -> int:
    """Of the mask of a block."""
    if p.mask is None:
        return 0
    items, heads = (n if dim in p.mask.varies else 1 for dim, n in (("B", p.batch), ("H", p.heads)))
    if p.queries * p.keys <= WHOLE:
        return items * heads * p.queries * p.keys
    one = heads * min(QUERIES, p.queries) * p.keys
    return max(one, min(items * one, ROOM))


def error_bound(problem: Problem) -> float:
    return 0.0


def run(problem: Problem) -> tuple[Tensor, Tensor]:
    return operator.run(NAME, problem)


@dataclass(frozen=True)
class Block:
    """Some queries of some items with the keys they may see; no others are computed."""

    items: slice
    q: slice
    cols: slice | Tensor  # indices of the keys
    full: bool  # every query of it sees all of these keys


class CpuDot:
    """The kernel behind the operator."""

    wide_out = False

    def forward(self, p: Problem) -> tuple[Tensor, Tensor]:
        run = _Rows(p)
        out = torch.zeros(p.batch, p.heads, p.queries, run.dims, dtype=p.dtype)
        lse = torch.full((p.batch, p.heads, p.queries), -torch.inf, dtype=p.compute_dtype)
        for block in run.blocks():
            context, logsumexp = run.forward(block)
            out[block.items, :, block.q], lse[block.items, :, block.q] = context, logsumexp
        out = out[..., : p.v.shape[-1]]
        if p.mask is None:
            out, lse = _spoil_lost(out, lse, run.q, run.k)
        if p.sink is None:
            return out, lse
        whole = torch.logaddexp(lse, p.sink[..., None].to(lse.dtype))
        return out * _share(lse, whole)[..., None].to(out.dtype), whole

    def backward(self, p: Problem, out: Tensor, lse: Tensor, grad: Tensor) -> Problem:
        run, dims = _Rows(p), p.v.shape[-1]
        lost = lse == -torch.inf
        if p.bad_keys is not None:  # rows that are NaN have no gradient either
            lost |= lse.isnan()
        out, grad = (x.masked_fill(lost[..., None], 0.0).to(p.dtype) for x in (out, grad))
        safe = lse.masked_fill(lost, torch.inf)
        padded = _lay_out(out, run.dims), _lay_out(grad, run.dims)
        dq, dk, dv = (torch.zeros_like(x) for x in (run.q, run.k, run.v))
        for block in run.blocks():
            q, k, v = run.backward(block, *padded, safe)
            dq[block.items, :, block.q] = q
            for total, part in ((dk, k), (dv, v)):
                _add(total[block.items], block.cols, part)
        (dot,) = p.terms.dots
        assert dot.k is not None
        terms = Terms((DotTerm(dq[..., : dot.q.shape[-1]], dot.scale, dk[..., : dot.k.shape[-1]]),))
        sink = None
        if p.sink is not None:
            delta = (out * grad).sum(-1, dtype=lse.dtype)
            sink = -operator.sum_to(_share(p.sink[..., None], safe).mul(delta).sum(-1), p.sink.shape)
        return replace(p, terms=terms, v=dv[..., :dims], sink=sink)


operator.OPERATOR_KERNELS[NAME] = CpuDot()


class _Rows:
    """A problem made ready for PyTorch's kernel: equal dims, and the mask's verdict on each tile."""

    def __init__(self, p: Problem) -> None:
        (dot,) = p.terms.dots
        assert dot.k is not None and isinstance(dot.scale, float)
        self.p, self.scale = p, dot.scale
        self.dims = max(dot.q.shape[-1], p.v.shape[-1])
        self.q, self.k, self.v = (_lay_out(x, self.dims) for x in (dot.q, dot.k, p.v))
        self.index, self.cols = p.row_index(), torch.arange(p.keys)
        self.positions = p.positions()

    def blocks(self) -> Iterator[Block]:
        p = self.p
        every, keys = slice(0, p.batch), slice(0, p.keys)
        if p.mask is None:
            yield Block(every, slice(0, p.queries), keys, True)
            return
        if p.queries * p.keys <= WHOLE:
            yield Block(every, slice(0, p.queries), keys, False)
            return
        verdict = p.mask.tiles(Grid(self.index, self.positions, p.keys, QUERIES, KEYS))
        n_q, n_k = -(-p.queries // QUERIES), -(-p.keys // KEYS)
        empty, full = (x.expand(x.shape[0], -1, n_q, n_k).all(1) for x in map(_four_dims, verdict))
        apart = max(empty.shape[0], full.shape[0]) > 1 and p.queries * p.keys >= APART
        fit = ROOM // (QUERIES * p.keys * (p.heads if "H" in p.mask.varies else 1)) if "B" in p.mask.varies else p.batch
        step = 1 if apart else max(min(fit, p.batch), 1)
        for items in [slice(i, min(i + step, p.batch)) for i in range(0, p.batch, step)]:
            some = [(x if x.shape[0] == 1 else x[items]).all(0).tolist() for x in (empty, full)]
            for i, (skip, sure) in enumerate(zip(*some, strict=True)):
                seen = [j for j in range(n_k) if not skip[j]]
                if seen:
                    q = slice(i * QUERIES, min((i + 1) * QUERIES, p.queries))
                    yield Block(items, q, self._keys(seen), all(sure[j] for j in seen))

    def _keys(self, tiles: list[int]) -> slice | Tensor:
        """The keys of these tiles: a slice if they lie side by side."""
        if tiles[-1] - tiles[0] + 1 == len(tiles):
            return slice(tiles[0] * KEYS, min((tiles[-1] + 1) * KEYS, self.p.keys))
        return torch.cat([self.cols[j * KEYS : (j + 1) * KEYS] for j in tiles])

    def forward(self, block: Block) -> tuple[Tensor, Tensor]:
        """Context [b, H, l, D] and logsumexp [b, H, l]; 0 and −inf where nothing is seen, NaN where NaN is."""
        q, k, v = self._tensors(block)
        seen = None if block.full else self._visible(block)
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, False, attn_mask=self._bias(seen), scale=self.scale
        )
        out, lse = self._apart(out, block), self._apart(lse[..., None], block)[..., 0]
        if seen is not None:
            nothing = lse == 0  # what PyTorch has for a row without keys
            if nothing.any():
                lse = lse.masked_fill(nothing & ~seen.any(-1), -torch.inf)
        if self.p.bad_keys is not None:
            bad = self._bad_rows(block, seen)
            out, lse = out.masked_fill(bad[..., None], torch.nan), lse.masked_fill(bad, torch.nan)
        return out, lse

    def backward(self, block: Block, out: Tensor, grad: Tensor, lse: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of a block's queries, keys and values."""
        out, grad, lse = (self._together(x[block.items, :, block.q]) for x in (out, grad, lse[..., None]))
        bias = None if block.full else self._bias(self._visible(block))
        dq, dk, dv = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad, *self._tensors(block), out, lse[..., 0], 0.0, False, attn_mask=bias, scale=self.scale
        )
        return self._apart(dq, block), dk, dv

    def _tensors(self, block: Block) -> tuple[Tensor, Tensor, Tensor]:
        k, v = (x[block.items, :, block.cols] for x in (self.k, self.v))
        return self._together(self.q[block.items, :, block.q]), k, v

    def _visible(self, block: Block) -> Tensor:
        """[b|1, H|1, l, s]"""
        assert self.p.mask is not None
        positions = self.positions if self.positions.shape[0] == 1 else self.positions[block.items]
        mask = self.p.mask if block.items == slice(0, self.p.batch) else self.p.mask.for_items(block.items)
        rows, cols = self.index[block.q], self.cols[block.cols]
        return mask.visible(rows, positions[:, block.q], cols).expand(-1, -1, len(rows), len(cols))

    def _bias(self, seen: Tensor | None) -> Tensor | None:
        """0 where a key is seen, −inf elsewhere, [b|1, K|1, G·l, s]."""
        if seen is None:
            return None
        bias = torch.zeros(seen.shape, dtype=self.q.dtype).masked_fill_(~seen, -torch.inf)
        group = self.p.heads // self.p.kv_heads
        if group > 1 and bias.shape[1] == 1:
            bias = bias.repeat(1, 1, group, 1)
        return self._together(bias) if bias.shape[1] > 1 else bias

    def _bad_rows(self, block: Block, seen: Tensor | None) -> Tensor:
        """Rows that see something not finite, or are not finite and see anything, [b, H, l]."""
        p = self.p
        assert p.bad_keys is not None and p.bad_rows is not None
        keys = p.bad_keys[block.items, :, block.cols].repeat_interleave(p.heads // p.kv_heads, 1)
        rows = p.bad_rows[block.items, :, block.q]
        if seen is None:
            return keys.any(-1, keepdim=True) | rows
        return (seen & keys[..., None, :]).any(-1) | (rows & seen.any(-1))

    def _together(self, x: Tensor) -> Tensor:
        """[b, K·G, l, n] → [b, K, G·l, n]"""
        return x if self.p.heads == self.p.kv_heads else x.unflatten(1, (self.p.kv_heads, -1)).flatten(2, 3)

    def _apart(self, x: Tensor, block: Block) -> Tensor:
        """[b, K, G·l, n] → [b, K·G, l, n]"""
        length = block.q.stop - block.q.start
        return x if self.p.heads == self.p.kv_heads else x.unflatten(2, (-1, length)).flatten(1, 2)


def _four_dims(x: bool | Tensor) -> Tensor:
    x = torch.as_tensor(x)
    return x.reshape((1,) * (4 - x.ndim) + x.shape)


def _lay_out(x: Tensor, dims: int) -> Tensor:
    """Rows of ``dims`` numbers side by side, as PyTorch's kernel reads them; zeros at the end change nothing."""
    if x.shape[-1] != dims:
        return torch.nn.functional.pad(x, (0, dims - x.shape[-1]))
    return x if x.stride(-1) == 1 else x.contiguous()


def _add(total: Tensor, cols: slice | Tensor, part: Tensor) -> None:
    if isinstance(cols, slice):
        total[:, :, cols] += part
    else:
        total.index_add_(2, cols, part)


def _share(part: Tensor, whole: Tensor) -> Tensor:
    """exp(part − whole), 0 where both are −inf."""
    return (part - whole.masked_fill(whole == -torch.inf, 0.0)).exp()


def _spoil_lost(out: Tensor, lse: Tensor, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """NaN in rows whose scores are all NaN: PyTorch's kernel gives them 0."""
    spoiled = guard.restore_nan(out, q, k)
    return (out, lse) if spoiled is out else (spoiled, lse.masked_fill(spoiled.isnan().any(-1), torch.nan))
