"""What every GPU kernel refuses, whatever the score."""

from __future__ import annotations

import importlib.util

import torch

from regard.kernels.gpu.launch import is_interpreted, properties
from regard.kernels.gpu.masks import FURTHEST, Conditions
from regard.score.terms import Problem

TRITON_MISSING = importlib.util.find_spec("triton") is None


def refuses_device(p: Problem) -> str | None:
    if p.device.type != "cuda" and not (is_interpreted() and p.device.type == "cpu"):
        return f"it runs on a CUDA GPU, not on {p.device.type}"
    return None


def refuses(p: Problem) -> str | None:
    """Why the problem cannot run here: its dtype, shape, positions or mask, or what is not installed."""
    if p.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return f"it computes in float32, not in {str(p.dtype).removeprefix('torch.')}"
    if p.rows is not None:
        return "it takes whole sequences of queries"
    if p.per_query or p.key_positions is not None:
        return "queries or keys have positions of their own"
    dims = (p.v.shape[-1], *(t.q.shape[-1] for t in p.terms.dots), *(t.a.shape[-1] for t in p.terms.tanhs))
    if not all((p.batch, p.queries, p.keys, *dims)):
        return "the problem is empty"
    if isinstance(p.offset, int) and abs(p.offset) > FURTHEST:
        return f"positions must stay within ±2^30, the offset is {p.offset}"
    mask = Conditions.of(p.mask)
    if isinstance(mask, str):
        return mask
    if TRITON_MISSING:
        return "triton is not installed (pip install triton)"
    if p.device.type == "cuda" and (torch.version.hip or properties(p.device).major < 8):
        return "it needs an NVIDIA GPU of compute capability 8.0 or later"
    return None
