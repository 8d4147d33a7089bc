"""The forward pass of triton_additive: what its kernels are launched with."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.kernels.gpu.additive._arguments import AdditiveArguments, batch_stride, strides
from regard.kernels.gpu.additive._config import options
from regard.kernels.gpu.launch import power


def launch(given: AdditiveArguments, out: Tensor, lse: Tensor, series: bool) -> None:
    p, tiles = given.p, given.config.forward_series if series else given.exact
    grid = (p.batch * p.heads * -(-p.queries // tiles.queries),)
    given.kernels.forward[grid](
        v=given.v, out=out, lse=lse, sink=given.sink(), **given.scored(series), **given.terms(True), **given.mask,
        **given.documents, **given.spans("key_spans", given.key_spans), **given.dropout(), **given.sizes(),
        **given.values(), SERIES=series, PRECISION=given.precision(), DP=given.padded_dims, BM=tiles.queries,
        BN=tiles.keys, STEP=tiles.step, AHEAD=given.ahead(tiles.keys), **options(tiles),
    )  # fmt: skip


def few(given: AdditiveArguments, out: Tensor, lse: Tensor) -> None:
    """Few queries: every key is read once, by one of many programs, and their results are joined."""
    p, w = given.p, given.p.terms.tanhs[0].w
    block = 32 if p.device.type == "cpu" else 64
    splits = _splits(given, block)
    rows = p.batch * p.heads * p.queries
    parts = torch.empty(rows, splits, given.value_dims, dtype=torch.float32, device=p.device)
    tops, totals = (torch.empty(rows, splits, dtype=torch.float32, device=p.device) for _ in range(2))
    sizes = {"H": p.heads, "G": p.heads // p.kv_heads, "L": p.queries, "S": p.keys, "splits": splits}
    w_b, w_h, w_d = batch_stride(w), 0 if w.shape[1] == 1 else w.stride(1), w.stride(2)
    given.kernels.few[(p.batch * p.heads * splits,)](
        a=given.a, y=given.b, w=w, v=given.v, parts=parts, tops=tops, totals=totals, **given.terms(True), **given.mask,
        **given.documents, **given.spans("key_spans", given.key_spans), **given.dropout(), **sizes,
        **strides("a", given.a), **strides("b", given.b), w_b=w_b, w_h=w_h, w_d=w_d, **given.values(), D=given.dims,
        COLS=power(given.dims, 16), QUERIES=p.queries, PRECISION=given.precision(), BM=16, BN=block,
        EXPONENTIAL=p.terms.tanhs[0].exponential,
    )  # fmt: skip
    given.kernels.join_splits[(rows,)](
        parts, tops, totals, out, lse, given.sink(), p.queries, given.value_dims, splits,
        DVP=given.padded_values, SPLITS=power(splits),
    )  # fmt: skip


def _splits(given: AdditiveArguments, block: int) -> int:
    """Parts of the keys: enough programs to keep memory busy, each with a few blocks."""
    p = given.p
    if p.device.type == "cpu":
        return min(3, -(-p.keys // block))
    processors = int(torch.cuda.get_device_properties(p.device).multi_processor_count)
    return max(1, min(-(-p.keys // (2 * block)), 8 * processors // (p.batch * p.heads), 256))
