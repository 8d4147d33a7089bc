"""Modules that look like attention and were not seen: which ran, and what they do instead of what can be seen."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import CodeType

from torch import nn

NAMED = re.compile("attention|attn", re.IGNORECASE)
SEEN = "regard.attend, torch.nn.MultiheadAttention and the attention interface of transformers are seen"
DIRECT = ("scaled_dot_product_attention", "flex_attention", "flash_attn")  # attention functions with no hook in them
LISTED = 3


def unseen(ran: Mapping[str, type[nn.Module]], seen: Iterable[str]) -> dict[str, str]:
    """{path: what it does} of modules that ran, look like attention and have nothing seen in, at or around them.

    ``ran`` has the modules that ran by path. Of modules inside one another the innermost is told.
    """
    known = list(seen)
    free = {name: kind for name, kind in ran.items() if not any(_related(name, other) for other in known)}
    does = {kind: _does(kind, bool(known)) for kind in set(free.values())}
    found = {name: how for name, kind in free.items() if (how := does[kind]) is not None}
    return {name: how for name, how in found.items() if not any(_inside(other, name) for other in found)}


def told(found: Mapping[str, str], ran: Mapping[str, type[nn.Module]]) -> str:
    """In words, modules of one class together."""
    groups: dict[tuple[str, str], list[str]] = {}
    for name, how in found.items():
        groups.setdefault((ran[name].__name__, how), []).append(name or "the model itself")
    parts = [f"{len(names)} × {kind} ({_listed(names)}), which {how}" for (kind, how), names in groups.items()]
    hint = ""
    if any(ran[name].__module__.startswith("transformers.") for name in found):
        hint = "; the model's own output_attentions=True may return its weights"
    return f"not seen: {'; '.join(parts)} ({SEEN}{hint})"


def _listed(names: list[str]) -> str:
    return ", ".join(names[:LISTED]) + (", …" if len(names) > LISTED else "")


def _inside(name: str, other: str) -> bool:
    return name != other and (not other or name.startswith(f"{other}."))


def _related(name: str, other: str) -> bool:
    return name == other or _inside(name, other) or _inside(other, name)


def _does(kind: type[nn.Module], others_seen: bool) -> str | None:
    """What a class that looks like attention does to make its weights; None if it does not look so."""
    called = _called(kind)
    for function in DIRECT:
        if any(function in name for name in called):
            return f"calls {function} itself"
    if not NAMED.search(kind.__name__):
        return None
    if any("softmax" in name.lower() for name in called):
        return "has matrix products and a softmax of its own"
    return None if others_seen else "calls nothing that can be seen"


def _called(kind: type[nn.Module]) -> set[str]:
    """The names that the methods of a class use, those of its bases too, up to PyTorch's."""
    own = [base for base in kind.__mro__ if not base.__module__.startswith(("torch.", "builtins"))]
    methods = [getattr(x, "__code__", None) for base in own for x in vars(base).values()]
    return {name for code in methods if code is not None for name in _names(code)}


def _names(code: CodeType) -> set[str]:
    inner = [name for x in code.co_consts if isinstance(x, CodeType) for name in _names(x)]
    return {*code.co_names, *inner}
