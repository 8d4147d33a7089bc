"""Attention rollout (Abnar & Zuidema 2020, https://arxiv.org/abs/2005.00928): how much of each input a query holds."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.trace._call import Call
from regard.trace._rows import check_place


def rollout(layers: Sequence[Call], row: int, item: int) -> Tensor:
    """One row of ∏ₗ (½ mean over heads of αₗ + ½ I), the last layer first, [keys]; in O(n) memory."""
    mix: Tensor | None = None
    for call in reversed(layers):
        _, heads, queries, keys = call.shape
        if queries != keys:
            raise ValueError(f"rollout needs layers with as many queries as keys; {call.name} has {queries}, {keys}")
        if mix is None:
            check_place(call, 0, item)
            p = call.problems[0]
            mix = torch.zeros(queries, dtype=p.compute_dtype, device=p.device)
            mix[range(queries)[row]] = 1.0
        through, total = torch.zeros_like(mix), torch.zeros_like(mix)
        rows = mix.nonzero()[:, 0]
        for head in range(heads):
            for some, w in call.weight_blocks(head, item, rows):
                through += mix[some] @ w / heads
                total[some] += w.sum(-1) / heads
        mix = 0.5 * (mix + through) + 0.5 * mix * (1 - total)  # a row that sees nothing stays what it is
    assert mix is not None
    return mix.cpu()
