"""The arguments of triton_additive's kernels, and the features or exponentials that both passes start from."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from regard.kernels.gpu import dropout, masks
from regard.kernels.gpu.additive._config import TERMS, TOLERANCE, AdditiveConfig, Tiles, by_series, pad_dim
from regard.kernels.gpu.launch import batch_stride, launchers, per_head, power, row_major, strides
from regard.kernels.gpu.series import SERIES
from regard.score.terms import Problem

DOC_ROWS, DOC_STEP = 32, 128  # rows per span as in the kernels, at most a block; and the granularity of spans
TERM_NAMES = ["key", "bias", "bias_b", "bias_h", "bias_i", "bias_j"]
TERM_NAMES += ["table", "table_b", "table_h", "table_i", "reach", "slope"]


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
    """A problem as arguments of the kernels."""

    def __init__(self, p: Problem, config: AdditiveConfig, exact: Tiles) -> None:
        (tanh,) = p.terms.tanhs
        assert tanh.b is not None
        self.p, self.config, self.exact, self.kernels = p, config, exact, _kernels()
        self.series = by_series(p)
        self.a, self.b, self.v = row_major(tanh.a), row_major(tanh.b), row_major(p.v)
        self.dims, self.value_dims = tanh.a.shape[-1], p.v.shape[-1]
        self.padded_dims = pad_dim(self.dims, 32)
        self.padded_values = power(self.value_dims, 16)
        self.rows, self.keys = pad_dim(p.queries, config.pad_queries), pad_dim(p.keys, config.pad_keys)
        self.mask, self.dropout = masks.arguments(p), dropout.arguments(p)

    def setup(self) -> None:
        """Compute what depends on the range of the data, and the weights in float32, padded."""
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

    def spans(self, *, by_keys: bool) -> dict[str, Any]:
        """The spans of documents per DOC_ROWS queries (or keys), for blocks of any size."""
        return masks.spans(self.p, DOC_ROWS, DOC_STEP, by_keys=by_keys)

    def sizes(self) -> dict[str, Any]:
        p = self.p
        return {
            "H": p.heads, "G": p.heads // p.kv_heads, "L": p.queries, "S": p.keys,
            "LP": self.rows, "SP": self.keys, "D": self.dims,
            "w_b": batch_stride(self.w), "w_h": 0 if self.w.shape[1] == 1 else self.w.stride(1),
        }  # fmt: skip

    def values(self) -> dict[str, Any]:
        return {"DV": self.value_dims, "DVP": self.padded_values, **strides("v_b v_h v_s", self.v)}

    def terms(self, poison: bool) -> dict[str, Any]:
        """The other terms. With ``poison``, bad keys become NaN in the key term, and bad rows NaN in ``row``."""
        p, shape = self.p, (self.p.batch, self.p.heads, self.p.queries)
        terms: dict[str, Any] = dict.fromkeys(TERM_NAMES)
        for term in p.terms.keys:
            assert term.c is not None
            terms["key"] = term.c[..., 0].to(torch.float32).contiguous()
        if poison:
            zero = torch.zeros((), device=p.device)
            if p.bad_keys is not None:
                key = zero if terms["key"] is None else terms["key"]
                terms["key"] = key.masked_fill(p.bad_keys, torch.nan).contiguous()
            terms["row"] = None if p.bad_rows is None else zero.masked_fill(p.bad_rows, torch.nan).contiguous()
        for bias_term in p.terms.biases:
            bias = bias_term.bias.expand(*shape, p.keys)
            terms |= {"bias": bias, "bias_j": bias.stride(3), **strides("bias_b bias_h bias_i", bias)}
        for offset_term in p.terms.offsets:
            table = row_major(offset_term.table).expand(*shape, -1)
            terms |= {"table": table, "reach": offset_term.reach, **strides("table_b table_h table_i", table)}
            terms["slope"] = per_head(offset_term.slope, p)
        return terms

    def precision(self) -> str:
        """float32 products from three tf32 products; half precision is multiplied directly."""
        return "tf32x3" if self.v.dtype == torch.float32 else "tf32"

    # --- what both passes start from ---

    def forms(self) -> tuple[bool, ...]:
        """The kernels to launch, of the series and of the fractions; the device decides which one returns at once."""
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

    def score_arguments(self, series: bool) -> dict[str, Any]:
        """The arguments from which kernels compute scores."""
        x, y = self.features if series else self.across
        return {"x": x, "y": y, "w": self.w, "omega": self.omega, "setting": self.params, "GROUP": self.exact.group}

    def ahead(self, rows: int) -> int:
        """The number of cache lines of a tile of exponentials, as a power of two."""
        return power(rows * self.padded_dims // 32)


def _rows(x: Tensor) -> tuple[int, ...]:
    """Heads, length, total number of rows, and strides."""
    return x.shape[1], x.shape[2], x.shape[0] * x.shape[1] * x.shape[2], *x.stride()[:3]
