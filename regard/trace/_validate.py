"""Checks a call that was read from a file before it is used: the file may be damaged or malicious."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import TypeVar, get_type_hints

import torch
from torch import Tensor

from regard.files.kinds import check, hints_of
from regard.mask import Mask
from regard.score import Dot
from regard.trace._call import Call

FLOOR = 1 << 20  # queries, keys or heads that a trace may have whatever it stores
REAL = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# B items, H heads, L queries, S keys, D dims of a value; of a small letter perhaps 1; anything else has any size
CALL = {
    "q": "BHL.",
    "k": "B.S.",
    "out": "BHL.",
    "projection": "H..",
    "bias": ".",
    "result": "BL.",
    "gradient": "BHL.",
    "query_input": "BL.",
    "key_input": "B..",
}
PROBLEM = {"v": "B.SD", "offset": "bl", "key_positions": "bS", "sink": ".h", "bad_keys": "B.S", "bad_rows": "BHL"}
WHOLE = ("offset", "key_positions", "bad_keys", "bad_rows")  # no real numbers


T = TypeVar("T")


def make_part(cls: type[T], values: Mapping[str, object]) -> T:
    """A part of a problem, if its fields are of the types that they are declared as."""
    fields: type = cls
    check(values, _hints(fields))
    return cls(**values)


@cache
def _hints(cls: type) -> dict[str, object]:
    return get_type_hints(cls, localns={"Mask": Mask})


def check_numbers(tensors: Mapping[str, Tensor]) -> None:
    """Real numbers are of a type that scores are computed in; what counts, or is true or false, may have any."""
    for name, t in tensors.items():
        if t.dtype not in REAL and (t.is_floating_point() or t.is_complex()):
            raise ValueError(f"{name} holds {t.dtype}")


def check_call(call: Call, stored: int) -> None:
    """Raises where a call's parts do not fit together; ``stored`` numbers are all that the file has."""
    check({name: getattr(call, name) for name in hints_of(Call)}, hints_of(Call))
    if not call.problems or len(call.problems) != len(call.scores_of):
        raise ValueError(f"{len(call.problems)} problems and {len(call.scores_of)} scores")
    if call.kind not in ("self", "cross"):
        raise ValueError(f"kind must be self or cross, got {call.kind!r}")
    _check_sizes(call, stored)
    _check_shapes(call)
    _try_corners(call)


def _check_sizes(call: Call, stored: int) -> None:
    first = call.problems[0]
    heads = 0
    for p in call.problems:
        if (p.batch, p.queries, p.keys) != (first.batch, first.queries, first.keys) or p.first_head != heads:
            raise ValueError("its groups of heads are not of one call")
        if p.v.ndim != 4 or p.heads < 1 or not p.kv_heads or p.heads % p.kv_heads:
            raise ValueError(f"{p.heads} heads with values of shape {list(p.v.shape)}")
        heads += p.heads
    if any(p.v.dtype != first.v.dtype for p in call.problems):
        raise ValueError("its groups of heads have values of several types")
    if (most := max(call.shape)) > max(FLOOR, stored) or min(call.shape) < 0:
        raise ValueError(f"it claims {most:,} queries, keys or heads, and stores {stored:,} numbers")


def _check_shapes(call: Call) -> None:
    sizes = dict(zip("BHLS", call.shape, strict=True))
    _check_parts(call, CALL, sizes)
    for p in call.problems:
        own = sizes | {"H": p.heads, "D": p.v.shape[-1]}
        _check_parts(p, PROBLEM, own)
        _check_parts(p.terms, {"values": ".h.D"}, own)
        if p.rows is not None:
            raise ValueError("rows of a problem are those of a part of it, and a call is whole")
    batch, heads, queries, _ = call.shape
    for (head, item), lse in call.known.items():
        if not (0 <= head < heads and 0 <= item < batch) or lse.shape != (queries,) or lse.dtype not in REAL:
            raise ValueError(f"what is known of head {head}, item {item} is not of this call")


def _check_parts(of: object, parts: Mapping[str, str], sizes: Mapping[str, int]) -> None:
    for name, letters in parts.items():
        x = getattr(of, name)
        if not isinstance(x, Tensor):
            continue
        dims = zip(letters, x.shape, strict=False)
        if x.ndim != len(letters) or any(n != sizes.get(a.upper(), n) and (n, a) != (1, a.lower()) for a, n in dims):
            raise ValueError(f"{name} has the shape {list(x.shape)}, and the call is of {dict(sizes)}")
        if x.dtype not in REAL and name not in WHOLE:
            raise ValueError(f"{name} holds {x.dtype}")


@torch.no_grad()
def _try_corners(call: Call) -> None:
    """What all else is made of, of the first and the last head, item and query: do all tensors fit together?"""
    batch, heads, queries, keys = call.shape
    if not (batch and queries and keys):
        return
    rows = torch.tensor(sorted({0, queries - 1}))
    for head, item in {(0, 0), (heads - 1, batch - 1)}:
        if call.weights(head, item, rows).shape != (len(rows), keys):
            raise ValueError("its scores are not of its queries and keys")
        if call.has_values:
            call.steps(head, item, queries - 1)
            with suppress(ValueError):  # what such a call cannot answer
                call.steps(head, item, 0, Dot())
            with suppress(ValueError):
                call.value_norms(head, item, rows)
            with suppress(ValueError):
                call.weight_gradient(head, item, rows)
