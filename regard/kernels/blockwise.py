"""Attention in tiles, for any score, any mask and any device: O(n) memory forward and backward.

Online softmax over key blocks (Milakov & Gimelshein 2018, https://arxiv.org/abs/1805.02867; Rabe & Staats 2021,
https://arxiv.org/abs/2112.05682); the backward pass recomputes each tile from the saved logsumexp (Dao et al. 2022,
https://arxiv.org/abs/2205.14135). Empty tiles of the mask are skipped, full tiles need no mask.

The tanh term needs no transcendental function per pair. With A = e^{2a}/2 and B = e^{2b}, once per query and per key,

    tanh(a + b) = 1 − u,   u = 1 / (1/2 + A·B),   1 − tanh² = u·(2 − u)

which is exact as long as e^{2a} and e^{2b} are normal numbers. Beyond that range, and on a GPU, where elementwise
operations are bound by memory, u is computed as 1 − tanh(a + b).

A score known by a dense formula alone is evaluated for a few queries at a time, for all items, heads and keys.

Tiles have the shape [b, k, G, l, s]: batch items, key/value heads, query heads of each, queries, keys. On a CPU they
fit into its cache and are processed in place: a pass over a tile costs a twentieth of its matrix product, so relative
positions, laid out by diagonals (``_skew``), are nearly free.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from regard.kernels import _dropout, _formula, operator
from regard.kernels._skew import Diagonals
from regard.mask.shape import Grid
from regard.score.terms import BiasTerm, DotTerm, FormulaTerm, KeyTerm, OffsetTerm, Problem, TanhTerm, Term, Terms

NAME = "blockwise"
TILE = 2**20  # numbers in the largest temporary
FORMULA = 2**22  # numbers of E per call of a formula
CACHED = 2**19  # numbers per thread of a tile that fits into a CPU's cache
RANGE = {torch.float32: 43.0, torch.float64: 350.0}  # |a|, |b| up to which the fraction form is exact


def refuses(problem: Problem) -> str | None:
    return operator.stays_out(problem)


def error_bound(problem: Problem) -> float:
    return 0.0


def run(problem: Problem) -> tuple[Tensor, Tensor]:
    return operator.run(NAME, problem)


def memory_bytes(problem: Problem) -> int:
    """Bytes beyond its inputs: the context, the logsumexp, exponentials and a few tiles."""
    size = torch.finfo(problem.compute_dtype).bits // 8
    rows = problem.batch * problem.heads * problem.queries
    hidden = sum(t.a.numel() + (0 if t.b is None else t.b.numel()) for t in problem.terms.tanhs)
    blocks = _block_sizes(problem)
    heads = (blocks.heads or problem.kv_heads) * (problem.heads // problem.kv_heads)
    tile_rows = blocks.batch * heads * blocks.q
    table = 0 if problem.terms.values is None else problem.terms.values.shape[-2]
    tiles = tile_rows * (4 * blocks.k * _width(problem) + table)
    return size * (rows * (problem.v.shape[-1] + 1) + hidden + tiles)


@dataclass(frozen=True)
class BlockTile:
    """One tile: slices of items, heads, queries and keys."""

    items: slice
    heads: slice  # of keys and values
    q: slice
    k: slice
    full: bool  # every pair is visible


@dataclass(frozen=True)
class Blocks:
    batch: int
    q: int
    k: int
    heads: int = 0  # of keys and values, 0 for all; with fewer than all, one batch item per tile


def _width(p: Problem) -> int:
    return max([t.a.shape[-1] for t in p.terms.tanhs], default=1)


def _block_sizes(p: Problem) -> Blocks:
    """Tiles as square as possible, with several batch items if they are small."""
    width = _width(p)
    if p.terms.formulas:
        rows = max(FORMULA // max(p.batch * p.heads * p.keys * width, 1), 1)
        return Blocks(max(p.batch, 1), min(rows, max(p.queries, 1)), max(p.keys, 1))
    if width == 1 and p.device.type == "cpu":
        return _cached_block_sizes(p)
    q, k = (64, 64) if width > 1 else (256, 512)
    q = min(q, max(p.queries, 1))
    k = min(max(k, TILE // (p.heads * width * q)) if q == 1 else k, max(p.keys, 1))
    while p.heads * q * k * width > TILE and max(q, k) > 16:
        q, k = (q // 2, k) if q > k else (q, k // 2)
    return Blocks(min(max(TILE // (p.heads * q * k * width), 1), max(p.batch, 1)), q, k)


def _cached_block_sizes(p: Problem) -> Blocks:
    """Tiles of some heads that fit into the cache and hold enough work for every thread."""
    group = p.heads // p.kv_heads
    q = min(max(256 // group, 16), max(p.queries, 1))
    k = min(max(2**17 // (group * q), 16), max(p.keys, 1))
    units = max(CACHED * torch.get_num_threads() // (group * q * k), 1)
    if units < p.kv_heads:
        return Blocks(1, q, k, units)
    return Blocks(min(max(units // p.kv_heads, 1), max(p.batch, 1)), q, k)


class Blockwise:
    """The kernel behind the operator."""

    wide_out = True

    def forward(self, p: Problem) -> tuple[Tensor, Tensor]:
        run = _TileRun(p)
        out = p.v.new_empty(p.batch, p.heads, p.queries, p.v.shape[-1], dtype=run.dtype)
        lse = p.v.new_empty(p.batch, p.heads, p.queries, dtype=run.dtype)
        out_by_head, lse_by_head = run.by_head(out), run.by_head(lse)
        for rows, tiles in run.rows():
            context, logsumexp = run.forward_rows(rows, tiles)
            out_by_head[rows.items, rows.heads, :, rows.q] = context
            lse_by_head[rows.items, rows.heads, :, rows.q] = logsumexp
        return out, lse

    def backward(self, p: Problem, out: Tensor, lse: Tensor, grad: Tensor) -> Problem:
        run = _TileRun(p)
        gradient = _Gradient(run)
        for rows, tiles in run.rows():
            gradient.add_rows(rows, tiles, out, lse, grad)
        return gradient.problem()


operator.OPERATOR_KERNELS[NAME] = Blockwise()


def scores(p: Problem) -> Tensor:
    """E of every pair, [B, H, L, S], −inf where masked, NaN where a row sees NaN or Inf; for a few queries."""
    run = _TileRun(p)
    e = torch.full((p.batch, p.heads, p.queries, p.keys), -torch.inf, dtype=run.dtype, device=p.device)
    by_head = run.by_head(e)
    for _, tiles in run.rows():
        for tile in tiles:
            by_head[tile.items, tile.heads, :, tile.q, tile.k] = run.scores(tile, poison=True)[0]
    return e


class _TileRun:
    """A problem prepared for tiles: heads split into [K, G], exponentials computed."""

    def __init__(self, p: Problem) -> None:
        self.p, self.dtype, self.blocks = p, p.compute_dtype, _block_sizes(p)
        self.index, self.positions = p.row_index(), p.positions()
        self.cols, self.key_positions = torch.arange(p.keys, device=p.device), p.positions_of_keys()
        self.exponentials = {id(t): self._exponentials(t) for t in p.terms.tanhs}
        self.buffers: dict[str, Tensor] = {}
        self.latest: dict[tuple[str, int], tuple[tuple[int, ...], Tensor]] = {}

    # --- tiles ---

    def rows(self) -> Iterator[tuple[BlockTile, list[BlockTile]]]:
        """Every block of queries, as a tile of all keys, with its tiles that are not empty."""
        p, blocks = self.p, self.blocks
        verdict = None
        if p.mask is not None and p.queries and p.keys:
            empty, full = p.mask.tiles(Grid(self.index, self.positions, p.keys, blocks.q, blocks.k))
            n_q, n_k = -(-p.queries // blocks.q), -(-p.keys // blocks.k)
            verdict = [torch.as_tensor(x).expand(p.batch, -1, n_q, n_k).all(1).cpu() for x in (empty, full)]
        every_head = blocks.heads == 0 or blocks.heads >= p.kv_heads
        for items in _slices(p.batch, blocks.batch if every_head else 1):
            skip, sure = ([], []) if verdict is None else (x[items].all(0).tolist() for x in verdict)
            for heads in _slices(p.kv_heads, p.kv_heads if every_head else blocks.heads):
                for i, q in enumerate(_slices(p.queries, blocks.q)):
                    row = BlockTile(items, heads, q, slice(0, p.keys), verdict is None)
                    yield (
                        row,
                        [
                            replace(row, k=k, full=verdict is None or sure[i][j])
                            for j, k in enumerate(_slices(p.keys, blocks.k))
                            if verdict is None or not skip[i][j]
                        ],
                    )

    def by_head(self, x: Tensor) -> Tensor:
        """[B|1, H|1, …] → [B|1, K|1, G|1, …]."""
        return x[:, :, None] if x.shape[1] == 1 else x.unflatten(1, (self.p.kv_heads, -1))

    def cut(self, x: Tensor, tile: BlockTile, length: slice | None = None, dim: int = -2) -> Tensor:
        """Slice [B|1, K|1, …] and one length dim where they are not broadcast, in the compute dtype."""
        return _cut(x, tile, length, dim).to(self.dtype)

    def shape(self, tile: BlockTile) -> tuple[int, ...]:
        return _len(tile.items), _len(tile.heads), self.p.heads // self.p.kv_heads, _len(tile.q), _len(tile.k)

    def room(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A buffer for a tile; the same name gets the same memory every time."""
        size = math.prod(shape)
        if name not in self.buffers or self.buffers[name].numel() < size:
            self.buffers[name] = torch.empty(size, dtype=self.dtype, device=self.p.device)
        return self.buffers[name][:size].view(shape)

    # Consecutive tiles share queries or heads, so the latest slices are kept.

    def queries(self, x: Tensor, tile: BlockTile) -> Tensor:
        """The tile's rows of [B, H, L, D], [b·k, G·l, D]."""
        where, key = (tile.items.start, tile.heads.start, tile.q.start), ("queries", id(x))
        if key not in self.latest or self.latest[key][0] != where:
            self.latest[key] = where, _rows(self.cut(self.by_head(x), tile, tile.q))
        return self.latest[key][1]

    def keys(self, x: Tensor | None, tile: BlockTile) -> Tensor:
        """The tile's keys of [B, K, S, D], [b·k, s, D]; a view if x has the compute dtype."""
        assert x is not None
        where, key = (tile.items.start, tile.heads.start), ("keys", id(x))
        if key not in self.latest or self.latest[key][0] != where:
            self.latest[key] = where, self.cut(x, tile).flatten(0, 1)
        return self.latest[key][1].narrow(1, tile.k.start, _len(tile.k))

    # --- scores of a tile ---

    def scores(self, tile: BlockTile, poison: bool = False) -> tuple[Tensor, Tensor | None]:
        """E of a tile, −inf where masked, NaN where poisoned; and the pair sum after the softcap, if there is one."""
        p = self.p
        e = self.room("scores", self.shape(tile))
        capped = None
        if p.terms.cap is None:
            self.add_pairs(e, tile, self.add_singles(e, tile, False))
        else:
            self.add_pairs(e, tile, False)
            capped = e.div_(p.terms.cap).tanh_().mul_(p.terms.cap).clone()
            self.add_singles(e, tile, True)
        if poison and p.bad_keys is not None:
            e.masked_fill_(_cut(p.bad_keys[:, :, None, None], tile, tile.k, -1), float("nan"))
        if poison and p.bad_rows is not None:
            e.masked_fill_(_cut(self.by_head(p.bad_rows)[..., None], tile, tile.q), float("nan"))
        if p.mask is not None and not tile.full:
            e.masked_fill_(~self.visible(tile), -torch.inf)
        return e, capped

    def visible(self, tile: BlockTile) -> Tensor:
        assert self.p.mask is not None
        mask = self.p.mask.for_items(tile.items)
        seen = self.by_head(mask.visible(self.index[tile.q], self.positions_of(tile), self.cols[tile.k]))
        return seen if seen.shape[1] == 1 else seen[:, tile.heads]

    def positions_of(self, tile: BlockTile) -> Tensor:
        """The positions of the tile's queries, [b|1, l]."""
        positions = self.positions if self.positions.shape[0] == 1 else self.positions[tile.items]
        return positions[:, tile.q]

    # ``started``: e has values, to which terms are added; otherwise the first term is written.

    def add_pairs(self, e: Tensor, tile: BlockTile, started: bool) -> None:
        for term in self.p.terms.pairs:
            if isinstance(term, DotTerm):
                assert not isinstance(term.scale, Tensor)
                q, k = self.queries(term.q, tile), self.keys(term.k, tile)
                _rows(e).baddbmm_(q, k.mT, beta=int(started), alpha=term.scale)
            else:
                w = self.cut(self.by_head(term.w), tile)
                _put(e, w.sum(-1)[..., None, None] - _weigh(self.one_minus_tanh(term, tile), w), started)
            started = True
        if not started:
            e.zero_()

    def add_singles(self, e: Tensor, tile: BlockTile, started: bool) -> bool:
        """Add all other terms; returns whether the tile has values now."""
        for term in self.p.terms.terms:
            if isinstance(term, BiasTerm):
                rows = _cut(self.by_head(term.bias), tile, tile.q)
                _put(e, rows if rows.shape[-1] == 1 else rows[..., tile.k], started)
            elif isinstance(term, KeyTerm):
                assert term.c is not None
                _put(e, self.cut(term.c, tile, tile.k).mT[:, :, None], started)
            elif isinstance(term, OffsetTerm):
                slope = None if term.slope is None else self.cut(self.by_head(term.slope), tile)
                self.add_offsets(e, self.cut(self.by_head(term.table), tile, tile.q), slope, tile, started)
            elif isinstance(term, FormulaTerm):
                rows = _formula.rows(term, tile.q if self.p.rows is None else self.p.rows[tile.q])
                _put(e, _cut(self.by_head(rows), tile)[..., tile.k], started)
            else:
                continue
            started = True
        return started

    # --- tanh ---

    def _exponentials(self, term: TanhTerm) -> tuple[Tensor, Tensor] | None:
        assert term.b is not None
        a, b = self.by_head(term.a).to(self.dtype), term.b[:, :, None].to(self.dtype)
        limit = RANGE[self.dtype]
        if a.device.type != "cpu" or not a.numel() or not b.numel():
            return None
        if max(a.abs().amax().item(), b.abs().amax().item()) > limit:
            return None
        return torch.exp(2 * a).mul_(0.5), torch.exp(2 * b)

    def one_minus_tanh(self, term: TanhTerm, tile: BlockTile) -> Tensor:
        """u = 1 − tanh(a_i + b_j), [b, K, G, l, s, D]."""
        exponentials = self.exponentials[id(term)]
        if exponentials is None:
            assert term.b is not None
            a = self.cut(self.by_head(term.a), tile, tile.q)
            b = self.cut(term.b[:, :, None], tile, tile.k)
            return torch.tanh_(a[..., :, None, :] + b[..., None, :, :]).neg_().add_(1)
        a, b = (self.cut(x, tile, s) for x, s in zip(exponentials, (tile.q, tile.k), strict=True))
        half = torch.full((), 0.5, dtype=self.dtype)
        return torch.addcmul(half, a[..., :, None, :], b[..., None, :, :]).reciprocal_()

    # --- relative positions ---

    def add_offsets(self, e: Tensor, table: Tensor, slope: Tensor | None, tile: BlockTile, started: bool) -> None:
        """table[i, entry(i, j)] − slope · beyond(i, j) for a table [b|1, k|1, G|1, l|1, R]."""
        diagonals, reach = self.diagonals(tile), table.shape[-1] // 2
        if diagonals is None:
            index = self.entries(reach, tile)
            shape = (max(table.shape[0], index.shape[0]), *table.shape[1:3], _len(tile.q))
            _put(e, table.expand(*shape, -1).gather(-1, index.expand(*shape, -1)), started)
            if slope is not None:
                e.sub_(slope[..., None, None] * self.beyond(reach, tile))
            return
        near = diagonals.near(reach) if slope is None else slice(0, e.shape[-1])
        _put(e[..., : near.start], table[..., :1], started)
        _put(e[..., near.stop :], table[..., -1:], started)
        if near.start < near.stop:
            part = diagonals.columns(near).look_up(table, slope, partial(self.room, "diagonals"))
            _put(e[..., near], part, started)

    def diagonals(self, tile: BlockTile) -> Diagonals | None:
        """The tile's relative positions, if they are known without reading a tensor."""
        if isinstance(self.p.offset, Tensor) or self.p.rows is not None or self.p.key_positions is not None:
            return None
        return Diagonals(tile.k.start - tile.q.start - self.p.offset, _len(tile.q), _len(tile.k))

    def delta(self, tile: BlockTile) -> Tensor:
        """position(j) − position(i), [b|1, l, s]."""
        keys = self.key_positions if self.key_positions.shape[0] == 1 else self.key_positions[tile.items]
        return keys[:, None, tile.k] - self.positions_of(tile)[..., None]

    def entries(self, reach: int, tile: BlockTile) -> Tensor:
        """Each pair's table entry, [b|1, 1, 1, l, s]."""
        return (self.delta(tile).clamp(-reach, reach) + reach)[:, None, None]

    def beyond(self, reach: int, tile: BlockTile) -> Tensor:
        """How far each pair lies outside the table, [b|1, 1, 1, l, s]."""
        return (self.delta(tile).abs() - reach).clamp(min=0)[:, None, None].to(self.dtype)

    def add_buckets(self, out: Tensor, x: Tensor, tile: BlockTile) -> None:
        """Add Σ_j x_ij per table entry to [b, k, G, l|1, R], over all i if that has one row: look-up transposed."""
        diagonals, size = self.diagonals(tile), out.shape[-1]
        if diagonals is None:
            by_row = x.new_zeros(*x.shape[:-1], size).scatter_add_(-1, self.entries(size // 2, tile).expand(x.shape), x)
            out += by_row if out.shape == by_row.shape else by_row.sum(3, keepdim=True)
            return
        near, one = diagonals.near(size // 2), out.shape[3] == 1
        if near.start < near.stop:
            spread = diagonals.columns(near).spread(x[..., near], partial(self.room, "diagonals"))
            diagonals.columns(near).fold(spread.sum(3, keepdim=True) if one else spread, out)
        for entry, far in ((0, x[..., : near.start]), (-1, x[..., near.stop :])):
            if far.shape[-1]:
                out[..., entry] += far.sum((3, 4))[..., None] if one else far.sum(-1)

    def slope_gradient(self, grad: Tensor, reach: int, tile: BlockTile) -> Tensor:
        """−Σ_ij g_ij · beyond(i, j), [b, k, G]."""
        diagonals = self.diagonals(tile)
        if diagonals is None:
            return -(grad * self.beyond(reach, tile)).sum((-1, -2))
        return -(diagonals.spread(grad, partial(self.room, "diagonals")).sum(-2) * diagonals.beyond(reach, grad)).sum(
            -1
        )

    # --- forward ---

    def dropout_factor(self, tile: BlockTile) -> Tensor | None:
        """1/(1 − p) where dropout keeps a pair, else 0."""
        p = self.p
        if p.dropout == 0:
            return None
        assert p.seed is not None
        seed = p.seed if p.seed.shape[0] == 1 else p.seed[tile.items]
        batch = torch.arange(tile.items.start, tile.items.stop, device=p.device)
        heads = _dropout.head_index(p.first_head, p.heads, p.device)
        heads = heads.view(p.kv_heads, -1)[tile.heads].flatten()
        keep = _dropout.keep(p.dropout, seed, batch, heads, self.index[tile.q], self.cols[tile.k])
        scaled: Tensor = keep.unflatten(1, (_len(tile.heads), -1)).to(self.dtype) / (1 - p.dropout)
        return scaled

    def forward_rows(self, rows: BlockTile, tiles: list[BlockTile]) -> tuple[Tensor, Tensor]:
        """Context and logsumexp of a block of queries, [b, k, G, l, Dv] and [b, k, G, l]."""
        p = self.p
        shape = self.shape(rows)[:-1]
        top, total = self._first(rows)
        context = p.v.new_zeros(*shape, p.v.shape[-1], dtype=self.dtype)
        table = None if p.terms.values is None else self.cut(self.by_head(p.terms.values), rows)
        distance = None if table is None else context.new_zeros(*shape, table.shape[-2])
        for tile in tiles:
            e, _ = self.scores(tile, poison=True)
            new = torch.maximum(top, e.amax(-1))
            safe = new.masked_fill(new == -torch.inf, 0.0)
            weights = _exp_(e.sub_(safe[..., None]))
            shrink = torch.exp(top - safe)
            total = total * shrink + weights.sum(-1)
            keep = self.dropout_factor(tile)
            weights = weights if keep is None else weights.mul_(keep)
            _rows(context.mul_(shrink[..., None])).baddbmm_(_rows(weights), self.keys(p.v, tile))
            if distance is not None:
                self.add_buckets(distance.mul_(shrink[..., None]), weights, tile)
            top = new
        if table is not None and distance is not None:
            context = context + distance @ table
        nothing = total == 0
        return context / total.masked_fill(nothing, 1.0)[..., None], top + total.log()

    def _first(self, rows: BlockTile) -> tuple[Tensor, Tensor]:
        """The initial state of the online softmax: the maximum and the sum, [b, k, G, l]."""
        shape = self.shape(rows)[:-1]
        if self.p.sink is None:
            top = torch.full(shape, -torch.inf, dtype=self.dtype, device=self.p.device)
            return top, torch.zeros_like(top)
        top = self.cut(self.by_head(self.p.sink), rows)[..., None].expand(shape)
        return top, torch.ones_like(top)


class _Gradient:
    """The gradients of every tensor of a problem, accumulated tile by tile."""

    def __init__(self, run: _TileRun) -> None:
        p = self.p = run.p
        self.run = run
        self.v = self._columns(p.v)
        self.values = None if p.terms.values is None else self._zeros(p.terms.values)
        self.sink = None if p.sink is None else self._zeros(p.sink)
        self.terms = tuple(self._zero_term(t) for t in p.terms.terms)

    def problem(self) -> Problem:
        terms = Terms(self.terms, self.p.terms.cap, self.values)
        return replace(self.p, terms=terms, v=self.v, sink=self.sink)

    def _zeros(self, x: Tensor | None) -> Tensor:
        assert x is not None
        return torch.zeros(x.shape, dtype=self.run.dtype, device=x.device)

    def _columns(self, x: Tensor | None) -> Tensor:
        """Zeros of that shape with contiguous columns: accumulating products with tiles is a quarter faster."""
        assert x is not None
        return self._zeros(x.mT).mT

    def _zero_term(self, t: Term) -> Term:
        if isinstance(t, DotTerm):
            return DotTerm(self._zeros(t.q), t.scale, self._columns(t.k))
        if isinstance(t, TanhTerm):
            return TanhTerm(self._zeros(t.a), self._zeros(t.w), self._zeros(t.b))
        if isinstance(t, OffsetTerm):
            return OffsetTerm(self._zeros(t.table), None if t.slope is None else self._zeros(t.slope))
        if isinstance(t, BiasTerm):
            return BiasTerm(self._zeros(t.bias))
        if isinstance(t, FormulaTerm):
            rest = tuple(self._zeros(x) for x in t.captured or ())
            return replace(t, q=self._zeros(t.q), k=self._zeros(t.k), captured=rest)
        return KeyTerm(self._zeros(t.c))

    def add(
        self, into: Tensor, part: Tensor, tile: BlockTile, length: slice | None = None, key_side: bool = False
    ) -> None:
        """Add a tile's part [b, k, G, …] to a gradient [B|1, H|1, …], summed over its broadcast dims."""
        into = into[:, :, None] if key_side else self.run.by_head(into)
        into = _cut(into, tile, length)
        broadcast = [d for d in range(part.ndim) if into.shape[d] == 1 and part.shape[d] != 1]
        into += part.sum(broadcast, keepdim=True) if broadcast else part

    def add_product(self, into: Tensor | None, x: Tensor, y: Tensor, tile: BlockTile, scale: float = 1.0) -> None:
        """Add scale · Σ_i x_ij y_id, over queries and heads of the group, to keys' gradients [B, K, S, D]."""
        self.run.keys(into, tile).mT.baddbmm_(y.mT, _rows(x), alpha=scale)

    def add_rows(self, rows: BlockTile, tiles: list[BlockTile], out: Tensor, lse: Tensor, grad: Tensor) -> None:
        p, run = self.p, self.run
        out, grad = (run.cut(run.by_head(x), rows, rows.q) for x in (out, grad))
        lse = run.cut(run.by_head(lse)[..., None], rows, rows.q)[..., 0]
        grad_rows = _rows(grad)
        delta = (out * grad).sum(-1)
        safe = lse.masked_fill(lse == -torch.inf, torch.inf)
        if p.bad_keys is not None:  # rows that are NaN have no gradient
            safe, delta = safe.masked_fill(lse.isnan(), torch.inf), delta.masked_fill(lse.isnan(), 0.0)
        table = None if p.terms.values is None else run.cut(run.by_head(p.terms.values), rows)
        by_distance = None if table is None else grad @ table.mT
        distance = None if by_distance is None else torch.zeros_like(by_distance)
        parts = self._row_parts(rows)
        for tile in tiles:
            e, capped = run.scores(tile)
            weights = _exp_(e.sub_(safe[..., None]))
            keep = run.dropout_factor(tile)
            dropped = weights if keep is None else weights * keep
            grad_e = run.room("gradient", run.shape(tile))
            torch.bmm(grad_rows, run.keys(p.v, tile).mT, out=_rows(grad_e))
            if by_distance is not None and distance is not None:
                run.add_offsets(grad_e, by_distance, None, tile, True)
                run.add_buckets(distance, dropped, tile)
            grad_e = grad_e if keep is None else grad_e.mul_(keep)
            grad_e.sub_(delta[..., None]).mul_(weights)
            self.add_product(self.v, dropped, grad_rows, tile)
            self._add_terms(tile, grad_e, capped, parts)
        for into, part in parts:
            self.add(into, part, rows, rows.q)
        if self.values is not None and distance is not None:
            self.add(self.values, distance.mT @ grad, rows)
        if self.sink is not None:
            assert p.sink is not None
            share = torch.exp(run.cut(run.by_head(p.sink), rows)[..., None] - safe)
            self.add(self.sink, -(share * delta).sum(-1), rows)

    def _row_parts(self, rows: BlockTile) -> list[tuple[Tensor, Tensor]]:
        """Pairs of a gradient and its part for a block of queries, to which all tiles of the block add."""
        shape, parts = self.run.shape(rows), []
        for into in self.terms:
            if isinstance(into, DotTerm):
                parts.append((into.q, into.q.new_zeros(*shape[:-1], into.q.shape[-1])))
            elif isinstance(into, OffsetTerm) and self.p.need_offset_gradient:
                lines = 1 if into.table.shape[-2] == 1 else shape[3]
                parts.append((into.table, into.table.new_zeros(*shape[:3], lines, into.table.shape[-1])))
        return parts

    def _add_terms(
        self, tile: BlockTile, grad: Tensor, capped: Tensor | None, row_parts: list[tuple[Tensor, Tensor]]
    ) -> None:
        p, run, parts = self.p, self.run, {id(into): part for into, part in row_parts}
        for term, into in zip(p.terms.terms, self.terms, strict=True):
            if isinstance(into, BiasTerm) and p.need_bias_gradient:
                self.add(into.bias if into.bias.shape[-1] == 1 else into.bias[..., tile.k], grad, tile, tile.q)
            elif isinstance(into, KeyTerm):
                assert into.c is not None
                self.add(into.c, grad.sum((2, 3))[:, :, None, :, None], tile, tile.k, key_side=True)
            elif isinstance(into, OffsetTerm) and p.need_offset_gradient:
                run.add_buckets(parts[id(into.table)], grad, tile)
                if into.slope is not None:
                    self.add(into.slope, run.slope_gradient(grad, into.reach, tile), tile)
            elif isinstance(term, FormulaTerm) and isinstance(into, FormulaTerm):
                self._add_formula(term, into, grad, tile)
        if capped is not None and p.terms.cap is not None:
            grad.mul_(1 - (capped / p.terms.cap) ** 2)
        for term, into in zip(p.terms.terms, self.terms, strict=True):
            if isinstance(term, DotTerm) and isinstance(into, DotTerm):
                assert not isinstance(term.scale, Tensor)
                _rows(parts[id(into.q)]).baddbmm_(_rows(grad), run.keys(term.k, tile), alpha=term.scale)
                self.add_product(into.k, grad, run.queries(term.q, tile), tile, term.scale)
            elif isinstance(term, TanhTerm) and isinstance(into, TanhTerm):
                self._add_tanh(term, into, grad, tile)

    def _add_formula(self, term: FormulaTerm, into: FormulaTerm, grad: Tensor, tile: BlockTile) -> None:
        assert into.k is not None and into.captured is not None and self.p.rows is None
        q, k, *rest = _formula.gradients(term, tile.q, grad.flatten(1, 2))
        for total, part in zip((into.q[:, :, tile.q], into.k, *into.captured), (q, k, *rest), strict=True):
            if part is not None:
                total += part

    def _add_tanh(self, term: TanhTerm, into: TanhTerm, grad: Tensor, tile: BlockTile) -> None:
        assert into.b is not None
        w = self.run.cut(self.run.by_head(term.w), tile)
        u = self.run.one_minus_tanh(term, tile)
        pairs = grad.flatten(3, 4)[..., None, :]
        self.add(into.w, grad.sum((-1, -2))[..., None] - (pairs @ u.flatten(3, 4)).squeeze(-2), tile)
        slope = u.mul_(2 - u).mul_(grad[..., None])  # g · (1 − tanh²)
        self.add(into.a, slope.sum(-2) * w[..., None, :], tile, tile.q)
        part = slope.sum(-3) * w[..., None, :]
        self.add(into.b, part.sum(2, keepdim=True), tile, tile.k, key_side=True)


def _slices(length: int, block: int) -> list[slice]:
    return [slice(i, min(i + block, length)) for i in range(0, length, block)]


def _len(s: slice) -> int:
    return int(s.stop - s.start)


def _cut(x: Tensor, tile: BlockTile, length: slice | None = None, dim: int = -2) -> Tensor:
    """The tile's items and heads of [B|1, K|1, …] and a slice of one more dim, where they are not broadcast."""
    x = x if x.shape[0] == 1 else x[tile.items]
    x = x if x.shape[1] == 1 else x[:, tile.heads]
    if length is not None and x.shape[dim] != 1:
        x = x.narrow(dim, length.start, _len(length))
    return x


def _rows(x: Tensor) -> Tensor:
    """[b, k, G, l, n] → [b·k, G·l, n]: a matrix per key/value head."""
    b, k, g, l, n = x.shape
    return x.reshape(b * k, g * l, n)


def _put(e: Tensor, part: Tensor, started: bool) -> None:
    """Add ``part`` to e if it has values, otherwise write it."""
    e.add_(part) if started else e.copy_(part)


def _exp_(x: Tensor) -> Tensor:
    """e^x in place. On a CPU 2^x takes a third of the time, and where e^x is tiny a fiftieth."""
    return x.mul_(math.log2(math.e)).exp2_()


def _weigh(u: Tensor, w: Tensor) -> Tensor:
    """Σ_d u[b, K, G, l, s, d] · w[b|1, K|1, G|1, d]."""
    if w.numel() == w.shape[-1]:
        return u.matmul(w.flatten())
    return (u.flatten(3, 4) @ w[..., None]).view(u.shape[:-1])
