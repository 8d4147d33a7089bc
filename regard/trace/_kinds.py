"""Kinds of attention: which of a model's calls are self-attention, a decoder's, or cross-attention."""

from __future__ import annotations

from collections.abc import Sequence

from regard.trace._call import Call
from regard.trace._towers import towers

KINDS = ("self", "decoder", "cross")


def by_kind(calls: Sequence[Call]) -> dict[str, dict[str, list[Call]]]:
    """{kind: {module: its calls}}, in order of first use; towers have kinds of their own."""
    crossed = any(c.kind == "cross" for c in calls)
    index: dict[str, dict[str, list[Call]]] = {kind: {} for kind in KINDS}
    for c in calls:
        inside = crossed and c.kind == "self" and "decoder" in c.name
        index["decoder" if inside else c.kind].setdefault(c.name, []).append(c)
    found: dict[str, dict[str, list[Call]]] = {}
    for kind, layers in index.items():
        of = towers(layers)
        for name, its in layers.items():
            found.setdefault(f"{of[name]} {kind}" if name in of else kind, {})[name] = its
    return found
