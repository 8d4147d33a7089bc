"""Masked NaN and Inf: removed from q, k and v before a kernel runs, and restored in rows that may see them.

On a CPU, a sum over the data shows whether there are any. On a GPU, reading that sum would synchronise, so all of q, k
and v is copied with zeros instead, in one launch. One mark per vector says what was not finite; afterwards, rows that
may see a marked vector become NaN. Such rows have no gradient, so neither has a removed number: the backward pass of
cleaning is the identity. In traced or transformed programs PyTorch's own operations do the same.
"""

from __future__ import annotations

import importlib.util
import math
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from regard.kernels.gpu.launch import launchers, on, power

TRITON_MISSING = importlib.util.find_spec("triton") is None
NUMBERS = 4096  # numbers that one Triton program cleans
Cleaned = tuple[Tensor, Tensor, list[Tensor], Tensor, Tensor]


def take_out(
    q: Tensor, v: Tensor, keys: list[Tensor], places: list[slice]
) -> tuple[Tensor, Tensor, list[Tensor], Tensor | None, Tensor | None]:
    """Replace NaN and Inf in q, k and v by 0, and mark the keys [B, K, S] and queries [B, H, L] that had any.

    A masked pair has weight 0, but 0 · NaN is NaN, forward and backward, and would also reach the weight gradient of a
    linear projection. Kernels restore NaN in visible pairs. On a CPU a sum shows cheaply that nothing is to be done;
    where data cannot be read (compiled, vmapped, on a GPU) everything is cleaned.
    """
    if fits(q, v, *keys):
        return clean(q, v, keys, places)
    if _all_finite(q, v, *keys):
        return q, v, keys, None, None
    sums = _sum(v)
    for t, heads in zip(keys, places, strict=True):
        part = _sum(t)
        if part.shape[1] != v.shape[1]:
            part = torch.nn.functional.pad(part, (0, 0, heads.start, v.shape[1] - heads.stop))
        sums = sums + part
    bad_rows, bad_keys = _not_finite(_sum(q)), _not_finite(sums)
    q, v, *keys = (t.nan_to_num(0.0, 0.0, 0.0) for t in (q, v, *keys))
    return q, v, keys, bad_keys, bad_rows


def _sum(x: Tensor) -> Tensor:
    """Sum per vector, [B, heads, length], in a dtype wide enough not to overflow: not finite only if a number is."""
    return x.sum(-1, dtype=torch.float32 if x.dtype == torch.float16 else torch.float64)


def _not_finite(x: Tensor) -> Tensor:
    return x - x != 0  # two small kernels, fewer than isfinite


def _all_finite(*tensors: Tensor) -> bool:
    if torch.compiler.is_compiling() or tensors[0].device.type != "cpu":
        return False
    try:
        return all(math.isfinite(t.detach().sum(dtype=_wide(t)).item()) for t in tensors)
    except RuntimeError:  # vmap does not allow reading data
        return False


def not_finite(x: Tensor) -> Tensor:
    """Which vectors contain NaN or Inf."""
    return _not_finite(_sum(x))


def has_no_zero(x: Tensor) -> bool:
    """Is it known that no number is 0? Unknown where data cannot be read."""
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
        return False
    try:
        return bool(x.detach().all())
    except RuntimeError:  # vmap does not allow reading data
        return False


def restore_nan(out: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """Restore NaN in rows whose scores are all NaN: on a CPU PyTorch's kernel silently returns 0 for them."""
    if out.device.type != "cpu" or has_no_zero(out[..., 0]):
        return out
    bad_rows, bad_keys = not_finite(q), not_finite(k).any(-1, keepdim=True)
    if bad_keys.shape[1] != bad_rows.shape[1]:
        bad_keys = bad_keys.repeat_interleave(bad_rows.shape[1] // bad_keys.shape[1], 1)
    lost = (out == 0).all(-1) & (bad_rows | bad_keys)
    return out.masked_fill(lost[..., None], float("nan"))


def _wide(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


# --- on a GPU ---


def fits(*tensors: Tensor) -> bool:
    """Can Triton clean these tensors: on a GPU, in plain eager mode?"""
    return (
        not torch.compiler.is_compiling()
        and tensors[0].device.type == "cuda"
        and not TRITON_MISSING
        and all(type(t) in (Tensor, torch.nn.Parameter) and _plain(t) for t in tensors)
        and not torch._C._are_functorch_transforms_active()
        and not torch._C._len_torch_dispatch_stack()
        and torch._C._get_tracing_state() is None
    )


def _plain(x: Tensor) -> bool:
    return x.dtype in (torch.bfloat16, torch.float16, torch.float32) and x.numel() != 0 and x.shape[-1] <= NUMBERS


def clean(q: Tensor, v: Tensor, keys: list[Tensor], places: list[slice]) -> Cleaned:
    """q, v and keys with zeros instead of NaN and Inf; marks of the bad keys [B, K, S] and the bad rows [B, H, L].

    ``places`` are the key/value heads of each key tensor.
    """
    tensors = (q, v, *keys)
    starts = [0, 0, *(heads.start for heads in places)]
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        marks, *clean = _Clean.apply(starts, *tensors)
    else:
        marks, *clean = _clean(starts, *tensors)
    rows = q.shape[0] * q.shape[1] * q.shape[2]
    bad_rows, bad_keys = marks[:rows].view(q.shape[:3]), marks[rows:].view(v.shape[:3])
    return clean[0], clean[1], clean[2:], bad_keys, bad_rows


def spoil_causal(out: Tensor, bad_keys: Tensor, bad_rows: Tensor) -> Tensor:
    """Set rows of a causal context [B, H, L, D] to NaN that are bad or see a bad key; may modify ``out``."""
    if torch.is_grad_enabled() and out.requires_grad:
        spoiled: Tensor = _Spoil.apply(out, bad_keys, bad_rows)
        return spoiled
    return _spoil(out, bad_keys, bad_rows, torch.nan, copy=out.stride(-1) != 1)


class _Clean(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, starts: list[int], *tensors: Tensor) -> tuple[Tensor, ...]:
        marks, *clean = _clean(starts, *tensors)
        ctx.mark_non_differentiable(marks)
        ctx.set_materialize_grads(False)
        return marks, *clean

    @staticmethod
    def backward(ctx: Any, _: Any, *grads: Tensor | None) -> Any:
        return None, *grads


class _Spoil(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, out: Tensor, bad_keys: Tensor, bad_rows: Tensor) -> Tensor:
        ctx.save_for_backward(bad_keys, bad_rows)
        return _spoil(out, bad_keys, bad_rows, torch.nan, copy=True)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return _Spoil.backward_of(grad, *ctx.saved_tensors), None, None

    @staticmethod
    def backward_of(grad: Tensor, bad_keys: Tensor, bad_rows: Tensor) -> Tensor:
        if torch.is_grad_enabled() and grad.requires_grad:
            zeroed: Tensor = _Zero.apply(grad, bad_keys, bad_rows)
            return zeroed
        return _spoil(grad, bad_keys, bad_rows, 0.0, copy=True)


class _Zero(torch.autograd.Function):
    """Zero in the spoiled rows; a linear map that is its own derivative."""

    @staticmethod
    def forward(ctx: Any, grad: Tensor, bad_keys: Tensor, bad_rows: Tensor) -> Tensor:
        ctx.save_for_backward(bad_keys, bad_rows)
        return _spoil(grad, bad_keys, bad_rows, 0.0, copy=True)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return _Spoil.backward_of(grad, *ctx.saved_tensors), None, None


# --- launching ---


@lru_cache(1)
def _kernels() -> Any:
    from regard.kernels.gpu import _guard as _triton_guard

    return launchers(_triton_guard)


def _clean(starts: list[int], q: Tensor, v: Tensor, *keys: Tensor) -> tuple[Tensor, ...]:
    """Marks of rows and of keys in one tensor, and the cleaned tensors."""
    rows, per_item = q.shape[0] * q.shape[1] * q.shape[2], v.shape[1] * v.shape[2]
    marks = torch.zeros(rows + v.shape[0] * per_item, dtype=torch.bool, device=q.device)
    as_bytes = marks.view(torch.uint8)
    clean = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, v, *keys)]
    jobs = [(q, clean[0], as_bytes, q.shape[1] * q.shape[2])]
    for x, y, start in zip((v, *keys), clean[1:], starts[1:], strict=True):
        jobs.append((x, y, as_bytes[rows + start * v.shape[2] :], per_item))
    with on(q.device):
        for n in range(0, len(jobs), 3):
            _launch_clean(jobs[n : n + 3])
    return marks, *clean


def _launch_clean(jobs: list[tuple[Tensor, Tensor, Tensor, int]]) -> None:
    args: dict[str, Any] = {}
    block = max(NUMBERS // max(power(x.shape[-1], 16) for x, *_ in jobs), 1)
    most = 0
    for n in range(3):
        x, y, marks, per_item = jobs[min(n, len(jobs) - 1)]
        x = x if x.stride(-1) == 1 else x.contiguous()
        items, heads, length, dims = x.shape
        most = max(most, items * heads * -(-length // block))
        sb, sh, sn, _ = x.stride()
        args |= {
            f"X{n}": x, f"Y{n}": y, f"MARKS{n}": marks, f"sb{n}": sb, f"sh{n}": sh, f"sn{n}": sn, f"h{n}": heads,
            f"n{n}": length, f"mb{n}": per_item, f"items{n}": items, f"D{n}": dims, f"BD{n}": power(dims, 16),
        }  # fmt: skip
    _kernels().clean[(most, len(jobs))](**args, BR=block, num_warps=4)


def _spoil(x: Tensor, bad_keys: Tensor, bad_rows: Tensor, value: float, copy: bool) -> Tensor:
    """Set the spoiled rows of x to ``value``, in place or in a copy."""
    if copy and x.stride(-1) != 1:
        x = x.contiguous()
    y = torch.empty_like(x) if copy else x
    if y.stride(-1) != 1:
        y = torch.empty_like(x, memory_format=torch.contiguous_format)
    batch, heads, length, dims = x.shape
    (xb, xh, xi, _), (yb, yh, yi, _) = x.stride(), y.stride()
    block = max(min(2 * NUMBERS // power(dims, 16), 128), 16)
    with on(x.device):
        _kernels().spoil_causal[(batch * heads * -(-length // block),)](
            x, y, bad_keys.contiguous().view(torch.uint8), bad_rows.contiguous().view(torch.uint8),
            xb, xh, xi, yb, yh, yi, heads, heads // bad_keys.shape[1], length, bad_keys.shape[2], value,
            D=dims, BD=power(dims, 16), BM=block, BN=1024, COPY=copy, num_warps=4,
        )  # fmt: skip
    return y
