"""Additive attention on a GPU, fused, forward and backward, in O(n) memory.

float32 is computed by exact fractions, Σ_d w_d tanh(a_d + b_d) = Σ_d w_d − 2 Σ_d w_d / (1 + e^{2a_d} e^{2b_d}). The
weight goes into the denominator: with W = max|w|, u = w / W, a power of two c, B = e^{2b} and, made once per query,
α = c e^{2a} / u and ω = c / u, a fraction is w / (1 + AB) = W c / y with y = ω + α B. Four have one reciprocal:

    1/y0 + 1/y1 + 1/y2 + 1/y3 = ((y0 + y1) y2 y3 + (y2 + y3) y0 y1) / (y0 y1 y2 y3),   12 operations in all

c keeps the products within float32's range (see ``setup``); a weight below 2^-32 of its head's largest counts as that.

Half types run on the tensor cores: tanh is a sum of M sines (``_tanh_series``), sin(ω(a + b)) splits into sin·cos +
cos·sin, and the score becomes a dot product of 2·M·D features per query and per key. How many terms the data's range
needs is decided on the device, without waiting for it; where even 16 do not reach, the fractions run.

Up to FEW queries, as in a decoding step, every key and value is read once: parts of the keys go to different programs,
each with its own softmax, and a second kernel joins these. This is exact in every type, by an exponential of each sum.

Ranges, with R = max|a| + max|b|: the series reaches R = 26.65 for bfloat16 (error of tanh at most 0.004, less for
R < 10) and R = 23.7 for float16 (0.002). The fractions are exact for all numbers: four to a reciprocal up to R = 20
(9.7 if some weights are next to nothing), two up to R = 41 (30), by an exponential of each sum beyond.

What bounds the fractions: an H200 has 132 multiprocessors, each issuing 4 instructions for 32 lanes per cycle, at 1.755
GHz. Per pair and dim, of the inner loops' machine code at d = 64, and the least time for 16 heads · 2048² · 64 of them:

    kernel                       instructions  multiply-add  reciprocals  loads   at least
    forward                              3.78           3.0         0.25   0.44    0.55 ms
    score_gradients                      3.78           3.0         0.25   0.44    0.55 ms
    pair_gradients, queries              5.97           4.5         0.50   0.19    0.87 ms
    pair_gradients, keys and w           6.56           5.5         0.50   0.19    0.95 ms

Softmax and the products with the values come on top. What tiles need of memory is asked for one tile ahead.

Here is what the kernels (``_triton_additive``) are given. The workspace of the backward pass holds dS for as many heads
and keys as fit into WORKSPACE bytes.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from regard.kernels import _dropout, _op
from regard.kernels._additive import readable, refuses_terms
from regard.kernels._launch import launchers
from regard.kernels._tanh_series import SERIES
from regard.mask import And, Causal, Documents, Grid, Lengths, Mask, Prefix, Window
from regard.terms import BiasTerm, KeyTerm, OffsetTerm, Problem, TanhTerm, Term, Terms

NAME = "triton_additive"
WORKSPACE = 256 * 2**20  # bytes of dS held at once
TERMS = 16  # most terms of the series, as in the kernels
FEW = 4  # queries up to which the keys are split among programs
MOST_HIDDEN, MOST_VALUES = 512, 256
FAR = 2**29  # windows reach no further
DOC_ROWS, DOC_STEP = 32, 128  # rows as in the kernels, no more than any block has; and how fine spans are cut
TOLERANCE = {torch.bfloat16: 4e-3, torch.float16: 2e-3}  # of tanh by the series

_MISSING = importlib.util.find_spec("triton") is None


def interpreted() -> bool:
    """Does Triton run its kernels in Python, for tests without a GPU?"""
    return os.environ.get("TRITON_INTERPRET") == "1"


def refuses(problem: Problem) -> str | None:
    p, terms = problem, problem.terms
    if p.device.type != "cuda" and not (interpreted() and p.device.type == "cpu"):
        return f"it runs on a CUDA GPU, not on {p.device.type}"
    if why := refuses_terms(terms):
        return why
    if p.dtype == torch.float64:
        return "it computes in float32"
    if not p.batch or not p.queries or not p.keys or not p.v.shape[-1] or not terms.tanhs[0].a.shape[-1]:
        return "the problem is empty"
    if terms.tanhs[0].a.shape[-1] > MOST_HIDDEN or p.v.shape[-1] > MOST_VALUES:
        return f"it takes at most {MOST_HIDDEN} hidden and {MOST_VALUES} value dims"
    if p.rows is not None:
        return "it takes whole sequences of queries"
    seen = _Seen.of(p.mask)
    if isinstance(seen, str):
        return seen
    if _MISSING:
        return "triton is not installed (pip install triton)"
    if p.device.type == "cuda" and (torch.version.hip or torch.cuda.get_device_capability(p.device) < (8, 0)):
        return "it needs an NVIDIA GPU of compute capability 8.0 or later"
    return None


def memory_bytes(problem: Problem) -> int:
    """What the forward pass needs beyond its inputs: context, logsumexp, exponentials and features."""
    p = problem
    (tanh,) = p.terms.tanhs
    rows, keys = p.batch * p.heads * p.queries, p.batch * p.kv_heads * p.keys
    dims = _padded(tanh.a.shape[-1], 32)
    features = 4 * TERMS * dims if _by_series(p) else 0
    return rows * (4 * p.v.shape[-1] + 4) + (rows + keys) * (4 * dims + features)


def error_bound(problem: Problem) -> float:
    """Of each tanh, so per unit of Σ|w| in the score."""
    return TOLERANCE[problem.dtype] if _by_series(problem) else 0.0


def run(problem: Problem) -> tuple[Tensor, Tensor]:
    return _op.run(NAME, readable(problem, exponentials=problem.queries <= FEW))


# --- block sizes ---


@dataclass(frozen=True)
class Tiles:
    """Queries × keys of a tile, hidden dims or features per step; warps, pipeline stages, registers a thread.

    group: how many fractions share a reciprocal, 4, or 3 (3, 3 and 2 of every eight).
    """

    queries: int
    keys: int
    step: int
    warps: int
    stages: int = 1
    registers: int | None = None
    group: int = 4


@dataclass(frozen=True)
class Rows:
    """Rows × hidden dims of a block, steps along the other side (and terms at once)."""

    rows: int
    dims: int
    warps: int
    step: int = 1
    pair: int = 1
    stages: int = 1
    registers: int | None = None


def _options(x: Tiles | Rows) -> dict[str, int]:
    """How the compiler is to build the kernel."""
    options = {"num_warps": x.warps, "num_stages": x.stages}
    return options if x.registers is None else {**options, "maxnreg": x.registers}


@dataclass(frozen=True)
class Config:
    forward_exact: Tiles
    forward_series: Tiles
    scores_exact: Tiles
    scores_series: Tiles
    pairs: Rows
    features: Rows

    def __post_init__(self) -> None:
        tiles, sums = self.scores_series, self.features
        assert sums.step <= min(tiles.queries, tiles.keys), "dS is not written in the last steps"

    @property
    def pad_queries(self) -> int:
        tiles = (self.forward_exact, self.forward_series, self.scores_exact, self.scores_series)
        return max(*(t.queries for t in tiles), self.pairs.rows, self.features.rows)

    @property
    def pad_keys(self) -> int:
        tiles = (self.forward_exact, self.forward_series, self.scores_exact, self.scores_series)
        return max(*(t.keys for t in tiles), self.pairs.rows, self.features.rows)


def configure(problem: Problem) -> Config:
    """Block sizes by shape alone; benchmarks/gpu_additive.py tries others."""
    dims, value_dims = _padded(problem.terms.tanhs[0].a.shape[-1], 32), problem.v.shape[-1]
    cols = 64 if dims % 64 == 0 else 32
    if problem.device.type == "cpu":  # the interpreter: small blocks, so that small problems have several
        tiles = Tiles(32, 32, 32, 4)
        return Config(tiles, tiles, tiles, tiles, Rows(32, 32, 4), Rows(32, 32, 4, 32, 2))
    wide = value_dims > 128
    medium = value_dims > 64 or problem.mask is not None or len(problem.terms.terms) > 1 or problem.dropout > 0
    if _little_memory(problem.device):
        small = Tiles(64, 32 if wide else 64, 32, 4, 2)
        return Config(_EXACT, small, _EXACT, small, Rows(64, cols, 4, registers=128), Rows(64, cols, 4, 32, 1, 2))
    return Config(
        forward_exact=_EXACT if wide else Tiles(64, 32, 8, 4, 1, 128) if medium else Tiles(128, 64, 8, 8),
        forward_series=Tiles(64, 128, 64, 4, 3) if wide else Tiles(128, 128 if medium else 256, 64, 8, 3),
        scores_exact=_EXACT if wide else Tiles(64, 32, 8, 4, 1, 168) if medium else Tiles(64, 64, 8, 4),
        scores_series=Tiles(64, 64, 64, 4, 3) if wide else Tiles(128, 64, 64, 8 if medium else 4, 3),
        pairs=Rows(32, cols, 4),
        features=Rows(128, cols, 8, 64, 1, 4),
    )


_EXACT = Tiles(64, 32, 8, 4)


@lru_cache(16)
def _little_memory(device: torch.device) -> bool:
    """Is it one of the GPUs whose programs can have 99 KiB of shared memory, not 163 KiB or more?"""
    major, minor = torch.cuda.get_device_capability(device)
    return major == 12 or (major, minor) in ((8, 6), (8, 9))


# --- masks ---


@dataclass(frozen=True)
class _Seen:
    """A mask as the kernels know it: all of these hold."""

    left: int | None = None
    right: int | None = None
    keys: int | None = None
    lengths: tuple[Tensor, ...] = ()
    documents: Documents | None = None

    @staticmethod
    def of(mask: Mask | None) -> _Seen | str:
        """The same as conditions that hold together, or why that cannot be."""
        if mask is None:
            return _Seen()
        if isinstance(mask, Causal):
            return _Seen(right=0)
        if isinstance(mask, Window):
            return _Seen(left=mask.left, right=mask.right)
        if isinstance(mask, (Lengths, Prefix)):
            return _Seen(keys=mask.ints[0]) if mask.static else _Seen(lengths=mask.tensors)
        if isinstance(mask, Documents):
            return _Seen(documents=mask)
        if not isinstance(mask, And):
            return f"it joins masks by & only, and knows no {type(mask).__name__}"
        one, two = (_Seen.of(part) for part in mask.parts)
        if isinstance(one, str) or isinstance(two, str):
            return one if isinstance(one, str) else two
        if one.documents is not None and two.documents is not None:
            return "it takes one Documents mask"
        return _Seen(
            _least(one.left, two.left),
            _least(one.right, two.right),
            _least(one.keys, two.keys),
            one.lengths + two.lengths,
            one.documents if two.documents is None else two.documents,
        )

    @property
    def any(self) -> bool:
        return self != _Seen()


def _least(x: int | None, y: int | None) -> int | None:
    return x if y is None else y if x is None else min(x, y)


def _spans(documents: Documents, p: Problem, along: int) -> Tensor:
    """For every DOC_ROWS queries (along 0) or keys (1): the keys (queries) in between which their documents lie."""
    blocks = (DOC_STEP, DOC_ROWS) if along else (DOC_ROWS, DOC_STEP)
    empty, _ = documents.tiles(Grid(p.row_index(), p.positions(), p.keys, *blocks))
    seen = ~empty[:, 0].transpose(-1, -2) if along else ~empty[:, 0]  # [B|1, blocks, steps of the other side]
    first = seen.to(torch.int8).argmax(-1)
    last = seen.shape[-1] - seen.flip(-1).to(torch.int8).argmax(-1)
    spans: Tensor = torch.stack((first, last), -1) * seen.any(-1, keepdim=True) * DOC_STEP
    return spans.to(torch.int32)


# --- the kernel behind the operator ---


class TritonAdditive:
    """The kernel behind the operator."""

    wide_out = True

    def __init__(self, config: Config | None = None) -> None:
        self.config = config

    def forward(self, p: Problem) -> tuple[Tensor, Tensor]:
        with _on(p.device):
            config = self.config or configure(p)
            given = _Given(p, config, config.forward_exact)
            out = torch.empty(p.batch, p.heads, p.queries, p.v.shape[-1], dtype=torch.float32, device=p.device)
            lse = torch.empty(p.batch, p.heads, p.queries, dtype=torch.float32, device=p.device)
            if p.queries <= FEW:
                given.few(out, lse)
                return out, lse
            given.setup()
            given.prepare(across=True)
            for series in given.forms():
                given.forward(out, lse, series)
            return out, lse

    def backward(self, p: Problem, out: Tensor, lse: Tensor, grad: Tensor) -> Problem:
        with _on(p.device):
            config = self.config or configure(p)
            given = _Given(p, config, config.scores_exact)
            given.setup()
            grad = grad.to(p.dtype)  # it comes in the wide type of the context, but holds what v's dtype can
            return _Backward(given, out.contiguous(), lse.contiguous(), grad.contiguous()).run()


_op.KERNELS[NAME] = TritonAdditive()


def _on(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


@lru_cache(1)
def _kernels() -> Any:
    from regard.kernels import _triton_additive as kernels

    return launchers(kernels)


@lru_cache(16)
def _series(device: torch.device, tolerance: float) -> Tensor:
    """Rows (R, M, …; frequencies from 16; coefficients from 32) of 64 numbers."""
    rows = torch.zeros(len(SERIES[tolerance]), 64)
    for row, (reach, omega, c) in zip(rows, SERIES[tolerance], strict=True):
        row[0], row[1] = reach, len(omega)
        row[16 : 16 + len(omega)], row[32 : 32 + len(c)] = torch.tensor(omega), torch.tensor(c)
    return rows.to(device)


def _by_series(p: Problem) -> bool:
    """Does the series run, if the range of the data allows it? For few queries it would not be worth its features."""
    return p.dtype in TOLERANCE and p.terms.tanhs[0].form != "exact" and p.queries > FEW


def _padded(n: int, block: int) -> int:
    return -(-n // block) * block


def _row_major(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


class _Given:
    """A problem as the kernels take it."""

    def __init__(self, p: Problem, config: Config, exact: Tiles) -> None:
        (tanh,) = p.terms.tanhs
        assert tanh.b is not None
        self.p, self.config, self.exact, self.kernels = p, config, exact, _kernels()
        self.series = _by_series(p)
        self.a, self.b, self.v = _row_major(tanh.a), _row_major(tanh.b), _row_major(p.v)
        self.dims, self.value_dims = tanh.a.shape[-1], p.v.shape[-1]
        self.padded_dims = _padded(self.dims, 32)
        self.padded_values = max(16, _power(self.value_dims))
        self.rows, self.keys = _padded(p.queries, config.pad_queries), _padded(p.keys, config.pad_keys)
        self.mask = self._mask()

    def setup(self) -> None:
        """What depends on the data's range, and the weights as the kernels read them."""
        p, w, cols = self.p, self.p.terms.tanhs[0].w, _power(self.dims)
        programs = 2 if p.device.type == "cpu" else 128
        found = torch.empty(2 * programs, dtype=torch.float32, device=p.device)
        self.kernels.ranges[(2 * programs,)](
            self.a, self.b, found, *_rows(self.a), *_rows(self.b),
            D=self.dims, COLS=cols, ROWS=max(4, 2048 // cols), PROGRAMS=programs,
        )  # fmt: skip
        self.params = torch.empty(64, dtype=torch.float32, device=p.device)
        self.w = torch.empty(*w.shape[:2], self.padded_dims, dtype=torch.float32, device=p.device)
        table = _series(p.device, TOLERANCE.get(p.dtype, 4e-3))
        self.kernels.setup[(1,)](
            found, table, self.params, w, self.w, w.shape[1], w.shape[0] * w.shape[1], *w.stride(), PROGRAMS=programs,
            ROWS=len(table), EXACT=not self.series, D=self.dims, DP=self.padded_dims, COLS=_power(self.padded_dims),
            GROUP=self.exact.group,
        )  # fmt: skip

    # --- arguments ---

    def _mask(self) -> dict[str, Any]:
        p = self.p
        seen = _Seen.of(p.mask)
        assert not isinstance(seen, str), seen
        self.masked = seen.any
        lengths = None
        for n in seen.lengths:
            n = n.clamp(0, p.keys).to(torch.int32).expand(p.batch)
            lengths = n if lengths is None else torch.minimum(lengths, n)
        self.documents: dict[str, Any] = dict.fromkeys(("q_docs", "k_docs"))
        self.documents |= {"q_docs_b": 0, "k_docs_b": 0}
        self.key_spans: Tensor | None = None
        self.query_spans: Tensor | None = None
        if seen.documents is not None:
            q, k = (x.contiguous() for x in seen.documents.tensors)
            self.documents = {"q_docs": q, "k_docs": k, "q_docs_b": _batch_stride(q), "k_docs_b": _batch_stride(k)}
            self.key_spans, self.query_spans = (_spans(seen.documents, p, along) for along in (0, 1))
        offsets = p.offset.to(torch.int32).expand(p.batch).contiguous() if isinstance(p.offset, Tensor) else None
        return {
            "keys": p.keys if seen.keys is None else max(0, min(p.keys, seen.keys)),
            "lengths": None if lengths is None else lengths.contiguous(),
            "offsets": offsets,
            "offset": p.offset if isinstance(p.offset, int) else 0,
            "left": None if seen.left is None else min(seen.left, FAR),
            "right": None if seen.right is None else min(seen.right, FAR),
        }

    def spans(self, name: str, spans: Tensor | None) -> dict[str, Any]:
        return {name: spans, f"{name}_b": 0 if spans is None else _batch_stride(spans)}

    def sizes(self) -> dict[str, Any]:
        p = self.p
        return {
            "H": p.heads, "G": p.heads // p.kv_heads, "L": p.queries, "S": p.keys,
            "LP": self.rows, "SP": self.keys, "D": self.dims,
            "w_b": _batch_stride(self.w), "w_h": 0 if self.w.shape[1] == 1 else self.w.stride(1),
        }  # fmt: skip

    def values(self) -> dict[str, Any]:
        v = self.v
        return {"DV": self.value_dims, "DVP": self.padded_values, **_strides("v", v)}

    def terms(self, poison: bool) -> dict[str, Any]:
        """The other terms. If asked for, what a query must not see is NaN: a key term, and one number per query."""
        p = self.p
        key, row = None, None
        for term in p.terms.keys:
            assert term.c is not None
            key = term.c[..., 0].to(torch.float32)
        if poison and p.bad_keys is not None:
            zero = torch.zeros((), device=p.device) if key is None else key
            key = zero.masked_fill(p.bad_keys, torch.nan)
        if poison and p.bad_rows is not None:
            row = torch.zeros((), device=p.device).masked_fill(p.bad_rows, torch.nan)
        arguments: dict[str, Any] = {"key": None if key is None else key.contiguous()}
        if poison:
            arguments["row"] = row
        names = (
            "bias",
            "bias_b",
            "bias_h",
            "bias_i",
            "bias_j",
            "table",
            "table_b",
            "table_h",
            "table_i",
            "reach",
            "slope",
        )
        arguments |= dict.fromkeys(names)
        for bias_term in p.terms.biases:
            bias = bias_term.bias.expand(p.batch, p.heads, p.queries, p.keys)
            arguments |= dict(zip(names[:5], (bias, *bias.stride()), strict=True))
        for offset_term in p.terms.offsets:
            table = _row_major(offset_term.table)
            reach = offset_term.reach
            table = table.expand(p.batch, p.heads, p.queries, -1)
            arguments |= dict(zip(names[5:10], (table, *table.stride()[:3], reach), strict=True))
            if offset_term.slope is not None:
                arguments["slope"] = offset_term.slope.to(torch.float32).expand(p.batch, p.heads).contiguous()
        return arguments

    def dropout(self) -> dict[str, Any]:
        """One hash key per head, as kernels/_dropout.py makes it."""
        p = self.p
        if p.dropout == 0:
            return {"drop": None, "THRESHOLD": 0, "SCALE": 1.0}
        assert p.seed is not None
        mix, low = _dropout.mix, 0xFFFFFFFF
        x = mix((p.seed & low) ^ mix((p.seed >> 32) & low))[:, None]
        x = mix(x ^ mix(torch.arange(p.batch, device=p.device)[:, None] + 0x9E3779B9))
        x = mix(x ^ mix(_dropout.head_index(p.first_head, p.heads, p.device) + 0x85EBCA6B))
        x = torch.where(x >= 2**31, x - 2**32, x).to(torch.int32)
        threshold = min(round(p.dropout * 2**32), 2**32 - 1)
        return {"drop": x.contiguous(), "THRESHOLD": threshold, "SCALE": 1 / (1 - p.dropout)}

    def sink(self) -> Tensor | None:
        p = self.p
        return None if p.sink is None else p.sink.to(torch.float32).expand(p.batch, p.heads).contiguous()

    def precision(self) -> str:
        """Three tf32 products make a float32 one; half types are multiplied as they are."""
        return "tf32x3" if self.v.dtype == torch.float32 else "tf32"

    # --- what both passes start from ---

    def forms(self) -> tuple[bool, ...]:
        """Which kernels are launched, the series' and the fractions'; one of them does nothing."""
        return (True, False) if self.series else (False,)

    def prepare(self, *, across: bool, along: bool = False) -> None:
        """Features, or exponentials as [B, heads, n / tile, DP, tile] and [B, heads, n, DP], of queries and keys."""
        p, dims = self.p, self.padded_dims
        sides = ((self.a, self.rows), (self.b, self.keys))

        def room(wanted: bool, width: int, dtype: torch.dtype) -> list[Tensor | None]:
            if not wanted:
                return [None, None]
            return [torch.empty(*x.shape[:2], n, width, dtype=dtype, device=p.device) for x, n in sides]

        self.features = room(self.series, 2 * TERMS * dims, torch.float16)
        self.across, self.along = (room(wanted, dims, torch.float32) for wanted in (across, along))
        self.omega = torch.empty(p.batch, p.heads, dims, dtype=torch.float32, device=p.device)
        programs = [x.shape[0] * x.shape[1] * (n // 32) * (dims // 32) for x, n in sides]
        sizes = self.sizes()
        self.kernels.prepare[(sum(programs),)](
            self.a, self.b, self.w, self.omega, self.params, *self.features, *self.across, *self.along, programs[0],
            p.heads, p.queries, self.rows, *self.a.stride()[:3], p.kv_heads, p.keys, self.keys, *self.b.stride()[:3],
            sizes["w_b"], sizes["w_h"], D=self.dims, DP=dims, A_TILE=self.exact.queries, B_TILE=self.exact.keys,
            ROWS=32, COLS=32,
        )  # fmt: skip

    def scored(self, series: bool) -> dict[str, Any]:
        """What scores are made of."""
        x, y = self.features if series else self.across
        return {"x": x, "y": y, "w": self.w, "omega": self.omega, "setting": self.params, "GROUP": self.exact.group}

    def forward(self, out: Tensor, lse: Tensor, series: bool) -> None:
        p, tiles = self.p, self.config.forward_series if series else self.exact
        grid = (p.batch * p.heads * -(-p.queries // tiles.queries),)
        self.kernels.forward[grid](
            v=self.v, out=out, lse=lse, sink=self.sink(), **self.scored(series), **self.terms(True), **self.mask,
            **self.documents, **self.spans("key_spans", self.key_spans), **self.dropout(), **self.sizes(),
            **self.values(), SERIES=series, PRECISION=self.precision(), DP=self.padded_dims, BM=tiles.queries,
            BN=tiles.keys, STEP=tiles.step, AHEAD=self.ahead(tiles.keys), **_options(tiles),
        )  # fmt: skip

    def few(self, out: Tensor, lse: Tensor) -> None:
        """Few queries: every key is read once, by one of many programs, and their results are joined."""
        p, w = self.p, self.p.terms.tanhs[0].w
        block = 32 if p.device.type == "cpu" else 64
        splits = self._splits(block)
        rows = p.batch * p.heads * p.queries
        parts = torch.empty(rows, splits, self.value_dims, dtype=torch.float32, device=p.device)
        tops, totals = (torch.empty(rows, splits, dtype=torch.float32, device=p.device) for _ in range(2))
        sizes = {"H": p.heads, "G": p.heads // p.kv_heads, "L": p.queries, "S": p.keys, "splits": splits}
        w_b, w_h, w_d = _batch_stride(w), 0 if w.shape[1] == 1 else w.stride(1), w.stride(2)
        self.kernels.few[(p.batch * p.heads * splits,)](
            a=self.a, y=self.b, w=w, v=self.v, parts=parts, tops=tops, totals=totals, **self.terms(True), **self.mask,
            **self.documents, **self.spans("key_spans", self.key_spans), **self.dropout(), **sizes,
            **_strides("a", self.a), **_strides("b", self.b), w_b=w_b, w_h=w_h, w_d=w_d, **self.values(), D=self.dims,
            COLS=max(16, _power(self.dims)), QUERIES=p.queries, PRECISION=self.precision(), BM=16, BN=block,
            EXPONENTIAL=p.terms.tanhs[0].exponential,
        )  # fmt: skip
        self.kernels.join_splits[(rows,)](
            parts, tops, totals, out, lse, self.sink(), p.queries, self.value_dims, splits,
            DVP=self.padded_values, SPLITS=_power(splits),
        )  # fmt: skip

    def _splits(self, block: int) -> int:
        """Parts of the keys: enough programs to keep memory busy, each with a few blocks."""
        p = self.p
        if p.device.type == "cpu":
            return min(3, -(-p.keys // block))
        processors = int(torch.cuda.get_device_properties(p.device).multi_processor_count)
        return max(1, min(-(-p.keys // (2 * block)), 8 * processors // (p.batch * p.heads), 256))

    def ahead(self, rows: int) -> int:
        """Cache lines of a tile of exponentials, as a power of two."""
        return _power(rows * self.padded_dims // 32)


def _power(n: int) -> int:
    """The next power of two."""
    return 1 << (n - 1).bit_length()


def _rows(x: Tensor) -> tuple[int, ...]:
    """Heads, length, rows in all, and strides."""
    return x.shape[1], x.shape[2], x.shape[0] * x.shape[1] * x.shape[2], *x.stride()[:3]


def _batch_stride(x: Tensor) -> int:
    return 0 if x.shape[0] == 1 else x.stride(0)


def _strides(name: str, x: Tensor) -> dict[str, int]:
    """Of batch, heads and length."""
    return {f"{name}_{dim}": x.stride(k) for k, dim in enumerate("bhs" if name == "v" else "bhn")}


@dataclass(frozen=True)
class _Pass:
    """Some heads of some batch items, and some keys: what the workspace holds at once."""

    items: slice
    heads: slice
    first: int
    keys: int  # padded

    def count(self) -> int:
        return int((self.items.stop - self.items.start) * (self.heads.stop - self.heads.start))


class _Backward:
    """Gradients, added up over passes."""

    def __init__(self, given: _Given, out: Tensor, lse: Tensor, grad: Tensor) -> None:
        self.given, self.p, self.grad = given, given.p, grad
        p, device = given.p, given.p.device
        self.delta, self.lse2, norm = (torch.empty_like(lse) for _ in range(3))
        n = lse.numel()
        given.kernels.rows[(-(-n // 32),)](
            out, grad, lse, self.delta, self.lse2, norm, n, given.value_dims, DVP=given.padded_values, ROWS=32
        )
        self.norms = given.params, given.params  # nobody asks
        if given.series:
            self.norms = norm.amax(), torch.linalg.vector_norm(given.v, dim=-1, dtype=torch.float32).amax()
        self.terms, self.dropout = given.terms(False), given.dropout()
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

    def passes(self, itemsize: int, block: int) -> Iterator[_Pass]:
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
                yield _Pass(items, heads, first, min(keys, given.keys - first))

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
            if given.masked:  # tiles that are skipped must not be read as something
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
        """In how many parts the queries are taken, so that a few heads and keys keep the whole GPU busy."""
        if self.p.device.type == "cpu":
            return 1 + self.p.heads % 2  # so that tests see both
        processors = int(torch.cuda.get_device_properties(self.p.device).multi_processor_count)
        return max(1, min(2 * processors // programs, self.p.queries // 256))

    def room(self, shares: int, part: _Pass, into: Tensor) -> Tensor:
        """Where a kernel writes gradients of keys: where they belong, or one by one if there are several shares."""
        if shares == 1:
            return into
        return torch.empty(shares, part.count(), part.keys, *into.shape[3:], device=into.device)

    def add_shares(self, form: Any, shares: int, part: _Pass, first_bh: int, values: Tensor, into: Tensor) -> None:
        if shares == 1:
            return
        given, width = self.given, into[0, 0, 0].numel()
        grid = (part.count() * -(-part.keys * width // 1024),)
        given.kernels.add_shares[grid](
            values, given.params, into, self.p.keys, width, part.first, part.keys, first_bh, part.count(),
            SHARES=shares, **form, BLOCK=1024,
        )  # fmt: skip

    def _scores(self, form: Any, part: _Pass, ds: Tensor, common: Any) -> None:
        given = self.given
        tiles = given.config.scores_series if form["SERIES"] else given.exact
        programs = part.count() * (part.keys // tiles.keys)
        shares = self.shares(programs)
        dv, dkey = (self.room(shares, part, into) for into in (self.dv, self.dkey))
        given.kernels.score_gradients[(programs * shares,)](
            v=given.v, grad=self.grad, lse2=self.lse2, delta=self.delta, g_norm=self.norms[0],
            v_norm=self.norms[1], ds=ds, dv_out=dv, dkey=dkey, **given.scored(form["SERIES"]), **self.terms,
            **given.documents,
            **given.spans("query_spans", given.query_spans), **self.dropout, **given.values(), **common, **form,
            PRECISION=given.precision(), SHARES=shares, BM=tiles.queries, BN=tiles.keys, STEP=tiles.step,
            AHEAD=given.ahead(tiles.queries), **_options(tiles),
        )  # fmt: skip
        for values, into in ((dv, self.dv), (dkey, self.dkey)):
            self.add_shares(form, shares, part, common["first_bh"], values, into)

    def _sums(self, form: Any, part: _Pass, ds: Tensor, side: int, common: Any) -> None:
        given, count, dims = self.given, part.count(), self.given.padded_dims
        series = form["SERIES"]
        sums = given.config.features if series else given.config.pairs
        blocks = (given.rows if side == 0 else part.keys) // sums.rows
        programs = count * blocks * (dims // sums.dims)
        shares = 1 if side == 0 else self.shares(programs)
        own, other = (given.features if series else given.along)[:: 1 if side == 0 else -1]
        out = self.da if side == 0 else self.room(shares, part, self.db)
        weighs = side == (0 if series else 1)  # which of the sides sums up the gradient of the weights too
        # What does not run leaves zeros.
        dw = torch.zeros(shares, count, blocks, dims, device=self.p.device) if weighs else given.params
        arguments = {
            **common, "setting": given.params, "w": given.w, "ds": ds, "other": other, "out": out, "dw": dw,
            "SIDE": side, "SHARES": shares,
            **given.spans("spans", given.key_spans if side == 0 else given.query_spans), "ROWS": sums.rows,
            **_options(sums),
        }  # fmt: skip
        if series:
            x = given.a if side == 0 else given.b
            given.kernels.feature_gradients[(programs * shares,)](
                x=x, **_strides("x", x), g_norm=self.norms[0], v_norm=self.norms[1], SCALE=self.dropout["SCALE"],
                COLS=sums.dims, PAIR=sums.pair, STEP=sums.step, **arguments,
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

    def _others(self, form: Any, part: _Pass, ds: Tensor, first_bh: int) -> None:
        """Gradients of bias and offset terms."""
        given, p = self.given, self.p
        last = min(part.first + part.keys, p.keys)
        for into in self.dbias:
            if p.need_bias_gradient:
                self._add_bias(form["SERIES"], part, ds[:, : p.queries, : last - part.first], into)
        for offset_term, table in zip(p.terms.offsets, self.dtable, strict=True):
            given.kernels.table_gradients[(part.count() * (given.rows // 32),)](
                ds, given.params, *self.norms, table, self.dslope[0] if self.dslope else None, given.mask["offsets"],
                given.mask["offset"], p.heads, p.queries, given.rows, p.keys, table.shape[-1], offset_term.reach,
                part.first, part.keys, first_bh, **form, SCALE=self.dropout["SCALE"], ROWS=32, COLS=32,
            )  # fmt: skip

    def _add_bias(self, series: bool, part: _Pass, ds: Tensor, into: Tensor) -> None:
        given = self.given
        ds = ds.unflatten(0, (part.items.stop - part.items.start, -1)).float()
        if series:
            bound = self.norms[0].sqrt() * self.norms[1] * (2 * self.dropout["SCALE"])
            ds = ds * torch.where(bound > 0, bound / 8192, 1.0)
        if given.series:
            ds = torch.where((given.params[0] != 0) == series, ds, 0.0)
        cuts = (part.items, part.heads, slice(None), slice(part.first, part.first + ds.shape[-1]))
        into = into[tuple(cut if n != 1 else slice(None) for cut, n in zip(cuts, into.shape, strict=True))]
        into += _sum_to(ds, into.shape)

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
                terms.append(TanhTerm(self.da, _sum_to(self.dw[..., : given.dims], tanh.w.shape), db))
            elif isinstance(term, OffsetTerm):
                slope = None if term.slope is None else _sum_to(self.dslope[0].sum(-1), term.slope.shape)
                terms.append(OffsetTerm(_sum_to(self.dtable[0], term.table.shape), slope))
            elif isinstance(term, BiasTerm):
                terms.append(BiasTerm(self.dbias[0]))
            elif isinstance(term, KeyTerm):
                terms.append(KeyTerm(dkey[..., None]))
        sink = None
        if p.sink is not None:
            share = torch.exp2(p.sink.to(torch.float32)[..., None] * 1.4426950408889634 - self.lse2)
            sink = _sum_to(-(share * self.delta).sum(-1), p.sink.shape)
        return replace(p, terms=Terms(tuple(terms), None, None), v=dv, sink=sink)


def _sum_to(x: Tensor, shape: torch.Size) -> Tensor:
    dims = [d for d in range(x.ndim) if shape[d] == 1 and x.shape[d] != 1]
    return x.sum(dims, keepdim=True) if dims else x
