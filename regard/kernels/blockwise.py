"""Attention in tiles, for any score, any mask and any device: O(n) memory forward and backward.

Online softmax over key blocks (Milakov & Gimelshein 2018, https://arxiv.org/abs/1805.02867; Rabe & Staats 2021,
https://arxiv.org/abs/2112.05682); the backward pass recomputes each tile from the saved logsumexp (Dao et al. 2022,
https://arxiv.org/abs/2205.14135). Tiles the mask calls empty are skipped, tiles it calls full are not masked.

The tanh term has no transcendental per pair. With A = e^{2a}/2 and B = e^{2b}, computed once per query and per key,

    tanh(a + b) = 1 − u,   u = 1 / (1/2 + A·B),   1 − tanh² = u·(2 − u)

which is exact while |a|, |b| stay where e^{2x} is a normal number; beyond that (and on a GPU, where elementwise
operations cost their memory traffic and nothing else) u is 1 − tanh(a + b) itself.

Tiles have the shape [b, K, G, l, s]: batch items, key/value heads, query heads of each, queries, keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard.kernels import _dropout, _op
from regard.mask import Grid
from regard.terms import BiasTerm, DotTerm, KeyTerm, OffsetTerm, Problem, TanhTerm, Term, Terms

NAME = "blockwise"
TILE = 2**20  # numbers in the largest temporary
RANGE = {torch.float32: 43.0, torch.float64: 350.0}  # |a|, |b| up to which the fraction form is exact


def refuses(problem: Problem) -> str | None:
    return None


def error_bound(problem: Problem) -> float:
    return 0.0


def run(problem: Problem) -> tuple[Tensor, Tensor]:
    return _op.run(NAME, problem)


def memory_bytes(problem: Problem) -> int:
    """What it needs beyond its inputs: the context, the logsumexp, exponentials and a few tiles."""
    size = torch.finfo(problem.compute_dtype).bits // 8
    rows = problem.batch * problem.heads * problem.queries
    hidden = sum(t.a.numel() + (0 if t.b is None else t.b.numel()) for t in problem.terms.tanhs)
    blocks = _block_sizes(problem)
    tile = blocks.batch * problem.heads * blocks.q * blocks.k * _width(problem)
    table = 0 if problem.terms.values is None else problem.terms.values.shape[-2]
    return size * (
        rows * (problem.v.shape[-1] + 1) + hidden + 4 * tile + blocks.batch * problem.heads * blocks.q * table
    )


@dataclass(frozen=True)
class Tile:
    """One tile: where it lies, and what its queries and keys are."""

    items: slice
    q: slice
    k: slice
    full: bool  # the mask shows every pair of it


@dataclass(frozen=True)
class Blocks:
    batch: int
    q: int
    k: int


def _width(p: Problem) -> int:
    return max([t.a.shape[-1] for t in p.terms.tanhs], default=1)


def _block_sizes(p: Problem) -> Blocks:
    """Tiles as square as fits, several batch items at once if they are small."""
    width = _width(p)
    q, k = (64, 64) if width > 1 else (256, 512)
    q = min(q, max(p.queries, 1))
    k = min(max(k, TILE // (p.heads * width * q)) if q == 1 else k, max(p.keys, 1))
    while p.heads * q * k * width > TILE and max(q, k) > 16:
        q, k = (q // 2, k) if q > k else (q, k // 2)
    return Blocks(min(max(TILE // (p.heads * q * k * width), 1), max(p.batch, 1)), q, k)


class Blockwise:
    """The kernel behind the operator."""

    wide_out = True

    def forward(self, p: Problem) -> tuple[Tensor, Tensor]:
        run = _Run(p)
        out = p.v.new_empty(p.batch, p.heads, p.queries, p.v.shape[-1], dtype=run.dtype)
        lse = p.v.new_empty(p.batch, p.heads, p.queries, dtype=run.dtype)
        for items, q, tiles in run.rows():
            context, logsumexp = run.forward_rows(items, q, tiles)
            out[items, :, q] = context.flatten(1, 2)
            lse[items, :, q] = logsumexp.flatten(1, 2)
        return out, lse

    def backward(self, p: Problem, out: Tensor, lse: Tensor, grad: Tensor) -> Problem:
        run = _Run(p)
        gradient = _Gradient(run)
        for items, q, tiles in run.rows():
            gradient.add_rows(items, q, tiles, out, lse, grad)
        return gradient.problem()


_op.KERNELS[NAME] = Blockwise()


class _Run:
    """A problem made ready for tiles: heads split into [K, G], exponentials taken."""

    def __init__(self, p: Problem) -> None:
        self.p, self.dtype, self.blocks = p, p.compute_dtype, _block_sizes(p)
        self.index, self.positions = p.row_index(), p.positions()
        self.cols = torch.arange(p.keys, device=p.device)
        self.exponentials = {id(t): self._exponentials(t) for t in p.terms.tanhs}

    # --- tiles ---

    def rows(self) -> Iterator[tuple[slice, slice, list[Tile]]]:
        """Every block of queries with the tiles it must look at."""
        p, blocks = self.p, self.blocks
        verdict = None
        if p.mask is not None and p.queries and p.keys:
            empty, full = p.mask.tiles(Grid(self.index, self.positions, p.keys, blocks.q, blocks.k))
            n_q, n_k = -(-p.queries // blocks.q), -(-p.keys // blocks.k)
            verdict = [x.expand(p.batch, -1, n_q, n_k).all(1).cpu() for x in (empty, full)]
        for b in range(0, p.batch, blocks.batch):
            items = slice(b, min(b + blocks.batch, p.batch))
            skip, sure = ([], []) if verdict is None else (x[items].all(0).tolist() for x in verdict)
            for i, q in enumerate(_slices(p.queries, blocks.q)):
                yield (
                    items,
                    q,
                    [
                        Tile(items, q, k, verdict is None or sure[i][j])
                        for j, k in enumerate(_slices(p.keys, blocks.k))
                        if verdict is None or not skip[i][j]
                    ],
                )

    def by_head(self, x: Tensor) -> Tensor:
        """[B|1, H|1, …] → [B|1, K|1, G|1, …]."""
        return x[:, :, None] if x.shape[1] == 1 else x.unflatten(1, (self.p.kv_heads, -1))

    def cut(self, x: Tensor, items: slice, length: slice | None = None, dim: int = -2) -> Tensor:
        """Slice batch and one length dim where they are not broadcast, in the type computed in."""
        x = x if x.shape[0] == 1 else x[items]
        if length is not None and x.shape[dim] != 1:
            x = x.narrow(dim, length.start, length.stop - length.start)
        return x.to(self.dtype)

    # --- scores of a tile ---

    def scores(self, tile: Tile, poison: bool = False) -> tuple[Tensor, Tensor | None]:
        """E of a tile, −inf (and NaN) where they belong; and the pair sum after the cap, if there is one."""
        p = self.p
        shape = (tile.items.stop - tile.items.start, p.kv_heads, p.heads // p.kv_heads, _len(tile.q), _len(tile.k))
        e = torch.zeros((), dtype=self.dtype, device=p.device).expand(shape)
        for term in p.terms.pairs:
            e = e + self.pair(term, tile)
        capped = None
        if p.terms.cap is not None:
            capped = e = p.terms.cap * torch.tanh(e / p.terms.cap)
        for other in p.terms.terms:
            if not isinstance(other, (DotTerm, TanhTerm)):
                e = e + self.single(other, tile)
        if poison and p.bad_keys is not None:
            e = e.masked_fill(p.bad_keys[tile.items, :, None, None, tile.k], float("nan"))
        if poison and p.bad_rows is not None:
            e = e.masked_fill(self.by_head(p.bad_rows[tile.items, :, tile.q])[..., None], float("nan"))
        if p.mask is not None and not tile.full:
            e = e.masked_fill(~self.visible(tile), -torch.inf)
        return e, capped

    def visible(self, tile: Tile) -> Tensor:
        assert self.p.mask is not None
        mask = self.p.mask.for_items(tile.items)
        seen = mask.visible(self.index[tile.q], self.positions_of(tile), self.cols[tile.k])
        return self.by_head(seen)

    def positions_of(self, tile: Tile) -> Tensor:
        """The positions of the tile's queries, [b|1, l]."""
        positions = self.positions if self.positions.shape[0] == 1 else self.positions[tile.items]
        return positions[:, tile.q]

    def pair(self, term: Term, tile: Tile) -> Tensor:
        if isinstance(term, DotTerm):
            assert term.k is not None and not isinstance(term.scale, Tensor)
            q = self.cut(self.by_head(term.q), tile.items, tile.q) * term.scale
            return _product(q, self.cut(term.k, tile.items, tile.k).mT)
        assert isinstance(term, TanhTerm)
        w = self.cut(self.by_head(term.w), tile.items)
        return w.sum(-1)[..., None, None] - _weigh(self.one_minus_tanh(term, tile), w)

    def single(self, term: Term, tile: Tile) -> Tensor:
        if isinstance(term, BiasTerm):
            return self.cut(self.cut(self.by_head(term.bias), tile.items, tile.q), slice(None), tile.k, -1)
        if isinstance(term, KeyTerm):
            assert term.c is not None
            return self.cut(term.c, tile.items, tile.k).mT[:, :, None]
        assert isinstance(term, OffsetTerm)
        table = self.cut(self.by_head(term.table), tile.items, tile.q)
        e = self.look_up(table, tile)
        if term.slope is not None:
            e = e - self.cut(self.by_head(term.slope), tile.items)[..., None, None] * self.beyond(term, tile)
        return e

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

    def one_minus_tanh(self, term: TanhTerm, tile: Tile) -> Tensor:
        """u = 1 − tanh(a_i + b_j), [b, K, G, l, s, D]."""
        exponentials = self.exponentials[id(term)]
        if exponentials is None:
            assert term.b is not None
            a = self.cut(self.by_head(term.a), tile.items, tile.q)
            b = self.cut(term.b[:, :, None], tile.items, tile.k)
            return torch.tanh_(a[..., :, None, :] + b[..., None, :, :]).neg_().add_(1)
        a, b = (self.cut(x, tile.items, s) for x, s in zip(exponentials, (tile.q, tile.k), strict=True))
        half = torch.full((), 0.5, dtype=self.dtype)
        return torch.addcmul(half, a[..., :, None, :], b[..., None, :, :]).reciprocal_()

    # --- relative positions ---

    def delta(self, tile: Tile) -> Tensor:
        """j − position(i), [b|1, l, s]."""
        return self.cols[tile.k] - self.positions_of(tile)[..., None]

    def constant(self, reach: int, tile: Tile) -> int | None:
        """The one table entry that the whole tile uses, if it is known without looking to be one."""
        if isinstance(self.p.offset, Tensor) or self.p.rows is not None:
            return None
        if tile.k.stop - 1 - (tile.q.start + self.p.offset) <= -reach:
            return 0
        if tile.k.start - (tile.q.stop - 1 + self.p.offset) >= reach:
            return 2 * reach
        return None

    def entries(self, reach: int, tile: Tile) -> Tensor:
        """Each pair's table entry, [b|1, 1, 1, l, s]."""
        return (self.delta(tile).clamp(-reach, reach) + reach)[:, None, None]

    def beyond(self, term: OffsetTerm, tile: Tile) -> Tensor:
        """How far each pair lies outside the table, [b|1, 1, 1, l, s]."""
        return (self.delta(tile).abs() - term.reach).clamp(min=0)[:, None, None].to(self.dtype)

    def look_up(self, table: Tensor, tile: Tile) -> Tensor:
        """table[i, entry(i, j)] for a table [b|1, K|1, G|1, l|1, R]."""
        reach = table.shape[-1] // 2
        entry = self.constant(reach, tile)
        if entry is not None:
            return table[..., entry : entry + 1]
        index = self.entries(reach, tile)
        if table.shape[-2] == 1 and index.shape[0] == 1:
            return table[..., 0, :][..., index[0, 0, 0]]
        shape = (max(table.shape[0], index.shape[0]), *table.shape[1:3], _len(tile.q))
        return table.expand(*shape, -1).gather(-1, index.expand(*shape, -1))

    def bucket(self, x: Tensor, size: int, tile: Tile) -> Tensor:
        """Σ_j x_ij by table entry, [b, K, G, l, R]: the transpose of look_up."""
        out = x.new_zeros(*x.shape[:-1], size)
        entry = self.constant(size // 2, tile)
        if entry is not None:
            out[..., entry] = x.sum(-1)
            return out
        return out.scatter_add_(-1, self.entries(size // 2, tile).expand(x.shape), x)

    # --- forward ---

    def kept(self, tile: Tile) -> Tensor | None:
        """1/(1 − p) where dropout keeps a pair, else 0."""
        p = self.p
        if p.dropout == 0:
            return None
        assert p.seed is not None
        seed = p.seed if p.seed.shape[0] == 1 else p.seed[tile.items]
        batch = torch.arange(tile.items.start, tile.items.stop, device=p.device)
        heads = _dropout.head_index(p.first_head, p.heads, p.device)
        keep = _dropout.keep(p.dropout, seed, batch, heads, self.index[tile.q], self.cols[tile.k])
        return self.by_head(keep).to(self.dtype) / (1 - p.dropout)

    def forward_rows(self, items: slice, q: slice, tiles: list[Tile]) -> tuple[Tensor, Tensor]:
        """Context and logsumexp of a block of queries, [b, K, G, l, Dv] and [b, K, G, l]."""
        p = self.p
        shape = (_len(items), p.kv_heads, p.heads // p.kv_heads, _len(q))
        top, total = self._start(shape)
        context = p.v.new_zeros(*shape, p.v.shape[-1], dtype=self.dtype)
        table = None if p.terms.values is None else self.cut(self.by_head(p.terms.values), items)
        distance = None if table is None else context.new_zeros(*shape, table.shape[-2])
        for tile in tiles:
            e, _ = self.scores(tile, poison=True)
            new = torch.maximum(top, e.amax(-1))
            safe = new.masked_fill(new == -torch.inf, 0.0)
            weights = torch.exp(e - safe[..., None])
            shrink = torch.exp(top - safe)
            total = total * shrink + weights.sum(-1)
            keep = self.kept(tile)
            weights = weights if keep is None else weights * keep
            context = context.mul_(shrink[..., None]).add_(_product(weights, self.cut(p.v, items, tile.k)))
            if distance is not None:
                distance = distance.mul_(shrink[..., None]).add_(self.bucket(weights, distance.shape[-1], tile))
            top = new
        if table is not None and distance is not None:
            context = context + distance @ table
        nothing = total == 0
        return context / total.masked_fill(nothing, 1.0)[..., None], top + total.log()

    def _start(self, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        if self.p.sink is None:
            top = torch.full(shape, -torch.inf, dtype=self.dtype, device=self.p.device)
            return top, torch.zeros_like(top)
        top = self.by_head(self.p.sink)[..., None].to(self.dtype).expand(shape)
        return top, torch.ones_like(top)


class _Gradient:
    """The gradients of every tensor of a problem, added up tile by tile."""

    def __init__(self, run: _Run) -> None:
        p = self.p = run.p
        self.run = run
        self.v = self._zeros(p.v)
        self.values = None if p.terms.values is None else self._zeros(p.terms.values)
        self.sink = None if p.sink is None else self._zeros(p.sink)
        self.terms = tuple(self._zero_term(t) for t in p.terms.terms)

    def problem(self) -> Problem:
        terms = Terms(self.terms, self.p.terms.cap, self.values)
        return replace(self.p, terms=terms, v=self.v, sink=self.sink)

    def _zeros(self, x: Tensor | None) -> Tensor:
        assert x is not None
        return torch.zeros(x.shape, dtype=self.run.dtype, device=x.device)

    def _zero_term(self, t: Term) -> Term:
        if isinstance(t, DotTerm):
            return DotTerm(self._zeros(t.q), t.scale, self._zeros(t.k))
        if isinstance(t, TanhTerm):
            return TanhTerm(self._zeros(t.a), self._zeros(t.w), self._zeros(t.b))
        if isinstance(t, OffsetTerm):
            return OffsetTerm(self._zeros(t.table), None if t.slope is None else self._zeros(t.slope))
        if isinstance(t, BiasTerm):
            return BiasTerm(self._zeros(t.bias))
        return KeyTerm(self._zeros(t.c))

    def add(
        self,
        into: Tensor,
        part: Tensor,
        items: slice,
        length: slice | None = None,
        dim: int = -2,
        key_side: bool = False,
    ) -> None:
        """Add a tile's part [b, K, G, …] to a gradient [B|1, H|1, …], summed where that is broadcast."""
        into = into if into.shape[0] == 1 else into[items]
        into = into[:, :, None] if key_side else self.run.by_head(into)
        if length is not None and into.shape[dim] != 1:
            into = into.narrow(dim, length.start, _len(length))
        broadcast = [d for d in range(part.ndim) if into.shape[d] == 1 and part.shape[d] != 1]
        into += part.sum(broadcast, keepdim=True) if broadcast else part

    def add_rows(self, items: slice, q: slice, tiles: list[Tile], out: Tensor, lse: Tensor, grad: Tensor) -> None:
        p, run = self.p, self.run
        out, grad, lse = (run.by_head(x[items, :, q]).to(run.dtype) for x in (out, grad, lse))
        delta = (out * grad).sum(-1)
        safe = lse.masked_fill(lse == -torch.inf, torch.inf)
        if p.bad_keys is not None:  # rows that are NaN have no gradient
            safe, delta = safe.masked_fill(lse.isnan(), torch.inf), delta.masked_fill(lse.isnan(), 0.0)
        table = None if p.terms.values is None else run.cut(run.by_head(p.terms.values), items)
        by_distance = None if table is None else grad @ table.mT
        distance = None if by_distance is None else torch.zeros_like(by_distance)
        for tile in tiles:
            e, capped = run.scores(tile)
            weights = torch.exp(e - safe[..., None])
            keep = run.kept(tile)
            dropped = weights if keep is None else weights * keep
            grad_weights = _product(grad, run.cut(p.v, items, tile.k).mT)
            if by_distance is not None and distance is not None:
                grad_weights = grad_weights + run.look_up(by_distance, tile)
                distance += run.bucket(dropped, distance.shape[-1], tile)
            grad_weights = grad_weights if keep is None else grad_weights * keep
            grad_e = weights * (grad_weights - delta[..., None])
            grad_v = dropped.flatten(2, 3).mT @ grad.flatten(2, 3)
            self.add(self.v, grad_v[:, :, None], items, tile.k, key_side=True)
            self._add_terms(tile, grad_e, capped)
        if self.values is not None and distance is not None:
            self.add(self.values, distance.mT @ grad, items)
        if self.sink is not None:
            assert p.sink is not None
            share = torch.exp(run.by_head(p.sink)[..., None].to(run.dtype) - safe)
            self.add(self.sink, -(share * delta).sum(-1), items)

    def _add_terms(self, tile: Tile, grad: Tensor, capped: Tensor | None) -> None:
        p, run = self.p, self.run
        grad_pairs = grad
        if capped is not None and p.terms.cap is not None:
            grad_pairs = grad * (1 - (capped / p.terms.cap) ** 2)
        for term, into in zip(p.terms.terms, self.terms, strict=True):
            if isinstance(term, DotTerm) and isinstance(into, DotTerm):
                self._add_dot(term, into, grad_pairs, tile)
            elif isinstance(term, TanhTerm) and isinstance(into, TanhTerm):
                self._add_tanh(term, into, grad_pairs, tile)
            elif isinstance(into, BiasTerm):
                self._add_bias(into, grad, tile)
            elif isinstance(into, KeyTerm):
                assert into.c is not None
                part = grad.sum((2, 3))[:, :, None, :, None]
                self.add(into.c, part, tile.items, tile.k, key_side=True)
            elif isinstance(term, OffsetTerm) and isinstance(into, OffsetTerm):
                self.add(into.table, run.bucket(grad, into.table.shape[-1], tile), tile.items, tile.q)
                if into.slope is not None:
                    self.add(into.slope, -(grad * run.beyond(term, tile)).sum((-1, -2)), tile.items)

    def _add_dot(self, term: DotTerm, into: DotTerm, grad: Tensor, tile: Tile) -> None:
        assert term.k is not None and into.k is not None and not isinstance(term.scale, Tensor)
        k = self.run.cut(term.k, tile.items, tile.k)
        q = self.run.cut(self.run.by_head(term.q), tile.items, tile.q)
        self.add(into.q, _product(grad, k) * term.scale, tile.items, tile.q)
        part = grad.flatten(2, 3).mT @ q.flatten(2, 3) * term.scale
        self.add(into.k, part[:, :, None], tile.items, tile.k, key_side=True)

    def _add_tanh(self, term: TanhTerm, into: TanhTerm, grad: Tensor, tile: Tile) -> None:
        assert into.b is not None
        w = self.run.cut(self.run.by_head(term.w), tile.items)
        u = self.run.one_minus_tanh(term, tile)
        pairs = grad.flatten(3, 4)[..., None, :]
        self.add(into.w, grad.sum((-1, -2))[..., None] - (pairs @ u.flatten(3, 4)).squeeze(-2), tile.items)
        slope = u.mul_(2 - u).mul_(grad[..., None])  # g · (1 − tanh²)
        self.add(into.a, slope.sum(-2) * w[..., None, :], tile.items, tile.q)
        part = slope.sum(-3) * w[..., None, :]
        self.add(into.b, part.sum(2, keepdim=True), tile.items, tile.k, key_side=True)

    def _add_bias(self, into: BiasTerm, grad: Tensor, tile: Tile) -> None:
        columns = into.bias if into.bias.shape[-1] == 1 else into.bias[..., tile.k]
        self.add(columns, grad, tile.items, tile.q)


def _slices(length: int, block: int) -> list[slice]:
    return [slice(i, min(i + block, length)) for i in range(0, length, block)]


def _len(s: slice) -> int:
    return int(s.stop - s.start)


def _product(x: Tensor, y: Tensor) -> Tensor:
    """[b, K, G, l, m] @ [b, K, m, n], the group folded into the rows."""
    rows: Tensor = x.flatten(2, 3) @ y
    return rows.view(*x.shape[:-1], y.shape[-1])


def _weigh(u: Tensor, w: Tensor) -> Tensor:
    """Σ_d u[b, K, G, l, s, d] · w[b|1, K|1, G|1, d]."""
    if w.numel() == w.shape[-1]:
        return u.matmul(w.flatten())
    return (u.flatten(3, 4) @ w[..., None]).view(u.shape[:-1])
