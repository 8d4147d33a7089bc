"""The arguments of dropout for GPU kernels. _pieces.py has the device code, kernels/_dropout.py the definition."""

from __future__ import annotations

from typing import Any

import torch

from regard.kernels import _dropout
from regard.score.terms import Problem


def arguments(p: Problem) -> dict[str, Any]:
    """The part of the hash that is constant in a head, [B·H], and the threshold for a pair's hash."""
    if p.dropout == 0:
        return {"HASH": None, "threshold": 0, "keep_scale": 1.0}
    assert p.seed is not None
    heads = _dropout.head_index(p.first_head, p.heads, p.device)
    hashes = _dropout.head_keys(p.seed, torch.arange(p.batch, device=p.device), heads)
    threshold = min(round(p.dropout * 2**32), 2**32 - 1)
    return {"HASH": hashes.flatten(), "threshold": threshold, "keep_scale": 1 / (1 - p.dropout)}
