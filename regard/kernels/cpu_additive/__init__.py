"""Additive attention on a CPU, fused: the exact fraction form, four per division, in O(n) memory.

The loops are in ``_numba``, which compiles them to vector code and caches it on disk; this module prepares their
arguments. Its threads (``_threads``) run code without the GIL, as many as ``torch.get_num_threads()``, so any number of
Python threads and forked children may call it.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import threading
import time
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.common.processors import usable
from regard.kernels import _dense as dense
from regard.kernels import operator
from regard.kernels._additive import readable, refuses_terms
from regard.kernels._threads import spread
from regard.kernels.operator import sum_to
from regard.mask.shape import Grid
from regard.score.terms import BiasTerm, KeyTerm, OffsetTerm, Problem, TanhTerm, Term, Terms

NAME = "cpu_additive"
ROWS, BLOCK_Q = 4, 64
LONG, SHORT = 512, 256  # keys of a block: long blocks cost less, short ones skip more of a mask
FEW, CHUNK = 8, 4096  # the most queries of a decoding step, and keys per thread in one
NUMBA_MISSING = importlib.util.find_spec("numba") is None
RANGE = {torch.float32: 33.0, torch.float64: 330.0}  # |a|, |b| up to which e^{2a}/u and e^{2b} are normal numbers
SMALLEST = {torch.float32: 2.0**-30, torch.float64: 2.0**-60}  # least |u|, a weight relative to the largest


def refuses(problem: Problem) -> str | None:
    p = problem
    if p.device.type != "cpu":
        return f"it runs on a CPU, not on {p.device.type}"
    if why := refuses_terms(problem.terms):
        return why
    if not p.batch or not p.queries or not p.keys or not p.v.shape[-1]:
        return "the problem is empty"
    if p.rows is not None:
        return "it takes whole sequences of queries"
    if p.key_positions is not None:
        return "keys have positions of their own"
    if NUMBA_MISSING:
        return "numba is not installed (pip install numba makes additive attention several times faster)"
    return None


def memory_bytes(problem: Problem) -> int:
    """Bytes beyond its inputs: the context, the logsumexp, and exponentials of queries and keys."""
    p = problem
    (tanh,) = p.terms.tanhs
    size = torch.finfo(p.compute_dtype).bits // 8
    assert tanh.b is not None
    return size * (p.batch * p.heads * p.queries * (p.v.shape[-1] + 1) + tanh.a.numel() + tanh.b.numel())


def error_bound(problem: Problem) -> float:
    return 0.0


def run(problem: Problem) -> tuple[Tensor, Tensor]:
    return operator.run(NAME, readable(problem, exponentials=_is_decode))


def _is_decode(p: Problem) -> bool:
    """Few queries? Then keys are read as they are, without preparing them for many queries."""
    return p.queries <= FEW and not p.dropout


class CpuAdditive:
    """The kernel behind the operator."""

    wide_out = True

    def forward(self, p: Problem) -> tuple[Tensor, Tensor]:
        if _is_decode(p):
            return _decode(p)
        loops, given = _loops(p.compute_dtype, "forward"), _Arguments(p)
        out = torch.empty(p.batch, p.heads, p.queries, p.v.shape[-1], dtype=given.dtype)
        lse = torch.empty(p.batch, p.heads, p.queries, dtype=given.dtype)
        args = (*given.arrays(given.sink()), out.numpy(), lse.numpy())
        tasks = p.batch * p.heads * -(-p.queries // ROWS)
        spread(tasks, given.work, lambda i, j: loops.forward(i, j, *args))
        given.spoil(out, lse, given.nan_rows, given.nan_keys)
        return out, lse

    def backward(self, p: Problem, out: Tensor, lse: Tensor, grad: Tensor) -> Problem:
        _loops(p.compute_dtype, "forward")  # the keys' exponentials
        loops, given = _loops(p.compute_dtype, "backward"), _Arguments(p)
        (tanh,) = p.terms.tanhs
        grad, out = grad.to(given.dtype).contiguous(), out.to(given.dtype)
        delta = (out * grad).sum(-1)
        blank = lse.isnan()  # rows that are NaN have no gradient
        lse, delta = lse.masked_fill(blank, -torch.inf), delta.masked_fill(blank, 0.0)
        grad = grad.masked_fill(blank[..., None], 0.0) if blank.any() else grad
        g = _Gradients(given, p)
        arrays = given.arrays()
        data = [x.numpy() for x in (given.v.mT.contiguous(), lse, delta, grad, *g.tensors())]
        units = p.batch * p.kv_heads * g.splits
        spread(units, given.work, lambda i, j: loops.backward(i, j, g.splits, *arrays, *data))
        return g.problem(p, tanh, lse, delta)


operator.OPERATOR_KERNELS[NAME] = CpuAdditive()


class _Terms:
    """The arguments of the loops besides a, b, w and v: broadcast dims expanded, absent terms of size 0."""

    def __init__(self, p: Problem) -> None:
        (tanh,) = p.terms.tanhs
        assert tanh.b is not None
        self.p, self.dtype = p, p.compute_dtype
        self.group, self.dims = p.heads // p.kv_heads, tanh.a.shape[-1]
        self.a, self.b = tanh.a.to(self.dtype), tanh.b.to(self.dtype)
        self.work = p.batch * p.heads * p.queries * p.keys * self.dims
        self.block_k = LONG if p.mask is None else SHORT
        self.state, self.masks = _tiles(p, self.block_k)

    def terms(self) -> tuple[Any, ...]:
        """Key, bias, table, slope, positions, tile states and masks."""
        p = self.p
        positions = p.positions().expand(p.batch, -1).contiguous()
        tensors = (self.key(), self.bias(), *self.offset(), positions, self.state, self.masks)
        return tuple(x.numpy() for x in tensors)

    def sink(self) -> Any:
        p = self.p
        sink = torch.full((1, 1), -torch.inf) if p.sink is None else p.sink
        return sink.to(self.dtype).expand(p.batch, p.heads).contiguous().numpy()

    def key(self) -> Tensor:
        p = self.p
        key = torch.zeros(p.batch, p.kv_heads, 0, dtype=self.dtype)
        for term in p.terms.keys:
            assert term.c is not None
            key = term.c[..., 0].to(self.dtype)
        return key.contiguous()

    def bias(self) -> Tensor:
        p = self.p
        for term in p.terms.biases:
            return term.bias.to(self.dtype).expand(p.batch, p.heads, p.queries, p.keys)
        return torch.zeros((), dtype=self.dtype).expand(p.batch, p.heads, p.queries, 0)

    def offset(self) -> tuple[Tensor, Tensor]:
        p = self.p
        nothing = torch.zeros((), dtype=self.dtype)
        for term in p.terms.offsets:
            table = term.table.to(self.dtype).expand(p.batch, p.heads, p.queries, -1)
            slope = nothing if term.slope is None else term.slope.to(self.dtype)
            return table, slope.expand(p.batch, p.heads).contiguous()
        return nothing.expand(p.batch, p.heads, p.queries, 0), nothing.expand(p.batch, p.heads).contiguous()

    def rows_to_spoil(self, nan_rows: Tensor | None, nan_keys: Tensor | None) -> Tensor | None:
        """Rows that must be NaN, [B, H, L]: their own query is, or a key they see."""
        p = self.p
        bad_rows, bad_keys = _either(nan_rows, p.bad_rows), _either(nan_keys, p.bad_keys)
        if not any(bad is not None and bool(bad.any()) for bad in (bad_rows, bad_keys)):
            return None
        whole = replace(p, bad_keys=bad_keys, bad_rows=bad_rows)
        if p.mask is None:
            return dense.nonfinite_rows(whole, None)
        chunks = []
        for rows in torch.arange(p.queries).split(BLOCK_Q):
            bad = None if bad_rows is None else bad_rows[:, :, rows]
            part = replace(whole, rows=rows, queries=len(rows), bad_rows=bad)
            chunks.append(dense.nonfinite_rows(part, dense.visible(part)).expand(p.batch, p.heads, -1))
        return torch.cat(chunks, -1)

    def spoil(self, out: Tensor, lse: Tensor, nan_rows: Tensor | None = None, nan_keys: Tensor | None = None) -> None:
        spoiled = self.rows_to_spoil(nan_rows, nan_keys)
        if spoiled is not None:
            out.masked_fill_(spoiled[..., None], torch.nan)
            lse.masked_fill_(spoiled, torch.nan)


class _Arguments(_Terms):
    """A problem as arrays for the loops over many queries: exponentials of the keys, with keys last."""

    def __init__(self, p: Problem) -> None:
        super().__init__(p)
        (tanh,) = p.terms.tanhs
        self.wide = not max(_largest(self.a), _largest(self.b)) <= RANGE[self.dtype]  # NaN is wide too
        self.nan_rows, self.nan_keys = (x.isnan().any(-1) if self.wide else None for x in (self.a, self.b))
        self.a = self.a.contiguous()
        self.bt, self.top = _exponentials(self.b, self.wide)
        self.w = F.pad(tanh.w.to(self.dtype), (0, -self.dims % 4)).expand(p.batch, p.heads, -1).contiguous()
        self.inverse, self.gain = _without_weights(self.w)
        self.v = p.v.to(self.dtype).contiguous()

    def arrays(self, *sink: Any) -> tuple[Any, ...]:
        """In the order of the loops' parameters."""
        p = self.p
        seed = torch.zeros(1, dtype=torch.int64) if p.seed is None else p.seed
        tensors = (self.a, self.bt, self.top, self.w, self.inverse, self.gain, self.v)
        return (
            self.group, *(x.numpy() for x in tensors), *self.terms(), BLOCK_Q, self.block_k, self.wide, *sink,
            seed.expand(p.batch).contiguous().numpy(), round(p.dropout * 2**32), 1 / (1 - p.dropout), p.first_head,
        )  # fmt: skip


class _Gradients:
    """Memory for the sums of the loops, and their conversion to the problem's shapes."""

    def __init__(self, given: _Arguments, p: Problem) -> None:
        self.given, kv = given, p.batch * p.kv_heads
        self.splits = max(1, min(-(-2 * torch.get_num_threads() // kv), p.queries // 16))
        units, dims, dtype = kv * self.splits, given.w.shape[-1], given.dtype
        self.a = torch.empty(given.a.shape, dtype=dtype)
        self.bt = torch.zeros(units, dims, p.keys, dtype=dtype)
        self.w = torch.zeros(units, given.group, 2, dims, dtype=dtype)
        self.v = torch.zeros(units, p.keys, p.v.shape[-1], dtype=dtype)
        self.key = torch.zeros(units, p.keys if p.terms.keys else 0, dtype=dtype)
        nothing = torch.zeros((), dtype=dtype).expand(p.batch, p.heads, p.queries, 0)
        wanted = p.terms.biases and p.need_bias_gradient
        self.bias = torch.zeros(p.batch, p.heads, p.queries, p.keys, dtype=dtype) if wanted else nothing
        reach = [t.table.shape[-1] for t in p.terms.offsets]
        self.table = torch.zeros(p.batch, p.heads, p.queries, *reach, dtype=dtype) if reach else nothing

    def tensors(self) -> tuple[Tensor, ...]:
        return self.a, self.bt, self.w, self.v, self.key, self.bias, self.table

    def problem(self, p: Problem, tanh: TanhTerm, lse: Tensor, delta: Tensor) -> Problem:
        shares = (p.batch, p.kv_heads, self.splits)
        w = self.w.unflatten(0, shares).sum(2).flatten(1, 2)  # [B, H, 2, D]
        w = (w[:, :, 1, :1] - 2 * w[:, :, 0])[..., : self.given.dims]  # tanh = 1 − 2r
        b = self.bt.unflatten(0, shares).sum(2).mT[..., : self.given.dims]
        key = self.key.unflatten(0, shares).sum(2)[..., None]
        terms: list[Term] = []
        for term in p.terms.terms:
            if isinstance(term, TanhTerm):
                terms.append(TanhTerm(self.a, sum_to(w, tanh.w.shape), b))
            elif isinstance(term, OffsetTerm):
                slope = None if term.slope is None else torch.zeros_like(term.slope)
                terms.append(OffsetTerm(sum_to(self.table, term.table.shape), slope))
            elif isinstance(term, BiasTerm):
                grad = sum_to(self.bias, term.bias.shape) if p.need_bias_gradient else torch.zeros_like(term.bias)
                terms.append(BiasTerm(grad))
            elif isinstance(term, KeyTerm):
                terms.append(KeyTerm(key))
        sink = None
        if p.sink is not None:
            share = torch.exp(p.sink.to(lse.dtype)[..., None] - lse).masked_fill(lse == -torch.inf, 0.0)
            sink = sum_to(-(share * delta).sum(-1), p.sink.shape)
        v = self.v.unflatten(0, shares).sum(2)
        return replace(p, terms=Terms(tuple(terms), None, None), v=v, sink=sink)


def _decode(p: Problem) -> tuple[Tensor, Tensor]:
    """Few queries against many keys: every key and value is read once, heads and chunks of keys in parallel."""
    loops, given = _loops(p.compute_dtype, "decode"), _Terms(p)
    (tanh,) = p.terms.tanhs
    w = tanh.w.to(given.dtype).expand(p.batch, p.heads, -1).contiguous()
    wide = not _largest(given.a) <= RANGE[given.dtype]
    panels = p.batch * p.kv_heads
    chunks = max(1, min(-(-2 * torch.get_num_threads() // panels), p.keys // CHUNK))
    chunk = -(-p.keys // chunks // given.block_k) * given.block_k
    rows = -(-given.group * p.queries // ROWS) * ROWS
    acc = torch.zeros(panels * chunks, rows, p.v.shape[-1], dtype=given.dtype)
    parts = [x.numpy() for x in (acc, acc.new_empty(acc.shape[:2]), acc.new_empty(acc.shape[:2]))]
    args = (
        chunks, chunk, given.group, given.a.contiguous().numpy(), *_panels(given.b), tanh.exponential, wide,
        w.numpy(), *_panels(p.v.to(given.dtype)), *given.terms(), given.block_k, p.keys, given.dims,
        given.sink(), *parts,
    )  # fmt: skip
    spread(panels * chunks, 4 * given.work, lambda i, j: loops.decode(i, j, *args))
    out = acc.new_empty(p.batch, p.heads, p.queries, p.v.shape[-1])
    lse = acc.new_empty(out.shape[:3])
    loops.gather(chunks, given.group, *parts, out.numpy(), lse.numpy())
    given.spoil(out, lse)
    return out, lse


def _panels(x: Tensor) -> tuple[Any, Any]:
    """[B, K, S, D] as a flat array and the offset of each [S, D] in it, without a copy if these are contiguous."""
    x = x if x.stride()[2:] == (x.shape[-1], 1) else x.contiguous()
    (batch, heads, *_), (by_batch, by_head, *_) = x.shape, x.stride()
    at = np.arange(batch, dtype=np.int64)[:, None] * by_batch + np.arange(heads, dtype=np.int64) * by_head
    size = (batch - 1) * by_batch + (heads - 1) * by_head + x.shape[-1] * x.shape[-2]
    return x.as_strided((size,), (1,)).numpy(), at


def _either(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return b if a is None else a if b is None else a | b


def _exponentials(b: Tensor, wide: bool) -> tuple[Tensor, Tensor]:
    """e^{2b} (2b if wide) with keys last, dims padded to a multiple of four, [B, K, D, S]; its largest, [B, K, D]."""
    batch, kv_heads, keys, dims = b.shape
    padded = dims + -dims % 4
    bt = b.new_empty(batch, kv_heads, padded, keys)
    bt[:, :, dims:] = 0
    top = b.new_zeros(batch * kv_heads, padded)
    loops, args = _loops(b.dtype, "forward"), (b.numpy(), bt.numpy(), top.numpy(), wide)
    spread(batch * kv_heads, 16 * b.numel(), lambda i, j: loops.keys(i, j, *args))
    return bt, top.view(batch, kv_heads, padded)


def _without_weights(w: Tensor) -> tuple[Tensor, Tensor]:
    """1/u and 2W of w = W u, with |u| ≤ 1 and large enough to invert. (NumPy's overhead is lower than PyTorch's.)"""
    x, small = w.numpy(), SMALLEST[w.dtype]
    with np.errstate(all="ignore"):
        most = np.abs(x).max(-1, keepdims=True)
        u = x / np.where(most > 0, most, 1)
        inverse = 1 / np.where(np.abs(u) < small, np.array(small, x.dtype), u)
        return torch.from_numpy(inverse), torch.from_numpy(2 * most[..., 0])


def _largest(x: Tensor) -> float:
    low, high = torch.aminmax(x)
    return max(-low.item(), high.item())


def _tiles(p: Problem, block_k: int) -> tuple[Tensor, Tensor]:
    """The mask for the loops: the state of each tile, and the booleans of mixed tiles."""
    n_q, n_k = -(-p.queries // BLOCK_Q), -(-p.keys // block_k)
    if p.mask is None:
        state = torch.full((1, 1, 1, 1), -1, dtype=torch.int32).expand(p.batch, p.heads, n_q, n_k)
        return state, torch.zeros(0, 1, 1, dtype=torch.bool)
    rows, positions, cols = p.row_index(), p.positions(), torch.arange(p.keys)
    if n_k == 1 and p.queries <= FEW:  # a decoding step: the one tile counts as mixed, without asking for verdicts
        seen = p.mask.visible(rows, positions, cols)
        items, heads = seen.shape[:2]
        masks = seen.expand(items, heads, p.queries, p.keys).flatten(0, 1)
        state = torch.arange(len(masks), dtype=torch.int32).view(items, heads, 1, 1).expand(p.batch, p.heads, 1, 1)
        return state, masks.contiguous()
    empty, full = p.mask.tiles(Grid(rows, positions, p.keys, BLOCK_Q, block_k))
    empty, full = torch.broadcast_tensors(empty, full)
    state = torch.where(empty, -2, torch.where(full, -1, 0)).to(torch.int32)
    state = state.expand(*state.shape[:2], n_q, n_k).contiguous()
    mixed_masks: list[Tensor] = []
    count = 0
    for i, j in (state == 0).any(0).any(0).nonzero().tolist():
        q, k = slice(i * BLOCK_Q, (i + 1) * BLOCK_Q), slice(j * block_k, (j + 1) * block_k)
        seen = p.mask.visible(rows[q], positions[:, q], cols[k])
        seen = seen.expand(*state.shape[:2], len(rows[q]), len(cols[k])).flatten(0, 1)
        mixed_masks.append(F.pad(seen, (0, block_k - seen.shape[-1], 0, BLOCK_Q - seen.shape[-2])))
        mixed = state[:, :, i, j] == 0
        index = count + torch.arange(len(seen), dtype=torch.int32).view_as(mixed)
        state[:, :, i, j] = torch.where(mixed, index, state[:, :, i, j])
        count += len(seen)
    tiles = torch.cat(mixed_masks) if mixed_masks else torch.zeros(0, 1, 1, dtype=torch.bool)
    return state.expand(p.batch, p.heads, n_q, n_k), tiles


# --- compilation ---

_compiling = threading.Lock()
_READY: set[tuple[str, str]] = set()  # (dtype, loop) compiled in this process


def warm_up(dtype: torch.dtype = torch.float32, *, training: bool = True) -> float:
    """Compile additive attention for this CPU in advance, so that no call waits for it. Returns the seconds it took.

    Without it, the first call that needs a loop (forward, backward, decoding) compiles it, which takes some seconds.
    The result is cached on disk until the package or numba changes, so call this once: when an image is built, or
    before a server takes requests. The loops are compiled in parallel processes. ``training=False`` leaves out the
    backward pass; half precision is computed in float32.

    >>> import regard
    >>> seconds = regard.warm_up(training=False)
    """
    if dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        raise TypeError(f"warm_up takes float16, bfloat16, float32 or float64, got {dtype}")
    if NUMBA_MISSING:
        return 0.0
    began, wide = time.perf_counter(), torch.float64 if dtype == torch.float64 else torch.float32
    wanted = ["forward", "decode", *(["backward"] if training else [])]
    others = [_start_compiling(str(wide).removeprefix("torch."), which) for which in wanted[1:]]
    _loops(wide, wanted[0])
    for other in others:
        if other is not None:
            other.wait()
    for which in wanted[1:]:  # from disk, or compiled now if no other process could write there
        _loops(wide, which)
    return time.perf_counter() - began


def _start_compiling(real: str, which: str) -> subprocess.Popen[bytes] | None:
    """A process that compiles a loop; None if there is no core for it or the loop is compiled already."""
    if usable() < 2 or (real, which) in _READY or not sys.executable:
        return None
    code = "import sys; sys.path[:] = sys.argv[3:]\nfrom regard.kernels.cpu_additive import _numba as loops\n"
    command = [sys.executable, "-c", code + "loops.prepare(*sys.argv[1:3])", real, which, *sys.path]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _loops(dtype: torch.dtype, which: str) -> Any:
    with _compiling:
        return _load_loops(str(dtype).removeprefix("torch."), which)


@lru_cache(6)
def _load_loops(real: str, which: str) -> Any:
    """The module of the loops, with this one compiled for a dtype; prints a notice if that takes over a second."""
    notice = threading.Timer(1.0, _say_compiling)
    notice.daemon = True
    notice.start()
    try:
        from regard.kernels.cpu_additive import _numba as loops

        loops.prepare(real, which)
        _READY.add((real, which))
    finally:
        notice.cancel()
    return loops


def _say_compiling() -> None:
    sys.stderr.write(
        "regard: preparing the additive attention kernel (compiled once for this CPU, then cached on disk; "
        "regard.warm_up() does all of it beforehand) ...\n"
    )
