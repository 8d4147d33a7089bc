"""Autocast, asked for and switched off; PyTorch's own functions raise for a device that has none, such as "meta"."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch


def is_on(device: torch.device) -> bool:
    return torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)


def off(device: torch.device) -> AbstractContextManager[object]:
    return torch.autocast(device.type, enabled=False) if is_on(device) else nullcontext()
