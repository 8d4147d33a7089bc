"""The same function on every tensor of a problem, its terms and its mask included."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

from torch import Tensor

from regard.mask import Mask
from regard.mask.base import KINDS, build


def map_tensors(x: Any, f: Callable[[Tensor], Any]) -> Any:
    """``x`` with ``f`` of each tensor in its place."""
    if isinstance(x, Tensor):
        return f(x)
    if isinstance(x, Mask):
        if type(x).__name__ not in KINDS:
            return x
        tensors, parts = tuple(f(t) for t in x.tensors), tuple(map_tensors(part, f) for part in x.parts)
        return build(type(x).__name__, tensors, x.ints, parts)
    if isinstance(x, tuple):
        return tuple(map_tensors(part, f) for part in x)
    if is_dataclass(x) and not isinstance(x, type):
        return replace(x, **{each.name: map_tensors(getattr(x, each.name), f) for each in fields(x)})
    return x
