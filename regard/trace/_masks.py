"""Masks of other libraries as ours: booleans that mean the opposite, numbers to be added, matrices that say little."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.mask import Causal, Dense, Mask
from regard.score import Bias, Score


def compact(seen: Tensor) -> tuple[Mask, int]:
    """A bool [B|1, H|1, L, S], True = may attend, in O(n) memory if it is padding, causal or both; and the offset.

    Other masks stay as they are.
    """
    queries, keys = seen.shape[-2:]
    if bool((seen == seen[..., -1:, :]).all()):
        return Dense(seen[..., -1:, :].clone()), 0
    offset = keys - queries
    if offset >= 0:
        at = torch.arange(keys, device=seen.device)
        causal = at <= at[offset:, None]
        last = seen[..., -1:, :]
        if bool((seen == (causal & last)).all()):
            return (Causal() if bool(last.all()) else Causal() & Dense(last.clone())), offset
    return Dense(seen), 0


def additive(score: Score, numbers: Tensor) -> tuple[Score, Mask | None, int]:
    """A float [B|1, H|1, L|1, S] that is added to the scores, as a mask if it only hides, else as a bias.

    A row that hides everything with finite numbers is no mask: its softmax is that of the scores.
    """
    low = torch.finfo(numbers.dtype).min / 2
    hidden = numbers <= low
    if bool(((numbers == 0) | hidden).all()) and not bool(hidden.all(-1).any()):
        mask, offset = compact(~hidden)
        return score, mask, offset
    return score + Bias(numbers), None, 0
