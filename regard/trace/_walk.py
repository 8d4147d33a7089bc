"""The same function on every tensor of a problem, its terms and its mask included."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from torch import Tensor

from regard.mask import Mask
from regard.mask.base import KINDS, build

T = TypeVar("T")


def memory_of(x: Tensor) -> Hashable:
    """Equal for tensors that are the same numbers in the same memory."""
    return x.data_ptr(), x.shape, x.stride(), x.dtype


def map_tensors(x: T, f: Callable[[Tensor], Tensor]) -> T:
    """``x`` with ``f`` of each tensor in its place."""
    mapped: T = _map(x, f)
    return mapped


def _map(x: Any, f: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(x, Tensor):
        return f(x)
    if isinstance(x, Mask):
        if type(x).__name__ not in KINDS:
            return x
        tensors, parts = tuple(f(t) for t in x.tensors), tuple(_map(part, f) for part in x.parts)
        return build(type(x).__name__, tensors, x.ints, parts)
    if isinstance(x, tuple):
        return tuple(_map(part, f) for part in x)
    if is_dataclass(x) and not isinstance(x, type):
        return replace(x, **{each.name: _map(getattr(x, each.name), f) for each in fields(x)})
    return x
