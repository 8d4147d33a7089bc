"""Checks of the arguments of an attention call, before any work is done, with messages that say what to do.

Shapes: q [..., heads, L, Dq], k [..., kv_heads, S, Dk], v [..., kv_heads, S, Dv].
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from regard.kernels import _autocast
from regard.mask.shape import Shape
from regard.score.terms import DTYPES


def check_tensors(q: Tensor, keys: tuple[Tensor, ...], v: Tensor) -> None:
    for name, x in (("q", q), *(("k", t) for t in keys), ("v", v)):
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(x).__name__}")
        if x.dtype not in DTYPES:
            raise TypeError(f"{name} must be floating point (float16, bfloat16, float32 or float64), got {x.dtype}")
        if x.is_nested or x.layout is not torch.strided:
            raise TypeError(
                f"{name} must be a dense tensor, got {'a nested one' if x.is_nested else x.layout}; lay sequences of "
                "different lengths end to end, with mask=Documents.packed(offsets), or pad them, with mask=Lengths(n)"
            )
        if x.ndim < 3:
            raise ValueError(
                f"{name} must be [..., heads, length, dim], at least 3 dims, got shape {list(x.shape)}; "
                f"for one head write {name}[None]"
            )
        if x.device != q.device:
            raise ValueError(f"q, k and v must be on one device, got q on {q.device} and {name} on {x.device}")


def shape_of(q: Tensor, keys: tuple[Tensor, ...], v: Tensor) -> Shape:
    for t in keys:
        if t.shape[-2] != v.shape[-2]:
            raise ValueError(f"k and v must have the same length, got {t.shape[-2]} keys and {v.shape[-2]} values")
    if len(keys) == 1 and keys[0].shape[-3] != v.shape[-3]:
        raise ValueError(f"k and v must have the same number of heads, got {keys[0].shape[-3]} and {v.shape[-3]}")
    heads, kv_heads = q.shape[-3], v.shape[-3]
    if kv_heads == 0 or heads % kv_heads:
        raise ValueError(f"query heads must be a multiple of key/value heads, got {heads} and {kv_heads}")
    batch = q.shape[:-3]
    for t in (*keys, v):
        if t.shape[:-3] != batch:
            try:
                batch = torch.broadcast_shapes(batch, t.shape[:-3])
            except RuntimeError:
                raise ValueError(
                    f"batch dims must broadcast, got {list(q.shape[:-3])} for q and {list(t.shape[:-3])} for k or v"
                ) from None
    return Shape(tuple(batch), heads, q.shape[-2], v.shape[-2], q.device)


def autocast(q: Tensor, keys: tuple[Tensor, ...], v: Tensor) -> tuple[Tensor, tuple[Tensor, ...], Tensor]:
    """Under autocast q, k and v become its dtype, as for PyTorch's own attention."""
    if not _autocast.is_on(q.device) or q.dtype == torch.float64:
        return q, keys, v
    dtype = torch.get_autocast_dtype(q.device.type)
    return q.to(dtype), tuple(t.to(dtype) for t in keys), v.to(dtype)


def offset_of(offset: int | Tensor, shape: Shape) -> int | Tensor:
    if not isinstance(offset, Tensor):
        if isinstance(offset, bool) or not isinstance(offset, (int, torch.SymInt)):
            raise TypeError(f"offset must be an int or a tensor of one per batch item, got {type(offset).__name__}")
        return offset
    if offset.is_floating_point() or offset.dtype == torch.bool:
        raise TypeError(f"offset must hold whole numbers, got {offset.dtype}")
    if offset.numel() != 1 and offset.shape != shape.batch:
        raise ValueError(
            f"offset must be one number or one per batch item, {list(shape.batch)}, got shape {list(offset.shape)}"
        )
    return offset.to(shape.device).reshape(-1)


def seed_of(seed: int | Tensor | None, device: torch.device) -> Tensor:
    if seed is None:
        return torch.randint(2**62, (1,), device=device)
    if isinstance(seed, Tensor):
        if seed.is_floating_point() or seed.dtype == torch.bool or seed.numel() != 1:
            raise ValueError(f"seed must be one whole number, got a tensor of {seed.dtype}, shape {list(seed.shape)}")
        return seed.to(device, torch.int64).reshape(1)
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise TypeError(f"seed must be a whole number or None, got {seed!r}")
    if not -(2**63) <= seed < 2**63:
        raise ValueError(f"seed must fit into 64 bits, got {seed}")
    return torch.full((1,), seed, dtype=torch.int64, device=device)  # filled on the device: no copy


def sink_of(sink: float | Tensor | None, shape: Shape) -> Tensor | None:
    if sink is None:
        return None
    if not isinstance(sink, Tensor):
        check_number("sink", sink, -math.inf, math.inf)
        sink = torch.full((), float(sink), dtype=torch.float64, device=shape.device)
    if not sink.is_floating_point():
        raise TypeError(f"sink must be floating point, got {sink.dtype}")
    if sink.device != shape.device:
        raise ValueError(f"sink is on {sink.device}, but q, k and v are on {shape.device}")
    if sink.ndim > 1 or (sink.numel() != 1 and sink.numel() != shape.heads):
        raise ValueError(f"sink must be a number or one per head, [{shape.heads}], got shape {list(sink.shape)}")
    return sink.reshape(1, -1)


def check_number(name: str, value: float, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value < high:
        expected = "a finite number" if math.isinf(high) else f"at least {low} and below {high}"
        raise ValueError(f"{name} must be {expected}, got {value!r}")


def flat(x: Tensor, batch: tuple[int, ...]) -> Tensor:
    """x with its batch dims broadcast and flattened to one."""
    if len(batch) == 1 and x.ndim == 4 and x.shape[0] == batch[0]:
        return x
    return x.expand(*batch, *x.shape[-3:]).reshape(math.prod(batch), *x.shape[-3:])
