"""The loss of a mixture of writing and copying, [targets, vocabulary] some rows at a time.

    P(w) = g softmax(f Wᵀ)_w + (1 − g) Σ_{j: x_j = w} a_j
    CE   = (1 − ε) (−log P(y)) + ε · mean_w(−log P(w))

and with R-Drop over two passes ½ (CE₁ + CE₂) + ¼ α (KL(P₁‖P₂) + KL(P₂‖P₁)), as in :mod:`regard.train.loss`. The log is
that of a sum in float32 of which both parts may have underflowed: it is taken of P + 10⁻³⁰, so that it and its gradient
are numbers for whatever the model says.

Shapes: N documents, T targets, M = N · T, S source tokens, E features, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.models.pointer import PointerParts
from regard.text.subwords import PAD

FLOOR = 1e-30
ROW_ELEMENTS = {"cpu": 1 << 22, "cuda": 1 << 28}  # probabilities at a time


def mixture_loss(
    pointed: PointerParts,
    weight: Tensor,
    source: Tensor,
    targets: Tensor,
    *,
    copy: bool = True,
    smoothing: float = 0.0,
    rdrop: float | None = None,
    chunk: int | None = None,
) -> Tensor:
    """The loss and the negative log-likelihood, both summed over targets other than padding: a tensor [2].

    Args:
        pointed: of N documents; with R-Drop of 2 N, all of the first pass and then all of the second.
        weight: [V, E], the softmax's matrix.
        source: [N, S] or [2 N, S] token numbers, to be copied from.
        targets: [N, T].
        copy: without it P is the softmax alone.
        smoothing, rdrop: ε, and α or None for a single pass.
        chunk: rows at a time.

    Only the first of the two numbers has a gradient.
    """
    passes = 1 if rdrop is None else 2
    if len(pointed.features) != passes * len(targets):
        raise ValueError(f"mixture_loss: expected {passes} · {len(targets)} documents, got {len(pointed.features)}")
    if chunk is None:
        chunk = max(16, ROW_ELEMENTS.get(weight.device.type, 1 << 24) // (passes * len(weight)))
    if torch.is_autocast_enabled(weight.device.type):
        dtype = torch.get_autocast_dtype(weight.device.type)
        pointed, weight = pointed._replace(features=pointed.features.to(dtype)), weight.to(dtype)
    split = [x.unflatten(0, (passes, -1)).flatten(1, 2) for x in pointed]  # [passes, M, …]
    row = torch.arange(len(targets), device=targets.device).repeat_interleave(targets.shape[1])
    y = targets.flatten()
    if y.device.type == "cpu":  # on a GPU counting them would be waited for
        kept = (y != PAD).nonzero().flatten()
        split, row, y = [x[:, kept] for x in split], row[kept], y[kept]
    options = (copy, smoothing, rdrop, chunk, torch.is_grad_enabled())
    out: Tensor = _MixtureLoss.apply(*split, weight, source[: len(targets)], row, y, options)  # type: ignore[no-untyped-call]
    return out


class _MixtureLoss(torch.autograd.Function):
    """Some rows at a time, each with its gradient at once, so that [M, V] never exists whole."""

    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        gate: Tensor,
        weights: Tensor,
        matrix: Tensor,
        source: Tensor,
        row: Tensor,
        y: Tensor,
        options: tuple[bool, float, float | None, int, bool],
    ) -> Tensor:
        copy, smoothing, rdrop, chunk, wanted = options
        parts, slopes = (features, gate, weights), [torch.empty_like(x) for x in (features, gate, weights)]
        d_matrix = torch.zeros_like(matrix, dtype=torch.promote_types(matrix.dtype, torch.float32))
        totals = d_matrix.new_zeros(2)
        with torch.autocast(matrix.device.type, enabled=False), torch.set_grad_enabled(wanted):
            for a in range(0, len(y), chunk):
                some = [x.detach()[:, a : a + chunk].requires_grad_(wanted) for x in parts]
                own = matrix.detach().requires_grad_(wanted)
                at, right = source[row[a : a + chunk]], y[a : a + chunk]
                sums = _sums(some[0], some[1], some[2], own, at, right, copy, smoothing, rdrop)
                totals += sums.detach()
                if wanted:
                    found = torch.autograd.grad(sums[0], (*some, own), allow_unused=not copy)
                    for slope, d in zip(slopes, found[:3], strict=True):
                        slope[:, a : a + chunk] = 0.0 if d is None else d
                    d_matrix += found[3]
        if wanted:
            ctx.save_for_backward(*slopes, d_matrix)
            ctx.dtype = matrix.dtype
        return totals

    @staticmethod
    def backward(ctx: Any, d_totals: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        *slopes, d_matrix = ctx.saved_tensors
        scale = d_totals[0]
        own = [x * scale.to(x.dtype) for x in slopes]
        return (*own, (d_matrix * scale).to(ctx.dtype), None, None, None, None)


def _sums(
    features: Tensor,
    gate: Tensor,
    weights: Tensor,
    matrix: Tensor,
    source: Tensor,
    y: Tensor,
    copy: bool,
    smoothing: float,
    rdrop: float | None,
) -> Tensor:
    """Loss and negative log-likelihood of rows [passes, m, …], summed: [2]."""
    passes, size = len(features), len(matrix)
    logits = (features.flatten(0, 1) @ matrix.mT).view(passes, -1, size)
    p = logits.softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))
    if copy:
        g = gate.to(p.dtype).sigmoid()[..., None]
        copied = torch.zeros_like(p).scatter_add(-1, source.expand(passes, -1, -1), weights.to(p.dtype))
        p = g * p + (1 - g) * copied
    log_p = (p + FLOOR).log()
    counted = (y != PAD).to(p.dtype)
    nll = -log_p.gather(-1, y.expand(passes, -1)[..., None])[..., 0]
    each = nll * (1 - smoothing) - log_p.mean(-1) * smoothing if smoothing else nll
    loss = (each * counted).sum() / passes
    if rdrop:
        kl = ((p[0] - p[1]) * (log_p[0] - log_p[1])).sum(-1)  # both ways together
        loss = loss + 0.25 * rdrop * (kl * counted).sum()
    return torch.stack((loss, (nll * counted).sum().detach() / passes))
