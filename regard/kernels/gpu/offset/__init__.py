"""Relative position on a GPU in one pass: a dot product plus a table of offsets, forward and backward, in O(n) memory.

    e_ij = softcap(scale · q_i·k_j) + table[i, clip(j − position(i))] − slope · |beyond the clip| + c_j

covers Shaw's relative keys (a table per query), T5 (one per head), ALiBi (one entry and a slope) and Location alone (no
dot product). The device code is in ``_device``; ``_config`` has the tiles, ``_arguments`` the arguments, ``_gradients``
the gradients; the launches are here. Without triton, or if it refuses a problem, ``blockwise`` runs.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.kernels import operator
from regard.kernels.gpu import limits
from regard.kernels.gpu.launch import launchers, on, per_head, power, strides
from regard.kernels.gpu.offset._arguments import WORD, OffsetArguments, rows_of
from regard.kernels.gpu.offset._config import LARGEST, OffsetConfig, configure, split_keys
from regard.kernels.gpu.offset._gradients import Gradients, heads_at_once, own_tables
from regard.kernels.operator import sum_to
from regard.score.terms import DotTerm, Problem, may_need_gradient

__all__ = ["NAME", "Config", "TritonOffset", "configure", "error_bound", "memory_bytes", "refuses", "run"]

NAME = "triton_offset"
NARROWEST = 64  # dims in half precision: narrower operands gave wrong contexts on an H200, see docs/kernels.md


def refuses(problem: Problem) -> str | None:
    p, terms = problem, problem.terms
    if why := limits.refuses_device(p):
        return why
    if len(terms.offsets) != 1:
        return f"it takes one offset term, the score has {len(terms.offsets) or 'none'}"
    if terms.tanhs or len(terms.dots) > 1:
        return "it adds the offset term to one dot product at most"
    if terms.biases or len(terms.keys) > 1:
        return "beside the offset term it takes one key term at most, and no bias"
    if terms.cap is not None and not terms.dots:
        return "there is no dot product to cap"
    if terms.values is not None and terms.values.shape[-2] != terms.offsets[0].table.shape[-1]:
        return "its relative-position term for the values must reach as far as that for the keys"
    if max(p.v.shape[-1], *(t.q.shape[-1] for t in terms.dots), 0) > LARGEST:
        return f"keys and values may have {LARGEST} dims at most"
    return limits.refuses(p)


def memory_bytes(problem: Problem) -> int:
    """Bytes beyond its inputs: context and logsumexp; backward also some numbers per query and, if queries share a
    table, its gradient per query of some heads at a time. A value term needs two tables per query."""
    p = problem
    rows = p.batch * p.heads * p.queries
    size = rows * (p.v.shape[-1] * p.v.element_size() + 4)
    (offset,) = p.terms.offsets
    if may_need_gradient(p.v, offset.table, *(t.q for t in p.terms.dots), *(t.k for t in p.terms.dots)):
        size += 16 * rows if p.terms.values is None else (32 + p.v.element_size() * offset.table.shape[-1]) * rows
        if not own_tables(p) and offset.reach:
            size += 4 * p.queries * offset.table.shape[-1] * heads_at_once(p)
    if p.terms.values is not None:
        size += rows * offset.table.shape[-1] * p.v.element_size()
    return size


def error_bound(problem: Problem) -> float:
    return 0.0


def run(problem: Problem) -> tuple[Tensor, Tensor]:
    dims = problem.v.shape[-1]
    out, lse = operator.run(NAME, _pad_rows(problem))
    return out[..., :dims], lse


def _pad_rows(p: Problem) -> Problem:
    """In half precision, pad q, k and v with zeros so that rows are whole words and not narrow.

    Triton 3.6 gave wrong results on an H200 with 64 × 64 tiles, 4 warps, one stage, 20 or 32 dims and 5 or 16 value
    dims. Whether the one stage (which no configuration has) or the narrow rows are the cause is unknown; so rows are as
    wide as those verified there.
    """
    if p.dtype == torch.float32:
        return p
    terms = tuple(
        replace(t, q=_pad_row(t.q), k=_pad_row(t.k)) if isinstance(t, DotTerm) and t.k is not None else t
        for t in p.terms.terms
    )
    values = None if p.terms.values is None else _pad_row(p.terms.values)
    return replace(p, terms=replace(p.terms, terms=terms, values=values), v=_pad_row(p.v))


def _pad_row(x: Tensor) -> Tensor:
    dims = max(-(-x.shape[-1] // WORD) * WORD, NARROWEST)
    return x if x.shape[-1] == dims else F.pad(x, (0, dims - x.shape[-1]))


class TritonOffset:
    """The kernel behind the operator."""

    wide_out = False  # writing and casting a float32 context would cost a tenth of the forward pass

    def forward(self, p: Problem) -> tuple[Tensor, Tensor]:
        given, config = OffsetArguments(p), configure("forward", p)
        out = p.v.new_empty(p.batch, p.heads, p.queries, p.v.shape[-1])
        lse = p.v.new_empty(p.batch, p.heads, p.queries, dtype=torch.float32)
        by_distance = given.by_distance()
        with on(p.device):
            splits = split_keys(p, config)
            if splits == 1:
                self.launch_forward(given, config, out, lse, by_distance)
            else:
                self._split_forward(given, config, out, lse, splits)
            if given.values is not None and by_distance is not None:
                table = given.values.expand(p.batch, p.heads, -1, -1).flatten(0, 1)
                out = torch.baddbmm(out.flatten(0, 1), by_distance.flatten(0, 1), table).view_as(out)
            if p.bad_keys is not None and p.bad_rows is not None:
                self._spoil(p, given, config, out, lse)
        return out, lse

    def backward(self, p: Problem, out: Tensor, lse: Tensor, grad: Tensor) -> Problem:
        given = OffsetArguments(p)
        grad = grad.to(p.dtype)
        if p.bad_keys is not None:  # rows that are NaN have no gradient
            grad = grad.masked_fill(lse.isnan()[..., None], 0.0)
        grad = rows_of(grad)
        by_distance = given.by_distance()
        with on(p.device):
            stats = self.statistics(given, out, lse, grad)
            room = Gradients(p, given)
            self.launch_keys(given, configure("keys", p), grad, stats, room)
            for first, count, table in room.tables(p):
                self.launch_queries(given, configure("queries", p), grad, stats, room, first, count, table, by_distance)
            values = None
            if given.values is not None and by_distance is not None:
                values = sum_to((by_distance.mT @ grad).float(), given.values.shape)
        return room.problem(p, given, lse, stats[..., 0], values)

    def launch_forward(
        self,
        given: OffsetArguments,
        config: OffsetConfig,
        out: Tensor,
        lse: Tensor,
        by_distance: Tensor | None,
        splits: int = 1,
    ) -> None:
        p = given.p
        sink = per_head(p.sink, p)
        _kernels().forward[(p.batch * p.heads * -(-p.queries // config.q), splits)](
            **given.scores(config, by_keys=False),
            SINK=sink, OUT=out, LSE=lse, W=by_distance, splits=splits, SPLIT=splits > 1,
        )  # fmt: skip

    def _split_forward(
        self, given: OffsetArguments, config: OffsetConfig, out: Tensor, lse: Tensor, splits: int
    ) -> None:
        """Few queries and many keys: several programs split the keys of a block of queries."""
        parts = out.new_empty(splits, *out.shape, dtype=torch.float32)
        lses = lse.new_empty(splits, *lse.shape)
        self.launch_forward(given, config, parts, lses, None, splits)
        dims, rows = out.shape[-1], lse.numel()
        _kernels().combine[(rows,)](
            parts, lses, out, lse, rows, splits, DV=dims, BDV=power(dims, 16), BS=power(splits, 16), num_warps=4
        )

    def _spoil(self, p: Problem, given: OffsetArguments, config: OffsetConfig, out: Tensor, lse: Tensor) -> None:
        assert p.bad_keys is not None and p.bad_rows is not None
        block = min(config.q, 64)
        _kernels().spoil[(p.batch * p.heads * -(-p.queries // block),)](
            OUT=out, LSE=lse, BAD_KEYS=p.bad_keys.contiguous().view(torch.uint8),
            BAD_ROWS=p.bad_rows.contiguous().view(torch.uint8), BM=block, BN=min(config.k, 32), num_warps=4,
            **given.sizes(dot=False), **given.mask,
        )  # fmt: skip

    def statistics(self, given: OffsetArguments, out: Tensor, lse: Tensor, grad: Tensor) -> Tensor:
        """A few numbers per query, [B, H, L, 4 or 8]: see the kernel."""
        p = given.p
        block, dims = min(64, power(p.queries, 16)), p.v.shape[-1]
        given.look_at(grad)
        stats = lse.new_empty(*lse.shape, given.numbers)
        _kernels().statistics[(p.batch * p.heads * -(-p.queries // block),)](
            OUT=out.contiguous(), GRAD=grad, LSE=lse.contiguous(), T=given.table, TV=given.grad_values, STATS=stats,
            H=p.heads, L=p.queries, reach=given.reach, DV=dims, BDV=power(dims, 16), BM=block, NS=given.numbers,
            VALUES=given.values is not None, num_warps=4, **strides("gb gh gi", grad), **given.table_strides,
        )  # fmt: skip
        return stats

    def launch_keys(
        self, given: OffsetArguments, config: OffsetConfig, grad: Tensor, stats: Tensor, room: Gradients
    ) -> None:
        p = given.p
        _kernels().backward_keys[(p.batch * p.kv_heads * -(-p.keys // config.k),)](
            **given.scores(config, by_keys=True), **given.gradient(grad, stats),
            DK=room.k, DV_=room.v, DKEY=room.key,
        )  # fmt: skip

    def launch_queries(
        self, given: OffsetArguments, config: OffsetConfig, grad: Tensor, stats: Tensor, room: Gradients,
        first: int, count: int, table: Tensor | None, by_distance: Tensor | None,
    ) -> None:  # fmt: skip
        """For ``count`` heads from ``first`` on, counted over all batch items."""
        _kernels().backward_queries[(count * -(-given.p.queries // config.q),)](
            **given.scores(config, by_keys=False), **given.gradient(grad, stats),
            DQ=room.q, DT=table, W=by_distance, first=first,
        )  # fmt: skip


operator.OPERATOR_KERNELS[NAME] = TritonOffset()


@lru_cache(1)
def _kernels() -> Any:
    from regard.kernels.gpu.offset import _device

    return launchers(_device)
