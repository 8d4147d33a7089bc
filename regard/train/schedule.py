"""The learning rate of each update, and the share of training that is over."""

from __future__ import annotations

import math
from typing import Literal, get_args

Schedule = Literal["inverse_sqrt", "cosine"]
SCHEDULES = get_args(Schedule)


def learning_rate(
    update: int, *, schedule: str, peak: float, warmup: int, updates: int, final: float = 0.0
) -> float:  # fmt: skip
    """The learning rate of update 1, 2, …: linear up to ``peak`` at ``warmup``, and from there on

    - "inverse_sqrt": peak · √(warmup / update) (Vaswani et al. 2017, section 5.3, with the peak as a parameter);
    - "cosine": final + ½ (peak − final) (1 + cos π t), t going from 0 to 1 at the last of ``updates``.

    >>> [learning_rate(u, schedule="inverse_sqrt", peak=1.0, warmup=4, updates=99) for u in (1, 2, 4, 16)]
    [0.25, 0.5, 1.0, 0.5]
    >>> [round(learning_rate(u, schedule="cosine", peak=1.0, warmup=2, updates=10), 6) for u in (1, 2, 6, 10)]
    [0.5, 1.0, 0.5, 0.0]
    """
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule must be one of {', '.join(SCHEDULES)}, got {schedule!r}")
    if update < 1:
        raise ValueError(f"updates count from 1, got {update}")
    if update < warmup:
        return peak * update / warmup
    if schedule == "inverse_sqrt":
        return peak * math.sqrt(max(warmup, 1) / update)
    t = min(1.0, (update - warmup) / max(1, updates - warmup))
    return final + 0.5 * (peak - final) * (1 + math.cos(math.pi * t))
