"""Query and disable autocast on any device; PyTorch's own functions raise for one without autocast, such as "meta"."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch


def is_on(device: torch.device) -> bool:
    kind = device.type
    known = kind in ("cpu", "cuda") or torch.amp.is_autocast_available(kind)  # the call takes as long as the rest
    return known and torch.is_autocast_enabled(kind)


def off(device: torch.device) -> AbstractContextManager[object]:
    return torch.autocast(device.type, enabled=False) if is_on(device) else nullcontext()
