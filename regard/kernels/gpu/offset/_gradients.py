"""Gradients of triton_offset: memory for the kernels' results, and their conversion to the problem's shapes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.kernels.gpu.offset._arguments import OffsetArguments
from regard.kernels.operator import sum_to
from regard.score.terms import DotTerm, KeyTerm, OffsetTerm, Problem, Term, Terms

SCRATCH_BYTES = 128 * 2**20  # for the gradient per query of a table that queries share, before it is summed


class Gradients:
    """Memory for the gradients, and their conversion to the problem's shapes."""

    def __init__(self, p: Problem, given: OffsetArguments) -> None:
        self.given = given
        self.v = torch.empty_like(p.v, memory_format=torch.contiguous_format)
        self.q, self.k = (
            torch.empty_like(x, memory_format=torch.contiguous_format) if p.terms.dots else None
            for x in (given.q, given.k)
        )
        key = given.key
        self.key = None if key is None else torch.empty(key.shape, dtype=torch.float32, device=key.device)
        self.table: Tensor | None = None
        self.shares: list[Tensor] = []

    def tables(self, p: Problem) -> Any:
        """(first head, number of heads, memory for their tables' gradient), for all heads of all items in turn."""
        (offset,) = p.terms.offsets
        heads, width = p.batch * p.heads, offset.table.shape[-1]
        if width == 1:
            yield 0, heads, None
        elif own_tables(p):
            self.table = offset.table.new_zeros(p.batch, p.heads, p.queries, width)
            yield 0, heads, self.table
        elif offset.table.shape[2] != 1:
            self.table = offset.table.new_zeros(p.batch, p.heads, p.queries, width, dtype=torch.float32)
            yield 0, heads, self.table
        else:
            at_once = heads_at_once(p)
            for first in range(0, heads, at_once):
                count = min(at_once, heads - first)
                scratch = self.v.new_zeros(count, p.queries, width, dtype=torch.float32)
                yield first, count, scratch
                self.shares.append(scratch.sum(1))

    def problem(self, p: Problem, given: OffsetArguments, lse: Tensor, delta: Tensor, values: Tensor | None) -> Problem:
        share = None
        if p.sink is not None:
            share = torch.exp(p.sink.float()[..., None] - lse).masked_fill(~lse.isfinite(), 0.0)
        terms: list[Term] = []
        for term in p.terms.terms:
            if isinstance(term, DotTerm):
                assert self.q is not None
                terms.append(DotTerm(self.q if given.sign == 1.0 else self.q * given.sign, term.scale, self.k))
            elif isinstance(term, OffsetTerm):
                table = self._table(p, share, delta)
                terms.append(OffsetTerm(table, None if term.slope is None else torch.zeros_like(term.slope)))
            elif isinstance(term, KeyTerm):
                terms.append(KeyTerm(self.key))
        sink = None if share is None or p.sink is None else sum_to(-(share * delta).sum(-1), p.sink.shape)
        return replace(p, terms=Terms(tuple(terms), p.terms.cap, values), v=self.v, sink=sink)

    def _table(self, p: Problem, share: Tensor | None, delta: Tensor) -> Tensor:
        (offset,) = p.terms.offsets
        shape = offset.table.shape
        if self.shares:
            return sum_to(torch.cat(self.shares).view(p.batch, p.heads, 1, -1), shape)
        if self.table is not None:
            return sum_to(self.table, shape)
        # A number added to a whole row only matters with a sink: Σ_j dE_ij = share of the sink · Σ out·grad.
        if share is None:
            return torch.zeros_like(offset.table)
        return sum_to((share * delta)[..., None], shape)


def own_tables(p: Problem) -> bool:
    """Does every query of every head have its own table?"""
    (offset,) = p.terms.offsets
    return offset.table.shape[:3] == (p.batch, p.heads, p.queries)


def heads_at_once(p: Problem) -> int:
    """The number of heads whose tables per query fit into SCRATCH_BYTES, balanced over all rounds."""
    (offset,) = p.terms.offsets
    heads = p.batch * p.heads
    most = max(SCRATCH_BYTES // (4 * p.queries * offset.table.shape[-1]), 1)
    return -(-heads // -(-heads // most))
