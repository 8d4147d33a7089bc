"""The forward pass of triton_additive: the launches of its kernels."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from regard.kernels.gpu.additive._arguments import AdditiveArguments
from regard.kernels.gpu.additive._config import FEW
from regard.kernels.gpu.launch import options, per_head, power, properties, strides


def run(given: AdditiveArguments, out: Tensor, lse: Tensor) -> None:
    shared = {
        "v": given.v, "sink": per_head(given.p.sink, given.p), "PRECISION": given.precision(), **given.values(),
        **given.terms(poison=True), **given.mask, **given.spans(by_keys=False), **given.dropout,
    }  # fmt: skip
    if given.p.queries <= FEW:
        _few(given, shared, out, lse)
        return
    given.setup()
    given.prepare(across=True)
    for series in given.forms():
        _launch(given, shared, out, lse, series)


def _launch(given: AdditiveArguments, shared: dict[str, Any], out: Tensor, lse: Tensor, series: bool) -> None:
    p, tiles = given.p, given.config.forward_series if series else given.exact
    given.kernels.forward[(p.batch * p.heads * -(-p.queries // tiles.queries),)](
        out=out, lse=lse, **shared, **given.score_arguments(series), **given.sizes(), SERIES=series,
        DP=given.padded_dims, BM=tiles.queries, BN=tiles.keys, STEP=tiles.step, AHEAD=given.ahead(tiles.keys),
        **options(tiles),
    )  # fmt: skip


def _few(given: AdditiveArguments, shared: dict[str, Any], out: Tensor, lse: Tensor) -> None:
    """Few queries: programs split the keys, each read once, and their results are combined."""
    p, w = given.p, given.p.terms.tanhs[0].w
    block = 32 if p.device.type == "cpu" else 64
    splits, rows = _splits(given, block), lse.numel()
    parts, lses = out.new_empty(splits, *out.shape), lse.new_empty(splits, *lse.shape)
    given.kernels.few[(p.batch * p.heads * splits,)](
        a=given.a, y=given.b, w=w, parts=parts, lses=lses, **shared, H=p.heads, G=p.heads // p.kv_heads, L=p.queries,
        S=p.keys, splits=splits, n=rows, **strides("a_b a_h a_n", given.a), **strides("b_b b_h b_n", given.b),
        **strides("w_b w_h", w), w_d=w.stride(2), D=given.dims, COLS=power(given.dims, 16), QUERIES=p.queries, BM=16,
        BN=block, EXPONENTIAL=p.terms.tanhs[0].exponential,
    )  # fmt: skip
    given.kernels.combine[(rows,)](
        parts, lses, out, lse, rows, splits, DV=given.value_dims, BDV=given.padded_values, BS=power(splits, 16)
    )


def _splits(given: AdditiveArguments, block: int) -> int:
    """The number of parts of the keys: enough programs to saturate memory, each with a few blocks."""
    p = given.p
    if p.device.type == "cpu":
        return min(3, -(-p.keys // block))
    processors = int(properties(p.device).multi_processor_count)
    return max(1, min(-(-p.keys // (2 * block)), 8 * processors // (p.batch * p.heads), 256))
