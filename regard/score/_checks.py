"""Checks of the arguments of scores, with messages that say what was expected."""

from __future__ import annotations

import math

from torch import Tensor


def parameter_sets(name: str, heads: int | None, kv_heads: int | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Leading shapes of the query side's and the key side's parameters."""
    if heads is None:
        if kv_heads is not None:
            raise ValueError(f"{name}: kv_heads={kv_heads} needs heads too (None means one set shared by all heads)")
        return (), ()
    kv_heads = heads if kv_heads is None else kv_heads
    check_positive(name, heads=heads, kv_heads=kv_heads)
    if heads % kv_heads:
        raise ValueError(f"{name}: heads={heads} is not a multiple of kv_heads={kv_heads}")
    return (heads,), (kv_heads,)


def sets_of(weight: Tensor, dims: int = 2) -> int | None:
    """The number of heads if each has its own weight of ``dims`` dims; None if all share one."""
    return weight.shape[0] if weight.ndim > dims else None


def arguments(**values: object) -> str:
    """``name=value, …`` for a score's repr; arguments that are None or False are left out."""
    return ", ".join(f"{name}={value!r}" for name, value in values.items() if value is not None and value is not False)


def check_fit(name: str, side: str, weight: Tensor, heads: int | None, dim: int | None) -> None:
    if dim is None:
        return
    if dim != weight.shape[-1]:
        raise ValueError(f"{name} was made for {side}_dim={weight.shape[-1]}, got {side} vectors of {dim} dims")
    if weight.ndim > 2 and heads != weight.shape[0]:
        hint = "" if side == "query" else " (set kv_heads= when the keys have fewer heads)"
        raise ValueError(f"{name} has {weight.shape[0]} {side} heads, got {heads}{hint}")


def check_same_dims(name: str, query_dim: int, key_dim: int | None) -> None:
    if key_dim is not None and query_dim != key_dim:
        raise ValueError(
            f"{name} needs queries and keys of the same dims, got {query_dim} and {key_dim}; "
            "General, Bilinear and Additive take different ones"
        )


def check_positive(name: str, **values: int) -> tuple[int, ...]:
    for key, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name}: {key} must be a positive integer, got {value!r}")
    return tuple(values.values())


def check_distance(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{name}: max_distance must be an integer ≥ 0, got {value!r}")
    return value


def check_finite(name: str, key: str, value: float) -> float:
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"{name}: {key} must be a finite number, got {value!r}")
    return float(value)
