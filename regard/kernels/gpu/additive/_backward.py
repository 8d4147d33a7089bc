"""The backward pass of triton_additive: gradients, accumulated over passes that fit into the workspace."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from regard.kernels.gpu.additive._arguments import AdditiveArguments
from regard.kernels.gpu.launch import options, properties, strides
from regard.kernels.operator import sum_to
from regard.score.terms import BiasTerm, KeyTerm, OffsetTerm, Problem, TanhTerm, Term, Terms

WORKSPACE = 256 * 2**20  # bytes of dS held at once


@dataclass(frozen=True)
class Pass:
    """The part of a problem that the workspace holds at once: some heads of some batch items, and some keys."""

    items: slice
    heads: slice
    first: int
    keys: int  # padded

    def count(self) -> int:
        return int((self.items.stop - self.items.start) * (self.heads.stop - self.heads.start))


class Backward:
    """The gradients of a problem, accumulated over passes."""

    def __init__(self, given: AdditiveArguments, out: Tensor, lse: Tensor, grad: Tensor) -> None:
        self.given, self.p, self.grad = given, given.p, grad
        p, device = given.p, given.p.device
        self.delta, self.lse2, norm = (torch.empty_like(lse) for _ in range(3))
        n = lse.numel()
        given.kernels.rows[(-(-n // 32),)](
            out, grad, lse, self.delta, self.lse2, norm, n, given.value_dims, DVP=given.padded_values, ROWS=32
        )
        self.norms = given.params, given.params  # placeholders, not read
        if given.series:
            self.norms = norm.amax(), torch.linalg.vector_norm(given.v, dim=-1, dtype=torch.float32).amax()
        self.terms, self.keep_scale = given.terms(poison=False), given.dropout["keep_scale"]
        self.key_spans, self.query_spans = given.spans(by_keys=False), given.spans(by_keys=True)
        self.work = torch.empty(0, dtype=torch.uint8, device=device)
        shape = (p.batch, p.heads)
        self.da = torch.empty(*shape, p.queries, given.dims, device=device)
        self.db = torch.empty(*shape, p.keys, given.dims, device=device)
        self.dw = torch.zeros(*shape, given.padded_dims, device=device)
        self.dv = torch.empty(*shape, p.keys, given.value_dims, device=device)
        self.dkey = torch.empty(*shape, p.keys, device=device)
        self.dbias = [torch.zeros(t.bias.shape, device=device) for t in p.terms.biases]
        self.dtable = [torch.zeros(*shape, p.queries, t.table.shape[-1], device=device) for t in p.terms.offsets]
        self.dslope = [torch.zeros(*shape, p.queries, device=device) for t in p.terms.offsets if t.slope is not None]

    def passes(self, itemsize: int, block: int) -> Iterator[Pass]:
        """All heads and keys, in parts that fit the workspace."""
        p, given = self.p, self.given
        room = WORKSPACE // itemsize
        keys = min(given.keys, max(room // given.rows // block, 1) * block)
        fit = max(1, room // (given.rows * keys))
        if fit >= p.heads:
            step = fit // p.heads
            groups = [(slice(b, min(b + step, p.batch)), slice(0, p.heads)) for b in range(0, p.batch, step)]
        else:
            cut = [slice(h, min(h + fit, p.heads)) for h in range(0, p.heads, fit)]
            groups = [(slice(b, b + 1), heads) for b in range(p.batch) for heads in cut]
        for items, heads in groups:
            for first in range(0, given.keys, keys):
                yield Pass(items, heads, first, min(keys, given.keys - first))

    def run(self) -> Problem:
        self.given.prepare(across=True, along=True)
        for series in self.given.forms():
            self._run(series)
        return self._problem()

    def _run(self, series: bool) -> None:
        """One form of the score."""
        given, p = self.given, self.p
        dtype = torch.float16 if series else torch.float32
        form = {"SERIES": series}
        for part in self.passes(dtype.itemsize, given.config.pad_keys):
            size = part.count() * given.rows * part.keys
            if self.work.numel() < size * dtype.itemsize:
                self.work = torch.empty(size * dtype.itemsize, dtype=torch.uint8, device=p.device)
            ds = self.work[: size * dtype.itemsize].view(dtype).view(part.count(), given.rows, part.keys)
            if p.mask is not None:  # skipped tiles must be zero
                given.kernels.clear[(-(-size // 4096),)](ds, given.params, size, **form, BLOCK=4096)
            first_bh = part.items.start * p.heads + part.heads.start
            common = {
                **given.mask, **given.sizes(), "first": part.first, "C": part.keys, "first_bh": first_bh,
                "count": part.count(), "DP": given.padded_dims,
            }  # fmt: skip
            self._scores(form, part, ds, common)
            for side in (0, 1):
                self._sums(form, part, ds, side, common)
            self._others(form, part, ds, first_bh)

    def shares(self, programs: int) -> int:
        """The number of shares of the queries, so that a few heads and keys keep the whole GPU busy."""
        if self.p.device.type == "cpu":
            return 1 + self.p.heads % 2  # so that tests cover both cases
        processors = int(properties(self.p.device).multi_processor_count)
        return max(1, min(2 * processors // programs, self.p.queries // 256))

    def room(self, shares: int, part: Pass, into: Tensor) -> Tensor:
        """Where a kernel writes gradients of keys: the result itself, or a buffer with one part per share."""
        if shares == 1:
            return into
        return torch.empty(shares, part.count(), part.keys, *into.shape[3:], device=into.device)

    def add_shares(self, form: Any, shares: int, part: Pass, first_bh: int, values: Tensor, into: Tensor) -> None:
        if shares == 1:
            return
        given, width = self.given, into[0, 0, 0].numel()
        grid = (part.count() * -(-part.keys * width // 1024),)
        given.kernels.add_shares[grid](
            values, given.params, into, self.p.keys, width, part.first, part.keys, first_bh, part.count(),
            SHARES=shares, **form, BLOCK=1024,
        )  # fmt: skip

    def _scores(self, form: Any, part: Pass, ds: Tensor, common: Any) -> None:
        given = self.given
        tiles = given.config.scores_series if form["SERIES"] else given.exact
        programs = part.count() * (part.keys // tiles.keys)
        shares = self.shares(programs)
        dv, dkey = (self.room(shares, part, into) for into in (self.dv, self.dkey))
        given.kernels.score_gradients[(programs * shares,)](
            v=given.v, grad=self.grad, lse2=self.lse2, delta=self.delta, g_norm=self.norms[0],
            v_norm=self.norms[1], ds=ds, dv_out=dv, dkey=dkey, **given.score_arguments(form["SERIES"]), **self.terms,
            **self.query_spans, **given.dropout, **given.values(), **common, **form,
            PRECISION=given.precision(), SHARES=shares, BM=tiles.queries, BN=tiles.keys, STEP=tiles.step,
            AHEAD=given.ahead(tiles.queries), **options(tiles),
        )  # fmt: skip
        for values, into in ((dv, self.dv), (dkey, self.dkey)):
            self.add_shares(form, shares, part, common["first_bh"], values, into)

    def _sums(self, form: Any, part: Pass, ds: Tensor, side: int, common: Any) -> None:
        given, count, dims = self.given, part.count(), self.given.padded_dims
        series = form["SERIES"]
        sums = given.config.features if series else given.config.pairs
        blocks = (given.rows if side == 0 else part.keys) // sums.rows
        programs = count * blocks * (dims // sums.dims)
        shares = 1 if side == 0 else self.shares(programs)
        own, other = (given.features if series else given.along)[:: 1 if side == 0 else -1]
        out = self.da if side == 0 else self.room(shares, part, self.db)
        weighs = side == (0 if series else 1)  # the side that also sums the gradient of the weights
        # Zeros, for the kernel that returns at once.
        dw = torch.zeros(shares, count, blocks, dims, device=self.p.device) if weighs else given.params
        arguments = {
            **common, "setting": given.params, "w": given.w, "ds": ds, "other": other, "out": out, "dw": dw,
            "SIDE": side, "SHARES": shares, **(self.key_spans if side == 0 else self.query_spans), "ROWS": sums.rows,
            **options(sums),
        }  # fmt: skip
        if series:
            x = given.a if side == 0 else given.b
            given.kernels.feature_gradients[(programs * shares,)](
                x=x, **strides("x_b x_h x_n", x), g_norm=self.norms[0], v_norm=self.norms[1],
                keep_scale=self.keep_scale, COLS=sums.dims, PAIR=sums.pair, STEP=sums.step, **arguments,
            )  # fmt: skip
        else:
            given.kernels.pair_gradients[(programs * shares,)](
                own=own, dkey=self.dkey, HALF=sums.dims // 2, **arguments
            )
        if side == 1:
            self.add_shares(form, shares, part, common["first_bh"], out, self.db)
        if weighs:
            into = self.dw[part.items, part.heads]
            into += dw.sum((0, 2)).view(into.shape)

    def _others(self, form: Any, part: Pass, ds: Tensor, first_bh: int) -> None:
        """Gradients of bias and offset terms."""
        given, p = self.given, self.p
        last = min(part.first + part.keys, p.keys)
        for into in self.dbias:
            if p.need_bias_gradient:
                self._add_bias(form["SERIES"], part, ds[:, : p.queries, : last - part.first], into)
        for offset_term, table in zip(p.terms.offsets, self.dtable, strict=True):
            given.kernels.table_gradients[(part.count() * (given.rows // 32),)](
                ds, given.params, *self.norms, table, self.dslope[0] if self.dslope else None, given.mask["ITEMS"],
                given.mask["offset"], p.heads, p.queries, given.rows, p.keys, table.shape[-1], offset_term.reach,
                part.first, part.keys, first_bh, **form, keep_scale=self.keep_scale, ROWS=32, COLS=32,
            )  # fmt: skip

    def _add_bias(self, series: bool, part: Pass, ds: Tensor, into: Tensor) -> None:
        given = self.given
        ds = ds.unflatten(0, (part.items.stop - part.items.start, -1)).float()
        if series:
            bound = self.norms[0].sqrt() * self.norms[1] * (2 * self.keep_scale)
            ds = ds * torch.where(bound > 0, bound / 8192, 1.0)
        if given.series:
            ds = torch.where((given.params[0] != 0) == series, ds, 0.0)
        cuts = (part.items, part.heads, slice(None), slice(part.first, part.first + ds.shape[-1]))
        into = into[tuple(cut if n != 1 else slice(None) for cut, n in zip(cuts, into.shape, strict=True))]
        into += sum_to(ds, into.shape)

    def _problem(self) -> Problem:
        given, p = self.given, self.p
        (tanh,) = p.terms.tanhs
        group = (p.kv_heads, p.heads // p.kv_heads)
        db, dv, dkey = self.db, self.dv, self.dkey
        if p.heads != p.kv_heads:
            db, dv, dkey = (x.unflatten(1, group).sum(2) for x in (db, dv, dkey))
        terms: list[Term] = []
        for term in p.terms.terms:
            if isinstance(term, TanhTerm):
                terms.append(TanhTerm(self.da, sum_to(self.dw[..., : given.dims], tanh.w.shape), db))
            elif isinstance(term, OffsetTerm):
                slope = None if term.slope is None else sum_to(self.dslope[0].sum(-1), term.slope.shape)
                terms.append(OffsetTerm(sum_to(self.dtable[0], term.table.shape), slope))
            elif isinstance(term, BiasTerm):
                terms.append(BiasTerm(self.dbias[0]))
            elif isinstance(term, KeyTerm):
                terms.append(KeyTerm(dkey[..., None]))
        sink = None
        if p.sink is not None:
            share = torch.exp2(p.sink.to(torch.float32)[..., None] * 1.4426950408889634 - self.lse2)
            sink = sum_to(-(share * self.delta).sum(-1), p.sink.shape)
        return replace(p, terms=Terms(tuple(terms), None, None), v=dv, sink=sink)
