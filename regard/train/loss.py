"""Cross-entropy over a vocabulary straight from features, without keeping the logits.

    CE_r = (1 − ε) (−log P_r[y_r]) + ε · mean_v(−log P_r[v]),       P = softmax(features Wᵀ)

With R-Drop (Wu et al. 2021, https://arxiv.org/abs/2106.14448) each row was computed twice under different dropout, and

    loss_r = ½ (CE₁ + CE₂) + ¼ α (KL(P₁‖P₂) + KL(P₂‖P₁))

which is the paper's loss divided by two, so that it stays comparable to a loss without it.

Shapes: M target positions, E features, V vocabulary. The gradients are computed together with the loss, some rows at a
time, and [M, V] logits never exist.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

ROW_ELEMENTS = {"cpu": 1 << 21, "cuda": 1 << 27}  # logits at a time
RowLosses = Callable[[Tensor, Tensor, int, float, float | None, bool], tuple[Tensor, Tensor | None]]


def sequence_loss(
    features: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    pad_id: int = 0,
    smoothing: float = 0.0,
    rdrop: float | None = None,
    chunk: int | None = None,
) -> Tensor:
    """The loss and the negative log-likelihood, both summed over targets other than ``pad_id``: a tensor [2].

    Args:
        features: [M, E]; with R-Drop [2 M, E], all rows of the first pass and then all of the second.
        weight: [V, E], the softmax's matrix.
        targets: [M] token numbers.
        smoothing: ε, taken from the target and spread over the whole vocabulary.
        rdrop: α, or None for a single pass.
        chunk: rows at a time; by default as many as a few MiB of logits hold.

    Only the first of the two numbers has a gradient.
    """
    passes = 1 if rdrop is None else 2
    if features.ndim != 2 or targets.ndim != 1 or len(features) != passes * len(targets):
        raise ValueError(
            f"sequence_loss: expected features [{passes} · M, E] for targets [M], "
            f"got {list(features.shape)} and {list(targets.shape)}"
        )
    if chunk is None:
        chunk = max(16, ROW_ELEMENTS.get(features.device.type, 1 << 24) // (passes * len(weight)))
    if torch.is_autocast_enabled(features.device.type):
        dtype = torch.get_autocast_dtype(features.device.type)
        features, weight = features.to(dtype), weight.to(dtype)
    wanted = torch.is_grad_enabled() and (features.requires_grad or weight.requires_grad)
    out: Tensor = _Loss.apply(features, weight, targets, pad_id, smoothing, rdrop, chunk, wanted)  # type: ignore[no-untyped-call]
    return out


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        weight: Tensor,
        targets: Tensor,
        pad_id: int,
        smoothing: float,
        rdrop: float | None,
        chunk: int,
        wanted: bool,
    ) -> Tensor:
        passes, dtype = (1 if rdrop is None else 2), torch.promote_types(features.dtype, torch.float32)
        rows = features.view(passes, len(targets), features.shape[-1])
        totals = features.new_zeros(2, dtype=dtype)
        d_rows = torch.empty_like(rows) if wanted else None
        d_weight = torch.zeros_like(weight, dtype=dtype) if wanted else None
        with torch.autocast(features.device.type, enabled=False):
            for a in range(0, len(targets), chunk):
                some, y = rows[:, a : a + chunk], targets[a : a + chunk]
                flat = some.reshape(-1, rows.shape[-1])
                logits = (flat @ weight.mT).view(passes, len(y), -1)
                sums, slope = _choose_row_losses(logits)(logits, y, pad_id, smoothing, rdrop, wanted)
                totals += sums
                if d_rows is not None and d_weight is not None and slope is not None:
                    slope = slope.view(-1, len(weight)).to(weight.dtype)
                    d_rows[:, a : a + chunk] = (slope @ weight).view(some.shape)
                    d_weight += slope.mT @ flat
        if wanted:
            ctx.save_for_backward(d_rows, d_weight)
            ctx.dtype = weight.dtype
        return totals

    @staticmethod
    def backward(ctx: Any, d_totals: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        d_rows, d_weight = ctx.saved_tensors
        scale = d_totals[0]
        features = d_rows.flatten(0, 1) * scale.to(d_rows.dtype)
        return features, (d_weight * scale).to(ctx.dtype), None, None, None, None, None, None


def _choose_row_losses(logits: Tensor) -> RowLosses:
    """``row_losses``, or its twin on a GPU."""
    fits = logits.device.type == "cuda" and logits.dtype != torch.float64 and logits.is_contiguous()
    return _triton_row_losses() if fits and _has_triton() else row_losses


@lru_cache(1)
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


@lru_cache(1)
def _triton_row_losses() -> RowLosses:
    from regard.train import _triton_loss

    return _triton_loss.row_losses


def row_losses(
    logits: Tensor, targets: Tensor, pad_id: int, smoothing: float, rdrop: float | None, wanted: bool
) -> tuple[Tensor, Tensor | None]:
    """Loss and negative log-likelihood summed, [2], and the loss's gradient by the logits, [passes, M, V]."""
    z = logits.to(torch.promote_types(logits.dtype, torch.float32))
    passes = len(z)
    counted = (targets != pad_id).to(z.dtype)
    y = targets.expand(passes, -1)[..., None]
    log_p = z - z.logsumexp(-1, keepdim=True)
    nll = -log_p.gather(-1, y)[..., 0]
    each = nll * (1 - smoothing) - log_p.mean(-1) * smoothing if smoothing else nll
    loss = (each * counted).sum() / passes
    sums = [loss, (nll * counted).sum() / passes]
    p = log_p.exp()
    delta = kl = None
    if rdrop:
        delta = log_p[0] - log_p[1]
        kl = torch.stack(((p[0] * delta).sum(-1), -(p[1] * delta).sum(-1)))  # [2, M]
        sums[0] = loss + 0.25 * rdrop * (kl.sum(0) * counted).sum()
    if not wanted:
        return torch.stack(sums), None
    slope = p.clone() if rdrop else p
    if smoothing:
        slope -= smoothing / z.shape[-1]
    slope.scatter_add_(-1, y, slope.new_full((), smoothing - 1).expand(y.shape))
    slope /= passes
    if rdrop:
        assert delta is not None and kl is not None
        apart = p[0] - p[1]
        slope[0] += 0.25 * rdrop * (p[0] * (delta - kl[0][:, None]) + apart)
        slope[1] += 0.25 * rdrop * (p[1] * (-delta - kl[1][:, None]) - apart)
    return torch.stack(sums), slope * counted[:, None]
