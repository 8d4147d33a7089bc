"""Modules that look like attention and were not seen: which ran, and what they do instead of what can be seen."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from types import CodeType, FunctionType
from typing import Any

from torch import nn

NAMED = re.compile("attention|attn", re.IGNORECASE)
SEEN = "regard.attend, torch.nn.MultiheadAttention and the attention interface of transformers are seen"
DIRECT = (  # how names of attention functions begin that have no hook in them
    "scaled_dot_product_attention",
    "multi_head_attention_forward",
    "memory_efficient_attention",
    "flex_attention",
    "flash_attn",
)
UNKNOWN = "calls nothing that can be seen"
LISTED = 3


def find_unseen(ran: Mapping[str, type[nn.Module]], seen: Iterable[str]) -> dict[str, str]:
    """{path: what it does} of modules that ran and look like attention, but recorded nothing in, at or around them.

    ``ran`` has the modules that ran, by path. Of nested modules the innermost is listed. Modules that are attention by
    name only are listed if there are no others.
    """
    known = list(seen)
    free = {name: kind for name, kind in ran.items() if not any(_are_nested(name, other) for other in known)}
    methods = {kind: _method(kind) for kind in set(free.values())}
    found = {name: how for name, kind in free.items() if (how := methods[kind]) is not None}
    if known or any(how != UNKNOWN for how in found.values()):
        found = {name: how for name, how in found.items() if how != UNKNOWN}
    return {name: how for name, how in found.items() if not any(_is_inside(other, name) for other in found)}


def explain(found: Mapping[str, str], ran: Mapping[str, type[nn.Module]]) -> str:
    """In words, modules of one class together."""
    groups: dict[tuple[str, str], list[str]] = {}
    for name, how in found.items():
        groups.setdefault((ran[name].__name__, how), []).append(name or "the model itself")
    parts = [f"{len(names)} × {kind} ({_enumerate(names)}), which {how}" for (kind, how), names in groups.items()]
    hint = ""
    if any(ran[name].__module__.startswith("transformers.") for name in found):
        hint = "; the model's own output_attentions=True may return its weights"
    return f"not seen: {'; '.join(parts)} ({SEEN}{hint})"


def _enumerate(names: list[str]) -> str:
    return ", ".join(names[:LISTED]) + (", …" if len(names) > LISTED else "")


def _is_inside(name: str, other: str) -> bool:
    return name != other and (not other or name.startswith(f"{other}."))


def _are_nested(name: str, other: str) -> bool:
    return name == other or _is_inside(name, other) or _is_inside(other, name)


def _method(kind: type[nn.Module]) -> str | None:
    """How a class that looks like attention computes its weights; None if it does not look like attention."""
    if issubclass(kind, nn.MultiheadAttention):
        return "has a forward of its own, with other arguments"
    used = _names_used(kind)
    for name in sorted(used):
        if name.startswith(DIRECT):
            return f"calls {name} itself"
    if not NAMED.search(kind.__name__):
        return None
    return "has matrix products and a softmax of its own" if any("softmax" in x.lower() for x in used) else UNKNOWN


def _names_used(kind: type[nn.Module]) -> set[str]:
    """The names that a class's methods use, those of its bases up to PyTorch's, and functions of their files."""
    own = [base for base in kind.__mro__ if not base.__module__.startswith(("torch.", "builtins"))]
    functions = {f for base in own for x in vars(base).values() if (f := _function(x)) is not None}
    names: set[str] = set()
    ahead = list(functions)
    while ahead:
        function = ahead.pop()
        used = _names(function.__code__)
        names |= used
        near = (_function(function.__globals__.get(name)) for name in used)
        more = {f for f in near if f is not None and f.__globals__ is function.__globals__} - functions
        functions |= more
        ahead += more
    return names


def _function(x: object) -> FunctionType | None:
    """The function as written, without its decorators."""
    written: Any = x
    if isinstance(x, FunctionType | staticmethod | classmethod):
        written = inspect.unwrap(written)
    return written if isinstance(written, FunctionType) else None


def _names(code: CodeType) -> set[str]:
    inner = [name for x in code.co_consts if isinstance(x, CodeType) for name in _names(x)]
    return {*code.co_names, *inner}
