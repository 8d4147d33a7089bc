"""Traces in files: one safetensors file of tensors, with a table beside them that says what they are."""

from __future__ import annotations

import os
from collections.abc import Hashable
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from regard.files.kinds import check
from regard.files.tensors import read_tensors, write_tensors
from regard.files.whole import Damaged
from regard.mask import Mask
from regard.mask.base import KINDS, build
from regard.mask.own import custom_part
from regard.score.terms import BiasTerm, DotTerm, FormulaTerm, KeyTerm, OffsetTerm, Problem, TanhTerm, Terms
from regard.trace._call import Call
from regard.trace._trace import Trace
from regard.trace._validate import check_call, check_numbers, make_part
from regard.trace._walk import memory_of

VERSION = 1
TYPES: dict[str, type] = {t.__name__: t for t in (Problem, Terms, DotTerm, TanhTerm, OffsetTerm, BiasTerm, KeyTerm)}
OPTIONAL = ("q", "k", "out", "projection", "bias", "result", "gradient")
INPUTS = ("query_input", "key_input")
LABELS = {"kind": str, "item": int, "rows": list[str], "columns": list[str]}
# the errors that reading an arbitrary file may raise, besides those of the checks
UNUSABLE = (LookupError, TypeError, ValueError, AttributeError, AssertionError, ArithmeticError, RuntimeError)


def save(trace: Trace, path: str | os.PathLike[str], *, inputs: bool = False) -> None:
    """Write a trace, with every logsumexp known so far."""
    tensors: dict[str, Tensor] = {}
    shared: dict[Hashable, str] = {}  # also between calls: of one module they have one projection
    calls = [_pack_call(call, f"{i}", tensors, shared, inputs) for i, call in enumerate(trace.recorded)]
    labels = [[kind, item, *sides] for (kind, item), sides in trace.texts.items()]
    write_tensors(path, tensors, {"what": "trace", "version": VERSION, "calls": calls, "labels": labels})


def load(path: str | os.PathLike[str], device: str | torch.device = "cpu") -> Trace:
    """A trace from a file that :meth:`Trace.save` wrote."""
    tensors, about = read_tensors(path, device)
    if about.get("what") != "trace" or about.get("version") != VERSION:
        what = f"{about.get('what', 'something else')!r}, version {about.get('version')}"
        raise Damaged(f"{path}: expected a trace of version {VERSION}, got {what}")
    trace, stored = Trace(), sum(t.numel() for t in tensors.values())
    try:
        check_numbers(tensors)
        for packed in about["calls"]:
            call = _unpack_call(packed, tensors)
            check_call(call, stored)
            trace.add(call)
        for kind, item, rows, columns in about["labels"]:
            check({"kind": kind, "item": item, "rows": rows, "columns": columns}, LABELS)
            trace.texts[kind, item] = rows, columns
    except UNUSABLE as error:
        raise Damaged(f"{path}: a trace that cannot be read: {_in_a_line(error)}") from error
    return trace


def _in_a_line(error: Exception) -> str:
    """The error in a line: the text of our own ValueErrors, the first line of others, such as PyTorch's."""
    text = (str(error).splitlines() or [""])[0][:200]
    return text if isinstance(error, ValueError) else f"{type(error).__name__}: {text}"


def _pack_call(
    call: Call, at: str, tensors: dict[str, Tensor], shared: dict[Hashable, str], inputs: bool
) -> dict[str, object]:
    packed: dict[str, object] = {"name": call.name, "kind": call.kind, "scores": list(call.scores_of)}
    packed["problems"] = [_pack(p, f"{at}.{i}", tensors, shared) for i, p in enumerate(call.problems)]
    for name in (*OPTIONAL, *(INPUTS if inputs else ())):
        packed[name] = _pack(getattr(call, name), f"{at}.{name}", tensors, shared)
    packed["known"] = [
        [head, item, _pack(lse, f"{at}.lse.{head}.{item}", tensors, shared)] for (head, item), lse in call.known.items()
    ]
    return packed


def _unpack_call(packed: dict[str, Any], tensors: dict[str, Tensor]) -> Call:
    problems = tuple(_unpack(p, tensors) for p in packed["problems"])
    call = Call(packed["name"], packed["kind"], problems, tuple(packed["scores"]))
    for name in (*OPTIONAL, *INPUTS):
        setattr(call, name, _unpack(packed.get(name), tensors))
    call.known = {(head, item): _unpack(lse, tensors) for head, item, lse in packed["known"]}
    return call


def _pack(x: object, at: str, tensors: dict[str, Tensor], shared: dict[Hashable, str]) -> object:
    """Plain values that say how to build ``x``; its tensors go into ``tensors``, each once."""
    if isinstance(x, Tensor):
        key = memory_of(x)
        if key not in shared:
            shared[key] = at
            tensors[at] = x
        return {"tensor": shared[key]}
    if isinstance(x, Mask):
        kind = custom_part(x) or type(x).__name__
        if kind not in KINDS:
            raise ValueError(f"a mask of your own ({kind}) cannot be saved; combine those of regard.mask")
        return {
            "mask": kind,
            "tensors": [_pack(t, f"{at}.mask{i}", tensors, shared) for i, t in enumerate(x.tensors)],
            "ints": list(x.ints),
            "parts": [_pack(part, f"{at}.part{i}", tensors, shared) for i, part in enumerate(x.parts)],
        }
    if isinstance(x, FormulaTerm):
        raise ValueError(f"a score of your own ({x.name}) cannot be saved; combine those of regard.score")
    if isinstance(x, tuple):
        return {"tuple": [_pack(part, f"{at}.{i}", tensors, shared) for i, part in enumerate(x)]}
    if is_dataclass(x) and not isinstance(x, type):
        values = {f.name: _pack(getattr(x, f.name), f"{at}.{f.name}", tensors, shared) for f in fields(x)}
        return {"type": type(x).__name__, "fields": values}
    return x


def _unpack(x: Any, tensors: dict[str, Tensor]) -> Any:
    if not isinstance(x, dict):
        return x
    if "tensor" in x:
        return tensors[x["tensor"]]
    if "mask" in x:
        parts = tuple(_unpack(part, tensors) for part in x["parts"])
        return build(x["mask"], tuple(_unpack(t, tensors) for t in x["tensors"]), tuple(x["ints"]), parts)
    if "tuple" in x:
        return tuple(_unpack(part, tensors) for part in x["tuple"])
    values = {name: _unpack(value, tensors) for name, value in x["fields"].items()}
    if isinstance(values.get("offset"), Tensor):
        values["offset"] = values["offset"].view(len(values["offset"]), -1)  # earlier files have one per item, [B]
    return make_part(TYPES[x["type"]], values)
