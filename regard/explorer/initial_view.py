"""The view that a page or a widget opens with: one head of one layer, and a query; readers may choose others."""

from __future__ import annotations

from typing import NamedTuple, TypedDict
from urllib.parse import urlencode

from regard.explorer.http.replies import AlignmentJson
from regard.trace import Trace

VIEWS = ("sentence", "steps", "heads", "compare", "align")


class HeadChoice(NamedTuple):
    """A head; None is the mean of all of them."""

    kind: str
    layer: int
    head: int | None


class InitialView(NamedTuple):
    """The part of the address that says what is shown, and the head that this is."""

    address: str
    place: HeadChoice


class ViewOptions(TypedDict, total=False):
    """Options of :func:`initial_view`."""

    view: str
    kind: str | None
    layer: int | None
    head: int | str | None
    query: int | None


def initial_view(
    trace: Trace,
    *,
    view: str = "sentence",
    kind: str | None = None,
    layer: int | None = None,
    head: int | str | None = None,
    query: int | None = None,
    alignment: AlignmentJson | None = None,
) -> InitialView:
    """Anything left out is chosen by the page: the first kind, layer and head, or for cross-attention the alignment's.

    >>> import torch
    >>> trace = Trace.of(*torch.ones(3, 1, 1, 2, 4))
    >>> initial_view(trace, view="steps", head="mean", query=1)
    InitialView(address='#/steps?head=mean&query=1', place=HeadChoice(kind='self', layer=0, head=None))
    """
    if view not in VIEWS:
        raise ValueError(f"view: expected one of {', '.join(VIEWS)}, got {view!r}")
    chosen = next(iter(trace.kinds)) if kind is None else kind
    if chosen not in trace.kinds:
        raise ValueError(f"kind: expected one of those recorded ({', '.join(trace.kinds)}), got {kind!r}")
    place = HeadChoice(chosen, *_head(trace, chosen, layer, head, alignment if chosen == "cross" else None))
    queries = trace.shape(place.layer, kind=chosen, call=None)[2]
    if query is not None and not 0 <= query < queries:
        raise ValueError(f"query: there are {queries}, from 0; got {query}")
    given = {"kind": kind, "layer": layer, "head": head, "query": query}
    return InitialView(f"#/{view}?{urlencode({k: v for k, v in given.items() if v is not None})}", place)


def _head(
    trace: Trace, kind: str, layer: int | None, head: int | str | None, usual: AlignmentJson | None
) -> tuple[int, int | None]:
    layers, heads = trace.kinds[kind], trace.shape(0, kind=kind)[1]
    if layer is None:
        layer = (usual and usual["layer"]) or 0
    if not 0 <= layer < layers:
        raise ValueError(f"layer: there are {layers} of kind {kind!r}, from 0; got {layer}")
    number = ((usual and usual["head"]) or 0) if head is None else None if head == "mean" else head
    if not (number is None or (isinstance(number, int) and 0 <= number < heads)):
        raise ValueError(f'head: there are {heads} of kind {kind!r}, from 0, and "mean"; got {head!r}')
    return layer, number
