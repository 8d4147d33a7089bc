"""A problem as the kernels of triton_additive take it, with what both passes start from: features or exponentials."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from regard.kernels import _dropout
from regard.kernels.gpu.additive._config import TERMS, TOLERANCE, AdditiveConfig, Tiles, by_series, padded
from regard.kernels.gpu.additive._masks import FAR, AdditiveMask, document_spans
from regard.kernels.gpu.launch import launchers, power
from regard.kernels.gpu.series import SERIES
from regard.score.terms import Problem


@lru_cache(1)
def _kernels() -> Any:
    from regard.kernels.gpu.additive import _device

    return launchers(_device)


@lru_cache(16)
def _series(device: torch.device, tolerance: float) -> Tensor:
    """Rows (R, M, …; frequencies from 16; coefficients from 32) of 64 numbers."""
    rows = torch.zeros(len(SERIES[tolerance]), 64)
    for row, (reach, omega, c) in zip(rows, SERIES[tolerance], strict=True):
        row[0], row[1] = reach, len(omega)
        row[16 : 16 + len(omega)], row[32 : 32 + len(c)] = torch.tensor(omega), torch.tensor(c)
    return rows.to(device)


class AdditiveArguments:
    """A problem as the kernels take it."""

    def __init__(self, p: Problem, config: AdditiveConfig, exact: Tiles) -> None:
        (tanh,) = p.terms.tanhs
        assert tanh.b is not None
        self.p, self.config, self.exact, self.kernels = p, config, exact, _kernels()
        self.series = by_series(p)
        self.a, self.b, self.v = _row_major(tanh.a), _row_major(tanh.b), _row_major(p.v)
        self.dims, self.value_dims = tanh.a.shape[-1], p.v.shape[-1]
        self.padded_dims = padded(self.dims, 32)
        self.padded_values = power(self.value_dims, 16)
        self.rows, self.keys = padded(p.queries, config.pad_queries), padded(p.keys, config.pad_keys)
        self.mask = self._mask()

    def setup(self) -> None:
        """What depends on the data's range, and the weights as the kernels read them."""
        p, w, cols = self.p, self.p.terms.tanhs[0].w, power(self.dims)
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
            ROWS=len(table), EXACT=not self.series, D=self.dims, DP=self.padded_dims, COLS=power(self.padded_dims),
            GROUP=self.exact.group,
        )  # fmt: skip

    # --- arguments ---

    def _mask(self) -> dict[str, Any]:
        p = self.p
        seen = AdditiveMask.of(p.mask)
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
            self.documents = {"q_docs": q, "k_docs": k, "q_docs_b": batch_stride(q), "k_docs_b": batch_stride(k)}
            self.key_spans, self.query_spans = (document_spans(seen.documents, p, along) for along in (0, 1))
        offsets = p.offset[:, 0].to(torch.int32).expand(p.batch).contiguous() if isinstance(p.offset, Tensor) else None
        return {
            "keys": p.keys if seen.keys is None else max(0, min(p.keys, seen.keys)),
            "lengths": None if lengths is None else lengths.contiguous(),
            "offsets": offsets,
            "offset": p.offset if isinstance(p.offset, int) else 0,
            "left": None if seen.left is None else min(seen.left, FAR),
            "right": None if seen.right is None else min(seen.right, FAR),
        }

    def spans(self, name: str, spans: Tensor | None) -> dict[str, Any]:
        return {name: spans, f"{name}_b": 0 if spans is None else batch_stride(spans)}

    def sizes(self) -> dict[str, Any]:
        p = self.p
        return {
            "H": p.heads, "G": p.heads // p.kv_heads, "L": p.queries, "S": p.keys,
            "LP": self.rows, "SP": self.keys, "D": self.dims,
            "w_b": batch_stride(self.w), "w_h": 0 if self.w.shape[1] == 1 else self.w.stride(1),
        }  # fmt: skip

    def values(self) -> dict[str, Any]:
        v = self.v
        return {"DV": self.value_dims, "DVP": self.padded_values, **strides("v", v)}

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
        heads = _dropout.head_index(p.first_head, p.heads, p.device)
        x = _dropout.head_keys(p.seed, torch.arange(p.batch, device=p.device), heads)
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

    def ahead(self, rows: int) -> int:
        """Cache lines of a tile of exponentials, as a power of two."""
        return power(rows * self.padded_dims // 32)


def _row_major(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def _rows(x: Tensor) -> tuple[int, ...]:
    """Heads, length, rows in all, and strides."""
    return x.shape[1], x.shape[2], x.shape[0] * x.shape[1] * x.shape[2], *x.stride()[:3]


def batch_stride(x: Tensor) -> int:
    return 0 if x.shape[0] == 1 else x.stride(0)


def strides(name: str, x: Tensor) -> dict[str, int]:
    """Of batch, heads and length."""
    return {f"{name}_{dim}": x.stride(k) for k, dim in enumerate("bhs" if name == "v" else "bhn")}
