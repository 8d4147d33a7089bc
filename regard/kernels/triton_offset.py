"""Relative position on a GPU in one pass: a dot product plus a table of offsets, forward and backward, in O(n) memory.

    e_ij = softcap(scale · q_i·k_j) + table[i, clip(j − position(i))] − slope · |beyond the clip| + c_j

covers Shaw's relative keys (a table per query), T5 (one per head), ALiBi (one entry and a slope) and Location alone (no
dot product). The kernels are in ``_triton_offset``; here is what they are given. A GPU without triton, or a problem
that is refused, is left to ``blockwise``.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.kernels import _dropout, _op
from regard.kernels._launch import launchers
from regard.mask import And, Causal, Documents, Grid, Lengths, Mask, Or, Prefix, Window
from regard.terms import DotTerm, KeyTerm, OffsetTerm, Problem, Term, Terms, may_need_gradient

NAME = "triton_offset"
TRITON_MISSING = importlib.util.find_spec("triton") is None
LARGEST = 256  # dims of keys and of values
FURTHEST = 2**30  # positions and distances are 32-bit numbers
WORD = 16  # numbers: what Triton must know a stride to be a multiple of, to load rows of half types asynchronously
NARROWEST = 64  # dims of half types: what was checked on a GPU
SCRATCH_BYTES = 128 * 2**20  # for the gradient of a table that queries share, per query before it is summed
PRECISION = "ieee"  # of float32 products; "tf32x3" takes tensor cores and keeps 22 of 24 bits
LOG2E = math.log2(math.e)


# --- what it can do ---


def refuses(problem: Problem) -> str | None:
    p, terms = problem, problem.terms
    if p.device.type != "cuda" and not (p.device.type == "cpu" and _interpreting()):
        return f"it runs on a CUDA GPU, not on {p.device.type}"
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
    if p.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return f"it computes in float32, not in {str(p.dtype).removeprefix('torch.')}"
    if p.rows is not None:
        return "it takes whole sequences of queries"
    if not p.batch or not p.queries or not p.keys or not p.v.shape[-1] or any(not t.q.shape[-1] for t in terms.dots):
        return "the problem is empty"
    if max(p.v.shape[-1], *(t.q.shape[-1] for t in terms.dots), 0) > LARGEST:
        return f"keys and values may have {LARGEST} dims at most"
    if isinstance(p.offset, int) and abs(p.offset) > FURTHEST:
        return f"positions must stay within ±2^30, the offset is {p.offset}"
    seen = _seen(p.mask)
    if isinstance(seen, str):
        return seen
    if TRITON_MISSING:
        return "triton is not installed (pip install triton makes relative position several times faster)"
    if p.device.type == "cuda" and _properties(p.device).major < 8:
        return "it needs a GPU of compute capability 8.0 or more"
    return None


def memory_bytes(problem: Problem) -> int:
    """What it needs beyond its inputs: context and logsumexp; backward some numbers per query and, where queries share
    a table, that table's gradient per query of some heads at a time. A value term takes two tables per query."""
    p = problem
    rows = p.batch * p.heads * p.queries
    size = rows * (p.v.shape[-1] * p.v.element_size() + 4)
    (offset,) = p.terms.offsets
    if may_need_gradient(p.v, offset.table, *(t.q for t in p.terms.dots), *(t.k for t in p.terms.dots)):
        size += 16 * rows if p.terms.values is None else (32 + p.v.element_size() * offset.table.shape[-1]) * rows
        if not _own_tables(p) and offset.reach:
            size += 4 * p.queries * offset.table.shape[-1] * _heads_at_once(p)
    if p.terms.values is not None:
        size += rows * offset.table.shape[-1] * p.v.element_size()
    return size


def error_bound(problem: Problem) -> float:
    return 0.0


def run(problem: Problem) -> tuple[Tensor, Tensor]:
    dims = problem.v.shape[-1]
    out, lse = _op.run(NAME, _in_whole_words(problem))
    return out[..., :dims], lse


def _in_whole_words(p: Problem) -> Problem:
    """In half types, zeros behind q, k and v so that rows are whole words and not narrow.

    Triton 3.6 was seen to compute wrongly on an H200 with 64 × 64 tiles, 4 warps, one stage, 20 or 32 dims and 5 or 16
    value dims. Whether it is the one stage, which no configuration below has, or the narrow rows, is not known: so
    rows are as wide as those that were checked there.
    """
    if p.dtype == torch.float32:
        return p
    terms = tuple(
        replace(t, q=_padded_row(t.q), k=_padded_row(t.k)) if isinstance(t, DotTerm) and t.k is not None else t
        for t in p.terms.terms
    )
    values = None if p.terms.values is None else _padded_row(p.terms.values)
    return replace(p, terms=replace(p.terms, terms=terms, values=values), v=_padded_row(p.v))


def _padded_row(x: Tensor) -> Tensor:
    dims = max(-(-x.shape[-1] // WORD) * WORD, NARROWEST)
    return x if x.shape[-1] == dims else F.pad(x, (0, dims - x.shape[-1]))


def _interpreting() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"


# --- masks ---


@dataclass(frozen=True)
class _Seen:
    """A mask as the kernels evaluate it: (in the window or in the prefix) and below the limits and in one document."""

    left: int | None = None
    right: int | None = None
    prefix: int | Tensor | None = None
    limits: tuple[int | Tensor, ...] = ()
    documents: Documents | None = None


def _seen(mask: Mask | None) -> _Seen | str:
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
            if not isinstance(other, (Lengths, Prefix)) or not all(isinstance(w, (Causal, Window)) for w in windows):
                return _unknown(part)
            for w in windows:
                left, right = _narrow(left, right, w)
            prefix = _number(other)
        else:
            return _unknown(part)
    return _Seen(left, right, prefix, limits, documents)


def _unknown(part: Mask) -> str:
    return (
        "it evaluates Causal, Window, Lengths, Prefix and Documents joined by &, and a window | Prefix, "
        f"but {part} is none of these or one too many"
    )


def _parts(mask: Mask | None) -> list[Mask]:
    """The masks that & joins."""
    if isinstance(mask, And):
        return [part for m in mask.parts for part in _parts(m)]
    return [] if mask is None else [mask]


def _narrow(left: int | None, right: int | None, part: Mask) -> tuple[int | None, int | None]:
    """A window and another one."""
    more = (None, 0) if isinstance(part, Causal) else (part.left, part.right)  # type: ignore[attr-defined]
    return _nearer(left, more[0]), _nearer(right, more[1])


def _nearer(x: int | None, y: int | None) -> int | None:
    return y if x is None else x if y is None else min(x, y)


def _number(part: Mask) -> int | Tensor:
    return part.ints[0] if part.ints else part.tensors[0]


# --- configurations ---


@dataclass(frozen=True)
class Config:
    """A tile of queries × keys, the warps that work on it, how many tiles are loaded ahead, registers per thread."""

    q: int
    k: int
    warps: int
    stages: int
    registers: int | None = None  # None: as many as the compiler likes

    def options(self) -> dict[str, int]:
        options = {"num_warps": self.warps, "num_stages": self.stages}
        return options if self.registers is None else {**options, "maxnreg": self.registers}


# By kernel, the largest number of dims and the configuration; the first that fits is taken. These do not spill
# registers on a Hopper GPU.
HALF = {
    "forward": ((64, Config(64, 128, 4, 3)), (128, Config(128, 64, 8, 2)), (LARGEST, Config(128, 32, 8, 2))),
    "no dot": ((64, Config(128, 128, 8, 3)), (128, Config(128, 64, 8, 2)), (LARGEST, Config(128, 32, 8, 2))),
    "keys": ((64, Config(64, 128, 8, 2)), (128, Config(32, 128, 8, 2)), (LARGEST, Config(32, 32, 4, 2))),
    "queries": ((64, Config(128, 64, 8, 2)), (128, Config(128, 64, 8, 2)), (LARGEST, Config(128, 32, 8, 2))),
}
FLOAT = {
    "forward": ((64, Config(64, 32, 8, 1)), (128, Config(32, 64, 8, 1)), (LARGEST, Config(32, 16, 4, 1))),
    "no dot": ((64, Config(64, 32, 8, 1)), (128, Config(32, 64, 8, 1)), (LARGEST, Config(32, 16, 4, 1))),
    "keys": ((64, Config(32, 64, 8, 1)), (128, Config(32, 32, 8, 1)), (LARGEST, Config(16, 32, 8, 1))),
    "queries": ((64, Config(32, 32, 8, 1)), (128, Config(16, 32, 8, 1)), (LARGEST, Config(16, 16, 8, 1))),
}


def configure(kernel: str, p: Problem) -> Config:
    """The configuration of "forward", "keys" or "queries", no larger than the problem."""
    dims = max(p.v.shape[-1], *(t.q.shape[-1] for t in p.terms.dots), 0)
    table = FLOAT if p.dtype == torch.float32 else HALF
    if kernel == "forward" and not p.terms.dots:
        kernel = "no dot"
    config = next(c for most, c in table[kernel] if dims <= most)
    return replace(config, q=min(config.q, _padded(p.queries)), k=min(config.k, _padded(p.keys)))


def _splits(p: Problem, config: Config) -> int:
    """Among how many programs to split the keys, so that few queries keep a whole GPU busy."""
    if p.device.type != "cuda" or p.terms.values is not None:
        return 1
    blocks = p.batch * p.heads * -(-p.queries // config.q)
    wanted = 2 * int(_properties(p.device).multi_processor_count) // blocks
    return max(min(wanted, p.keys // (4 * config.k), 64), 1)


@lru_cache(64)
def _properties(device: torch.device) -> Any:
    return torch.cuda.get_device_properties(device)


def _padded(n: int) -> int:
    """The next power of two that tensor cores take."""
    return max(16, 1 << (n - 1).bit_length())


# --- running it ---


class TritonOffset:
    """The kernel behind the operator."""

    wide_out = False  # writing and casting a float32 context would cost a tenth of the forward pass

    def forward(self, p: Problem) -> tuple[Tensor, Tensor]:
        given, config = _Given(p), configure("forward", p)
        out = p.v.new_empty(p.batch, p.heads, p.queries, p.v.shape[-1])
        lse = p.v.new_empty(p.batch, p.heads, p.queries, dtype=torch.float32)
        by_distance = given.by_distance()
        with _on(p.device):
            splits = _splits(p, config)
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
        given = _Given(p)
        grad = grad.to(p.dtype)
        if p.bad_keys is not None:  # rows that are NaN have no gradient
            grad = grad.masked_fill(lse.isnan()[..., None], 0.0)
        grad = _rows_of(grad)
        by_distance = given.by_distance()
        with _on(p.device):
            stats = self.statistics(given, out, lse, grad)
            room = _Gradients(p, given)
            self.launch_keys(given, configure("keys", p), grad, stats, room)
            for first, count, table in room.tables(p):
                self.launch_queries(given, configure("queries", p), grad, stats, room, first, count, table, by_distance)
            values = None
            if given.values is not None and by_distance is not None:
                values = _sum_to((by_distance.mT @ grad).float(), given.values.shape)
        return room.problem(p, given, lse, stats[..., 0], values)

    def launch_forward(
        self, given: _Given, config: Config, out: Tensor, lse: Tensor, by_distance: Tensor | None, splits: int = 1
    ) -> None:
        p = given.p
        sink = None if p.sink is None else _per_head(p.sink, p)
        _kernels().forward[(p.batch * p.heads * -(-p.queries // config.q), splits)](
            **given.scores(config, by_keys=False),
            SINK=sink, OUT=out, LSE=lse, W=by_distance, HAS_SINK=sink is not None, splits=splits, SPLIT=splits > 1,
        )  # fmt: skip

    def _split_forward(self, given: _Given, config: Config, out: Tensor, lse: Tensor, splits: int) -> None:
        """Few queries and many keys: several programs share the keys of a block of queries."""
        parts = out.new_empty(splits, *out.shape, dtype=torch.float32)
        lses = lse.new_empty(splits, *lse.shape)
        self.launch_forward(given, config, parts, lses, None, splits)
        dims, rows = out.shape[-1], lse.numel()
        _kernels().combine[(rows,)](
            parts, lses, out, lse, rows, splits, DV=dims, BDV=_padded(dims), BS=_padded(splits), num_warps=4
        )

    def _spoil(self, p: Problem, given: _Given, config: Config, out: Tensor, lse: Tensor) -> None:
        assert p.bad_keys is not None and p.bad_rows is not None
        block = min(config.q, 64)
        _kernels().spoil[(p.batch * p.heads * -(-p.queries // block),)](
            OUT=out, LSE=lse, BAD_KEYS=p.bad_keys.contiguous().view(torch.uint8),
            BAD_ROWS=p.bad_rows.contiguous().view(torch.uint8), BM=block, BN=min(config.k, 32), num_warps=4,
            **given.sizes(dot=False), **given.mask(),
        )  # fmt: skip

    def statistics(self, given: _Given, out: Tensor, lse: Tensor, grad: Tensor) -> Tensor:
        """A few numbers per query, [B, H, L, 4 or 8]: see the kernel."""
        p = given.p
        block, dims = min(64, _padded(p.queries)), p.v.shape[-1]
        given.look_at(grad)
        stats = lse.new_empty(*lse.shape, given.numbers)
        _kernels().statistics[(p.batch * p.heads * -(-p.queries // block),)](
            OUT=out.contiguous(), GRAD=grad, LSE=lse.contiguous(), T=given.table, TV=given.grad_values, STATS=stats,
            H=p.heads, L=p.queries, reach=given.reach, DV=dims, BDV=_padded(dims), BM=block, NS=given.numbers,
            VALUES=given.values is not None, num_warps=4, **_strides("g", grad), **given.table_strides,
        )  # fmt: skip
        return stats

    def launch_keys(self, given: _Given, config: Config, grad: Tensor, stats: Tensor, room: _Gradients) -> None:
        p = given.p
        _kernels().backward_keys[(p.batch * p.kv_heads * -(-p.keys // config.k),)](
            **given.scores(config, by_keys=True), **given.gradient(grad, stats),
            DK=room.k, DV_=room.v, DKEY=room.key,
        )  # fmt: skip

    def launch_queries(
        self, given: _Given, config: Config, grad: Tensor, stats: Tensor, room: _Gradients,
        first: int, count: int, table: Tensor | None, by_distance: Tensor | None,
    ) -> None:  # fmt: skip
        """For ``count`` heads of all heads of all batch items, from ``first`` on."""
        _kernels().backward_queries[(count * -(-given.p.queries // config.q),)](
            **given.scores(config, by_keys=False), **given.gradient(grad, stats),
            DQ=room.q, DT=table, W=by_distance, first=first,
        )  # fmt: skip


_op.KERNELS[NAME] = TritonOffset()


@lru_cache(1)
def _kernels() -> Any:
    from regard.kernels import _triton_offset

    return launchers(_triton_offset)


def _on(device: torch.device) -> Any:
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


class _Given:
    """A problem as arguments of the kernels."""

    def __init__(self, p: Problem) -> None:
        self.p = p
        (offset,) = p.terms.offsets
        self.reach = offset.reach
        self.table = _rows_of(offset.table if offset.table.dtype != torch.float64 else offset.table.float())
        self.table_strides = _strides("t", self.table)
        self.slope = None if offset.slope is None else _per_head(offset.slope, p)
        self.v = _rows_of(p.v)
        self.key: Tensor | None = p.terms.keys[0].c if p.terms.keys else None
        self.scale, self.sign = 1.0, 1.0
        dots = p.terms.dots
        if not dots:  # then one of zeros: see the kernels
            self.q = self.v.new_zeros(1, 1, 1, 16).expand(p.batch, p.heads, p.queries, 16)
            self.k = self.q[:, :1, :1].expand(p.batch, p.kv_heads, p.keys, 16)
        for term in dots:
            assert not isinstance(term.scale, Tensor) and term.k is not None
            self.scale, self.sign = (abs(term.scale), math.copysign(1.0, term.scale)) if term.scale else (1.0, 0.0)
            # The kernels take the maximum of q·k before scaling: the scale must be positive.
            self.q = _rows_of(term.q if self.sign == 1.0 else term.q * self.sign)
            self.k = _rows_of(term.k)
        self.values = p.terms.values
        self.grad_values: Tensor | None = None
        self.numbers = 4 if self.values is None else 8
        seen = _seen(p.mask)
        assert isinstance(seen, _Seen)
        self.seen = seen
        self.items, self.offset, self.limit, self.prefix = self._items()
        self.hash = _hash(p) if p.dropout > 0 else None

    def _items(self) -> tuple[Tensor | None, int, int, int]:
        """Offset, limit and prefix: per batch item, [B, 3], or one of each."""
        p, seen = self.p, self.seen
        numbers = (p.offset, *seen.limits, 0 if seen.prefix is None else seen.prefix)
        if all(isinstance(n, int) for n in numbers):
            limit = max(min((p.keys, *(n for n in seen.limits if isinstance(n, int)))), 0)
            prefix = seen.prefix if isinstance(seen.prefix, int) else 0
            assert isinstance(p.offset, int)
            return None, p.offset, limit, min(prefix, p.keys)
        columns = [torch.as_tensor(n, device=p.device).clamp(-FURTHEST, FURTHEST).expand(p.batch) for n in numbers]
        limits = torch.stack((torch.full_like(columns[0], p.keys), *columns[1:-1])).amin(0).clamp(min=0)
        items = torch.stack((columns[0], limits, columns[-1]), -1)
        return items.to(torch.int32).contiguous(), 0, p.keys, 0

    def by_distance(self) -> Tensor | None:
        """Room for the weights by distance, if values go by it."""
        if self.values is None:
            return None
        p = self.p
        return self.v.new_zeros(p.batch, p.heads, p.queries, self.values.shape[-2])

    def look_at(self, grad: Tensor) -> None:
        """grad·r', what the value term adds to the gradient of the weights."""
        if self.values is not None:
            self.grad_values = (grad @ self.values.mT).contiguous()

    def gradient(self, grad: Tensor, stats: Tensor) -> dict[str, Any]:
        """What the backward kernels are given beside the scores."""
        return {
            "GRAD": grad, "STATS": stats, "TV": self.grad_values, "NS": self.numbers, "scale": self.scale,
            "HAS_DOT": bool(self.p.terms.dots), **_strides("g", grad),
        }  # fmt: skip

    def sizes(self, dot: bool = True) -> dict[str, Any]:
        p = self.p
        dims = p.v.shape[-1]
        sizes = {
            "H": p.heads,
            "G": p.heads // p.kv_heads,
            "L": p.queries,
            "S": p.keys,
            "DV": dims,
            "BDV": _padded(dims),
        }
        if dot:
            sizes |= {"D": self.q.shape[-1], "BD": _padded(self.q.shape[-1])}
        return sizes

    def mask(self) -> dict[str, Any]:
        """What the kernels evaluate of the mask."""
        seen, ids = self.seen, (None, None) if self.seen.documents is None else self.seen.documents.tensors
        query_ids, key_ids = (None if x is None else x.contiguous() for x in ids)
        return {
            "ITEMS": self.items, "offset": self.offset, "limit": self.limit, "prefix": self.prefix,
            "left": min(seen.left or 0, FURTHEST), "right": min(seen.right or 0, FURTHEST), "QID": query_ids,
            "KID": key_ids, "idb_q": _batch_stride(query_ids), "idb_k": _batch_stride(key_ids),
            "PER_ITEM": self.items is not None, "HAS_LEFT": seen.left is not None, "HAS_RIGHT": seen.right is not None,
            "PREFIX": seen.prefix is not None, "DOCS": seen.documents is not None,
        }  # fmt: skip

    def scores(self, config: Config, by_keys: bool) -> dict[str, Any]:
        """What every kernel that computes scores is given."""
        p, cap = self.p, self.p.terms.cap
        bounds = self._bounds(config, by_keys)
        key = None if self.key is None else self.key[..., 0]
        return {
            "Q": self.q, "K": self.k, "V": self.v, "T": self.table, "SLOPE": self.slope, "KEY": key,
            "BOUNDS": bounds, "HASH": self.hash, "bb": _batch_stride(bounds), "reach": self.reach,
            "factor": self.scale * LOG2E if cap is None else 1.0, "inner": self.scale / (cap or 1.0),
            "cap": (cap or 0.0) * LOG2E, "threshold": min(round(p.dropout * 2**32), 2**32 - 1),
            "keep_scale": 1 / (1 - p.dropout), "BM": config.q, "BN": config.k, "ONE": self.table.shape[-1] == 1,
            "HAS_SLOPE": self.slope is not None, "HAS_KEY": key is not None, "CAP": cap is not None,
            "DROP": p.dropout > 0, "VALUES": self.values is not None, "EVEN_Q": p.queries % config.q == 0,
            "EVEN_K": p.keys % config.k == 0, "MODE": "interpreter" if _interpreting() else PRECISION,
            **config.options(), **_strides("q", self.q), **_strides("k", self.k), **_strides("v", self.v),
            **_strides("c", self.key), **self.table_strides, **self.sizes(), **self.mask(),
        }  # fmt: skip

    def _bounds(self, config: Config, by_keys: bool) -> Tensor | None:
        """For every block the first and the end of the other side's indices that may share a document, [B|1, n, 2]."""
        p, documents = self.p, self.seen.documents
        if documents is None:
            return None
        empty, _ = documents.tiles(Grid(p.row_index(), p.positions(), p.keys, config.q, config.k))
        some, size = (~empty[:, 0].mT, config.q) if by_keys else (~empty[:, 0], config.k)
        first = some.to(torch.int32).argmax(-1)
        end = torch.where(some.any(-1), some.shape[-1] - some.flip(-1).to(torch.int32).argmax(-1), 0)
        return (torch.stack((first, end), -1) * size).to(torch.int32).contiguous()


class _Gradients:
    """Room for the gradients, and the way back to the problem's shapes."""

    def __init__(self, p: Problem, given: _Given) -> None:
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
        """(first head, how many, where the gradient of their tables goes), for all heads of all items in turn."""
        (offset,) = p.terms.offsets
        heads, width = p.batch * p.heads, offset.table.shape[-1]
        if width == 1:
            yield 0, heads, None
        elif _own_tables(p):
            self.table = offset.table.new_zeros(p.batch, p.heads, p.queries, width)
            yield 0, heads, self.table
        elif offset.table.shape[2] != 1:
            self.table = offset.table.new_zeros(p.batch, p.heads, p.queries, width, dtype=torch.float32)
            yield 0, heads, self.table
        else:
            at_once = _heads_at_once(p)
            for first in range(0, heads, at_once):
                count = min(at_once, heads - first)
                scratch = self.v.new_zeros(count, p.queries, width, dtype=torch.float32)
                yield first, count, scratch
                self.shares.append(scratch.sum(1))

    def problem(self, p: Problem, given: _Given, lse: Tensor, delta: Tensor, values: Tensor | None) -> Problem:
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
        sink = None if share is None or p.sink is None else _sum_to(-(share * delta).sum(-1), p.sink.shape)
        return replace(p, terms=Terms(tuple(terms), p.terms.cap, values), v=self.v, sink=sink)

    def _table(self, p: Problem, share: Tensor | None, delta: Tensor) -> Tensor:
        (offset,) = p.terms.offsets
        shape = offset.table.shape
        if self.shares:
            return _sum_to(torch.cat(self.shares).view(p.batch, p.heads, 1, -1), shape)
        if self.table is not None:
            return _sum_to(self.table, shape)
        # A number added to a whole row matters only against the sink: Σ_j dE_ij = share of the sink · Σ out·grad.
        if share is None:
            return torch.zeros_like(offset.table)
        return _sum_to((share * delta)[..., None], shape)


def _own_tables(p: Problem) -> bool:
    """Does every query of every head have a table of its own?"""
    (offset,) = p.terms.offsets
    return offset.table.shape[:3] == (p.batch, p.heads, p.queries)


def _heads_at_once(p: Problem) -> int:
    """For how many heads there is room for a table per query: about as many each time."""
    (offset,) = p.terms.offsets
    heads = p.batch * p.heads
    most = max(SCRATCH_BYTES // (4 * p.queries * offset.table.shape[-1]), 1)
    return -(-heads // -(-heads // most))


def _hash(p: Problem) -> Tensor:
    """The part of dropout's hash that is the same for a whole head, [B·H]."""
    assert p.seed is not None
    low, mix = 0xFFFFFFFF, _dropout.mix
    x = mix((p.seed & low) ^ mix((p.seed >> 32) & low))[:, None]
    x = mix(x ^ mix(torch.arange(p.batch, device=p.device)[:, None] + 0x9E3779B9))
    x = mix(x ^ mix(_dropout.head_index(p.first_head, p.heads, p.device) + 0x85EBCA6B))
    return x.flatten()


def _rows_of(x: Tensor) -> Tensor:
    """With dims next to each other; in half types whole words also begin at whole words."""
    whole = x.stride(-1) == 1 or x.shape[-1] == 1
    if x.element_size() == 2 and x.shape[-1] % WORD == 0:
        whole = whole and x.storage_offset() % WORD == 0 and all(s % WORD == 0 for s in x.stride()[:-1])
    return x if whole else x.clone(memory_format=torch.contiguous_format)


def _strides(letter: str, x: Tensor | None) -> dict[str, int]:
    """Strides of the batch, head and length dims, 0 where broadcast."""
    names = [letter + n for n in ("bhj" if letter in "kvc" else "bhi")]
    if x is None:
        return dict.fromkeys(names, 0)
    return {name: 0 if n == 1 else stride for name, n, stride in zip(names, x.shape, x.stride(), strict=False)}


def _batch_stride(x: Tensor | None) -> int:
    return 0 if x is None or x.shape[0] == 1 else x.stride(0)


def _per_head(x: Tensor, p: Problem) -> Tensor:
    """[B|1, H|1] → [B, H] of float32."""
    return x.float().expand(p.batch, p.heads).contiguous()


def _sum_to(x: Tensor, shape: torch.Size) -> Tensor:
    dims = [d for d in range(x.ndim) if shape[d] == 1 and x.shape[d] != 1]
    return x.sum(dims, keepdim=True) if dims else x
