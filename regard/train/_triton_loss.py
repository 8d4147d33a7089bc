"""The GPU code of the loss: one read of the logits for the sums, one more for the gradient, which takes their place.

A program does one target position, both passes of it under R-Drop. Going once through the vocabulary it keeps, for each
pass, the maximum m, s = Σ e^{z−m}, Σ z, and u = Σ e^{z−m} (z − z'), z' being the other pass's logits, rescaled whenever
the maximum grows. Then

    lse = m + log s,   KL(P‖P') = u / s − (lse − lse')
"""

# mypy: ignore-errors

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK, WARPS = 2048, 8


@triton.jit
def _grow(z, m, s, u, apart, inside, R: tl.constexpr):
    """One block more."""
    top = tl.maximum(m, tl.max(z, 0))
    e = tl.where(inside, tl.exp(z - top), 0.0)
    old = tl.exp(m - top)
    s = s * old + tl.sum(e, 0)
    if R:
        u = u * old + tl.sum(e * apart, 0)
    return top, s, u


@triton.jit
def _rows(
    Z, Y, LOSS, NLL, M, V, pad, smoothing, alpha,
    R: tl.constexpr, SMOOTH: tl.constexpr, GRAD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    y = tl.load(Y + row)
    z1, z2 = Z + row * V, Z + (M + row) * V
    at = tl.arange(0, BLOCK)
    counted = tl.where(y == pad, 0.0, 1.0)
    m1, s1, u1, t1 = -float("inf"), 0.0, 0.0, 0.0
    m2, s2, u2, t2 = -float("inf"), 0.0, 0.0, 0.0
    for start in range(0, V, BLOCK):
        inside = start + at < V
        a = tl.load(z1 + start + at, inside, other=-float("inf")).to(tl.float32)
        b = a
        if R:
            b = tl.load(z2 + start + at, inside, other=-float("inf")).to(tl.float32)
        apart = tl.where(inside, a - b, 0.0)
        m1, s1, u1 = _grow(a, m1, s1, u1, apart, inside, R)
        if SMOOTH:
            t1 += tl.sum(tl.where(inside, a, 0.0), 0)
        if R:
            m2, s2, u2 = _grow(b, m2, s2, u2, -apart, inside, R)
            if SMOOTH:
                t2 += tl.sum(tl.where(inside, b, 0.0), 0)
    lse1 = m1 + tl.log(s1)
    right1 = tl.load(z1 + y).to(tl.float32)
    nll, loss = lse1 - right1, lse1 - (1 - smoothing) * right1 - smoothing * t1 / V
    lse2, kl1, kl2 = lse1, 0.0, 0.0
    if R:
        lse2 = m2 + tl.log(s2)
        right2 = tl.load(z2 + y).to(tl.float32)
        kl1, kl2 = u1 / s1 - (lse1 - lse2), u2 / s2 - (lse2 - lse1)
        nll = 0.5 * (nll + lse2 - right2)
        other = lse2 - (1 - smoothing) * right2 - smoothing * t2 / V
        loss = 0.5 * (loss + other) + 0.25 * alpha * (kl1 + kl2)
    tl.store(LOSS + row, loss * counted)
    tl.store(NLL + row, nll * counted)
    if GRAD:
        for start in range(0, V, BLOCK):
            inside = start + at < V
            log_p = tl.load(z1 + start + at, inside, other=-float("inf")).to(tl.float32) - lse1
            p = tl.exp(log_p)
            wanted = tl.where(start + at == y, 1 - smoothing, 0.0) + smoothing / V
            d1 = p - wanted
            if R:
                log_q = tl.load(z2 + start + at, inside, other=-float("inf")).to(tl.float32) - lse2
                q = tl.exp(log_q)
                delta = tl.where(inside, log_p - log_q, 0.0)
                d2 = 0.5 * (q - wanted) + 0.25 * alpha * (q * (-delta - kl2) + q - p)
                d1 = 0.5 * d1 + 0.25 * alpha * (p * (delta - kl1) + p - q)
                tl.store(z2 + start + at, (d2 * counted).to(Z.dtype.element_ty), inside)
            tl.store(z1 + start + at, (d1 * counted).to(Z.dtype.element_ty), inside)


def row_losses(
    logits: Tensor, targets: Tensor, pad_id: int, smoothing: float, rdrop: float | None, wanted: bool
) -> tuple[Tensor, Tensor | None]:
    """As ``regard.train.loss.row_losses``; the gradient is written over the logits."""
    assert logits.is_contiguous()
    rows, size = logits.shape[1:]
    out = logits.new_empty(2, rows, dtype=torch.float32)
    if rows:
        _rows[(rows,)](
            logits, targets.contiguous(), out[0], out[1], rows, size, pad_id, smoothing, rdrop or 0.0,
            R=len(logits) == 2, SMOOTH=smoothing > 0, GRAD=wanted, BLOCK=BLOCK, num_warps=WARPS,
        )  # fmt: skip
    return out.sum(1), logits if wanted else None
