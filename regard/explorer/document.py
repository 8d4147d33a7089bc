"""The document inside a static page: everything that the page can show of a trace, as ``web/FORMAT.md`` describes it.

Weights are always there. What else there is (norms, rollout, the vectors behind each head) is added while there is
room, the head that the page opens with first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypedDict

import numpy as np
import torch
from torch import Tensor

from regard.explorer.http import replies
from regard.explorer.initial_view import HeadChoice, InitialView
from regard.explorer.packer import PackedNumbers, Packer, length, text
from regard.explorer.scores import formula, terms
from regard.trace import Trace
from regard.trace._call import Call
from regard.trace._vectors import Vectors, products_wide, vectors

VERSION = 1
TOKENS = 512  # on a side
WEIGHTS = 48_000_000  # characters that weights may take at most
ROOM = 4_000_000  # characters that all may take, where weights leave so many


class _PackedHead(TypedDict):
    head: int | None
    q: PackedNumbers
    k: PackedNumbers
    v: PackedNumbers
    recorded: PackedNumbers | None
    output: PackedNumbers | None
    allowed: str | None


class PackedHead(_PackedHead, total=False):
    products: PackedNumbers
    scaled: PackedNumbers


class PackedLayer(TypedDict):
    kind: str
    layer: int
    score: str
    formula: str
    terms: str
    scale: float | None
    query_inputs: PackedNumbers | None
    key_inputs: PackedNumbers | None
    heads: list[PackedHead]


@dataclass
class Budget:
    """How many characters are left."""

    left: int

    def take(self, characters: int) -> bool:
        """Whether there is so much room; then it is taken."""
        fits = characters <= self.left
        self.left -= characters if fits else 0
        return fits


def document(
    trace: Trace,
    described: replies.TraceDescription,
    measures: list[replies.HeadsJson],
    *,
    version: str,
    opened: InitialView,
    item: int = 0,
    bits: int = 16,
    room: int = ROOM,
) -> dict[str, object]:
    """``described`` is what the service says of the trace, ``measures`` what it says of its heads, by kind."""
    refuse_long(trace)
    size = _weights_length(trace, bits)
    if size > WEIGHTS:
        raise ValueError(
            f"the weights alone would make a page of {size / 1e6:,.0f} MB: save the trace, "
            "and look at it with `regard explore --trace FILE`" + (", or take bits=8" if bits > 8 else "")
        )
    left = Budget(max(room - size, 0))
    parts: dict[str, PackedMatrix | None] = {"weights": _matrices(trace, "weights", item, bits)}
    if left.take(size):
        parts["norms"] = _norms(trace, item, bits)
    if has_rollout(trace) and left.take(size // max(trace.shape(0)[1], 1)):
        parts["rollout"] = _rollouts(trace, item, bits)
    parts["steps"] = _steps(trace, item, opened.place, left)
    found = {name: part for name, part in parts.items() if part is not None}
    return {
        "version": VERSION,
        "regard": version,
        "trace": described,
        "stored": {name: packer.exactness for name, (packer, _) in found.items()},
        **{name: packed for name, (_, packed) in found.items()},
        "heads": measures,
        "start": opened.address,
    }


def refuse_long(trace: Trace) -> None:
    """A page holds every weight of every head: a long text's do not fit in one."""
    for kind, layers in trace.kinds.items():
        sizes = {trace.shape(layer, kind=kind, call=None)[2:] for layer in range(layers)}
        if len(sizes) > 1:
            raise ValueError(f"a page needs layers of one size, and those of kind {kind!r} have {len(sizes)}: {sizes}")
        longest = max(max(size) for size in sizes)
        if longest > TOKENS:
            raise ValueError(
                f"{longest:,} tokens are too many for one page, which holds every weight (the maximum is {TOKENS}): "
                "save the trace with trace.save(FILE), and look at it with `regard explore --trace FILE`"
            )
    if not trace.kinds:
        raise ValueError(f"the trace is empty: {trace.why_empty()}")


# --- matrices ---


PackedMatrix = tuple[Packer, object]


def _weights_length(trace: Trace, bits: int) -> int:
    shapes = [
        trace.shape(layer, kind=kind, call=None) for kind, layers in trace.kinds.items() for layer in range(layers)
    ]
    return sum(heads * length(queries, keys, bits) for _, heads, queries, keys in shapes)


def _matrices(trace: Trace, measure: str, item: int, bits: int) -> PackedMatrix:
    """{kind: [[matrix per head] per layer]}."""
    packer = Packer(bits=bits, signed=False)
    rows = getattr(trace, measure)
    packed = {
        kind: [[packer.pack(x) for x in rows(layer, kind=kind, item=item, call=None)] for layer in range(layers)]
        for kind, layers in trace.kinds.items()
    }
    return packer, packed


def _norms(trace: Trace, item: int, bits: int) -> PackedMatrix | None:
    try:
        return _matrices(trace, "norms", item, bits)
    except ValueError:  # an output projection that nobody knows
        return None


def has_rollout(trace: Trace) -> bool:
    """Whether queries are keys in every layer of self-attention."""
    layers = range(trace.kinds.get("self", 0))
    shapes = [trace.shape(layer) for layer in layers]
    return bool(shapes) and all(s[2] == s[3] for s in shapes) and all(trace.calls(layer) == 1 for layer in layers)


def _rollouts(trace: Trace, item: int, bits: int) -> PackedMatrix:
    """Rollout through layers 0 … l, a matrix for each l; row i is ``trace.rollout(i, layer=l)``."""
    packer = Packer(bits=bits, signed=False)
    whole: Tensor | None = None
    out = []
    for layer in range(trace.kinds["self"]):
        mean = trace.weights(layer, item=item).double().mean(0)  # [L, L]
        step = 0.5 * (mean + torch.diag(2 - mean.sum(-1)))  # a row that sees nothing stays what it is
        whole = step if whole is None else step @ whole
        out.append(packer.pack(whole))
    return packer, out


# --- steps ---


def _steps(trace: Trace, item: int, opened: HeadChoice, room: Budget) -> PackedMatrix | None:
    """The vectors of as many heads as there is room for, by layers; outputs of all, or of the opened head alone."""
    packer = Packer(bits=16, signed=True)
    order = list(_order(trace, opened))
    rich = sum(_length(trace, place, True) for place in order) <= room.left
    layers: dict[tuple[str, int], PackedLayer] = {}
    for number, place in enumerate(order):
        full = rich or number == 0
        size = _length(trace, place, full)
        if not room.take(size) and (number or size > ROOM):  # the opened one may take more than is left
            continue
        found = vectors(_calls(trace, place), place.head or 0, item)
        if found is None:
            continue
        at = place.kind, place.layer
        name = trace.score(place.layer, place.head, kind=place.kind)
        layer = layers.get(at)
        if layer is None:
            layer = layers[at] = _layer(trace, place, name, found, packer, item)
        if layer["score"] == name:  # a layer has one score here
            layer["heads"].append(_head(place, found, layer["scale"], packer, full))
    for layer in layers.values():
        layer["heads"].sort(key=lambda one: one["head"] or 0)
    kinds = list(trace.kinds)
    ordered = [layers[at] for at in sorted(layers, key=lambda at: (kinds.index(at[0]), at[1]))]
    return (packer, ordered) if ordered else None


def _order(trace: Trace, opened: HeadChoice) -> Iterator[HeadChoice]:
    """All heads: the opened one, its layer, its kind, the others."""
    places = [
        HeadChoice(kind, layer, head)
        for kind, layers in trace.kinds.items()
        for layer in range(layers)
        for head in range(trace.shape(layer, kind=kind)[1])
    ]
    first = opened._replace(head=opened.head or 0)
    yield from sorted(places, key=lambda p: (p != first, p[:2] != first[:2], p.kind != first.kind))


def _calls(trace: Trace, place: HeadChoice) -> list[Call]:
    return trace._choose(place.layer, place.kind, None)


def _length(trace: Trace, place: HeadChoice, full: bool) -> int:
    """Characters that a head takes, nearly."""
    calls = _calls(trace, place)
    queries, keys = trace.shape(place.layer, kind=place.kind, call=None)[2:]
    head, call = place.head or 0, calls[-1]
    p = call.narrow(head, 0)
    dims = call.q.shape[-1] if call.q is not None else p.v.shape[-1]
    numbers = (queries + keys) * dims + (keys + queries) * p.v.shape[-1] + queries * keys
    numbers += queries * keys * products_wide(calls, head)
    if full and call.projection is not None:
        numbers += queries * call.projection.shape[-1]
    if call.query_input is not None:
        numbers += (queries + keys) * call.query_input.shape[-1] // call.shape[1]
    return length(1, numbers, 16) + 16 * (queries + keys)


def _layer(trace: Trace, place: HeadChoice, name: str, found: Vectors, packer: Packer, item: int) -> PackedLayer:
    calls = _calls(trace, place)
    asked = [call.query_input for call in calls]
    known = [x[item] for x in asked if x is not None]
    keys = calls[-1].key_input
    written = formula(name)
    if found.scale is not None and not math.isclose(found.scale, found.q.shape[-1] ** -0.5, rel_tol=1e-6):
        written = written.replace("/ √d", f"· {found.scale:g}")
    return {
        "kind": place.kind,
        "layer": place.layer,
        "score": name,
        "formula": written,
        "terms": terms(name),
        "scale": found.scale,
        "query_inputs": packer.pack(torch.cat(known)) if len(known) == len(asked) else None,
        "key_inputs": packer.pack(keys[item]) if keys is not None and len(keys[item]) == len(found.k) else None,
        "heads": [],
    }


def _head(place: HeadChoice, found: Vectors, scale: float | None, packer: Packer, full: bool) -> PackedHead:
    def maybe(x: Tensor | None) -> PackedNumbers | None:
        return None if x is None else packer.pack(x)

    scaled = found.all_scaled() if found.scale is None or found.scale != scale else None
    out: PackedHead = {
        "head": place.head,
        "q": packer.pack(found.q),
        "k": packer.pack(found.k),
        "v": packer.pack(found.v),
        "recorded": maybe(found.recorded),
        "output": maybe(found.output if full else None),
        "allowed": _pack_mask(found.allowed),
    }
    if found.products is not None:
        out["products"] = packer.pack(found.products)
    if scaled is not None:
        out["scaled"] = packer.pack(scaled)
    return out


def _pack_mask(allowed: Tensor) -> str | None:
    """null: everywhere; "causal": up to the query itself; else a byte per pair."""
    if bool(allowed.all()):
        return None
    if torch.equal(allowed, torch.ones_like(allowed).tril()):
        return "causal"
    return text(allowed.numpy().astype(np.uint8))
