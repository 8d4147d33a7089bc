"""The numbers of a trace that the page shows, for the service, exported pages and notebooks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from regard.explorer.http import replies
from regard.explorer.http.schema import Invalid
from regard.explorer.labels import Labels
from regard.explorer.scores import counterfactual, formula, terms
from regard.trace import Trace

SIDES = {"self": ("source", "source"), "decoder": ("target", "target"), "cross": ("target", "source")}
TRAINED = "trained"
NO_SIDE: replies.SideJson = {"text": "", "tokens": [], "words": []}  # a side that does not exist
MAX_TOKENS = 4096  # the most tokens of a side sent completely, keys of steps, and tokens per request
MAX_MATCHES = 1000  # the most matches of a search
ALL_QUERIES, SAMPLED_QUERIES = 1024, 256  # a head is measured on all of up to 1,024 queries; of more, on 256

_NO_MODEL = "this trace has no model to run again without a head, and no target to score: translate a sentence"


class Unable(Exception):
    """A request that a trace alone cannot answer, and why."""


class Tile(NamedTuple):
    """A part of a matrix, [h, w], and whether every row of it was computed."""

    values: npt.NDArray[np.float32]
    exact: bool


class Answers:
    """A trace, of any model; each method is an answer of the service.

    ``item`` is the batch item that is shown. Rows and columns are named by ``trace.label``, else by their numbers.
    Calls of a layer are joined: their rows follow one another.

    >>> q = k = v = torch.randn(1, 2, 3, 8)
    >>> trace = Trace.of(q, k, v)
    >>> trace.label(["[CLS]", "tea", "##pot"])
    >>> [word["text"] for word in Answers(trace).describe()["source"]["words"]]
    ['teapot']
    """

    def __init__(self, trace: Trace, *, name: str = "", item: int = 0) -> None:
        self.trace, self.name, self.item = trace, name, item
        self._named: dict[tuple[str, str], Labels] = {}

    @property
    def size(self) -> int:
        """Bytes that the trace keeps, what calls share counted once."""
        return self.trace.nbytes

    # --- what there is ---

    def kinds(self) -> list[replies.KindJson]:
        """The kinds of attention in the trace."""
        out: list[replies.KindJson] = []
        for kind, layers in self.trace.kinds.items():
            _, heads, queries, keys = self.trace.shape(0, kind=kind, call=None)
            rows, columns = self._side_names(kind)
            out.append(
                {
                    "kind": kind,
                    "layers": layers,
                    "heads": heads,
                    "rows": rows,
                    "columns": columns,
                    "score": self.trace.score(0, kind=kind),
                    "queries": queries,
                    "keys": keys,
                }
            )
        return out

    def describe(self) -> replies.TraceDescription:
        """The kinds, and the sides that their rows and columns are; None for a side too long to be sent completely."""
        there = {name for kind in self.trace.kinds for name in self._side_names(kind)}
        others = sorted(there - {"source", "target"})
        missing = NO_SIDE if others else None
        found: replies.TraceDescription = {
            "name": self.name,
            "kinds": self.kinds(),
            "source": self._side("source") if "source" in there else missing,
            "target": self._side("target") if "target" in there else missing,
            "translation": "",
            "model": "",
            "alignment": None,
            "note": "",
        }
        if others:
            found["sides"] = {name: self._side(name) for name in others}
        return found

    def _side_names(self, kind: str) -> tuple[str, str]:
        """Which sides rows and columns are; queries that are not the keys are a target, whatever the kind.

        Each tower has its own sides, named after the tower or by their role in it.
        """
        tower, _, role = kind.rpartition(" ")
        if tower:
            own = tower if role == "self" else kind
            rows, columns = (self._labels(kind, side).tokens for side in ("rows", "columns"))
            return own, own if rows == columns else f"{own} keys"
        if kind == "self" and self.trace.kinds.keys() == {"self"}:
            rows, columns = (self._labels(kind, side).tokens for side in ("rows", "columns"))
            return SIDES["self" if rows == columns else "cross"]
        return SIDES[kind]

    def _side(self, name: str) -> replies.SideJson | None:
        for kind in self.trace.kinds:
            names = self._side_names(kind)
            if name in names:
                labels = self._labels(kind, ("rows", "columns")[names.index(name)])
                return labels.side() if len(labels.tokens) <= MAX_TOKENS else None
        return None

    # --- tokens ---

    def tokens(self, *, kind: str, side: str, first: int = 0, end: int | None = None) -> replies.TokensJson:
        """The names of some rows or columns, ``MAX_TOKENS`` at most."""
        with reading():
            every = self._labels(kind, side).tokens
        end = min(len(every), first + MAX_TOKENS) if end is None else min(end, len(every))
        if end - first > MAX_TOKENS:
            raise Invalid(f"from and to: {end - first:,} tokens; the maximum per request is {MAX_TOKENS:,}")
        return {"tokens": every[first:end], "from": first, "count": len(every)}

    def search(self, *, kind: str, side: str, text: str) -> replies.FoundJson:
        """Where a text occurs: the index of the first token of each match."""
        if not text.strip():
            raise Invalid("text: it is empty, so there is nothing to search for")
        with reading():
            matches, more = self._labels(kind, side).search(text, MAX_MATCHES)
        return {"matches": matches, "more": more}

    def _labels(self, kind: str, side: str) -> Labels:
        if (kind, side) not in self._named:
            self._named[kind, side] = self._labels_of(kind, side)
        return self._named[kind, side]

    def _labels_of(self, kind: str, side: str) -> Labels:
        """Names of all rows or columns; where too few were given, numbers name the rest."""
        place = ("rows", "columns").index(side)
        given = self.trace.labels(kind=kind, item=self.item)[place]
        count = self.trace.shape(0, kind=kind, call=None)[2 + place]
        every = [*given[:count], *map(str, range(len(given), count))]
        if side == "columns" and (rows := self._labels(kind, "rows")).tokens == every:
            return rows  # of a long text this is much
        return Labels.of(every)

    # --- weights ---

    def row(self, *, kind: str, layer: int, head: str, query: int, measure: str) -> replies.RowJson:
        """One query's attention to each key."""
        with reading():
            weights = self._read_row("weights", kind, layer, head, query)
            if measure == "weights":
                values = weights
            elif measure != "rollout":
                values = self._read_row(measure, kind, layer, head, query)
            elif kind.endswith("self"):
                values = self.trace.rollout(query, layer=layer, item=self.item, kind=kind)
            else:
                raise Invalid(f"measure: rollout goes through layers of kind self, not of {kind}")
        return {
            "values": numbers(values),
            "query": query,
            "kind": kind,
            "layer": layer,
            "head": head if head_of(head) is None else int(head),
            "measure": measure,
            "entropy": number(-torch.xlogy(weights, weights).sum().item() + 0.0),
        }

    def _read_row(self, measure: str, kind: str, layer: int, head: str, query: int) -> Tensor:
        read = getattr(self.trace, measure)
        values: Tensor = read(layer, head_of(head), query, kind=kind, item=self.item, call=None)
        return values.mean(0) if head_of(head) is None else values

    def tile(
        self,
        *,
        kind: str,
        layer: int,
        head: str,
        pool: Literal["max", "sum"] = "max",
        limit: int = 512,
        rows: str | None = None,
        cols: str | None = None,
        height: int | None = None,
        width: int | None = None,
        samples: int | None = None,
    ) -> Tile:
        """A part of the weights, each side at most ``limit`` long; with ``samples``, from so many rows of each cell."""
        size = min(height or limit, limit), min(width or limit, limit)
        with reading():
            _, _, queries, keys = self.trace.shape(layer, kind=kind, call=None)
            spans = _span("rows", rows, queries), _span("cols", cols, keys)
            number = head_of(head)
            which: int | Literal["mean"] = "mean" if number is None else number
            found = self.trace.tile(
                layer, which, *spans, size, pool, samples=samples, item=self.item, kind=kind, call=None
            )
        cell = -(-(spans[0][1] - spans[0][0]) // size[0])
        return Tile(found.float().numpy(), samples is None or samples >= cell)

    def heads(self, *, kind: str) -> replies.HeadsJson:
        """Means over queries of each head's entropy, weight on the first key, and distance, [layers][heads].

        ``rows`` of the ``queries`` were measured: all, or ``SAMPLED_QUERIES`` of them, evenly spread.
        """
        with reading():
            layers = self.trace.kinds.get(kind, 0)
            _, heads, queries, _ = self.trace.shape(0, kind=kind, call=None)
            count = queries if queries <= ALL_QUERIES else SAMPLED_QUERIES
            rows = [i * queries // count for i in range(count)]

            def means(measure: Callable[..., Tensor]) -> replies.Matrix:
                by_layer = (measure(n, rows=rows, kind=kind, item=self.item, call=None) for n in range(layers))
                return [numbers(x.mean(-1)) for x in by_layer]

            return {
                "kind": kind,
                "layers": layers,
                "heads": heads,
                "queries": queries,
                "rows": len(rows),
                "entropy": means(self.trace.entropy),
                "sink": means(self.trace.sink),
                "distance": means(self.trace.distance),
            }

    # --- one query ---

    def steps(
        self, *, kind: str, layer: int, head: str, query: int, score: str = TRAINED, key: int | None = None
    ) -> replies.StepsJson:
        """Every number on the way from one query to its context."""
        if head_of(head) is None:
            raise Invalid("head: the steps are those of one head; give its number")
        with reading():
            if (keys := self.trace.shape(layer, kind=kind, call=None)[3]) > MAX_TOKENS:
                most = f"the maximum is {MAX_TOKENS:,}"
                raise Invalid(f"the steps of a query with {keys:,} keys are too many to show; {most}")
            read = partial(self.trace.steps, layer, int(head), query, kind=kind, item=self.item, call=None)
            found = read()
            if score != TRAINED:
                device = self.trace.recorded[0].problems[0].device
                found = read(score=counterfactual(score, len(found.q)).to(device))
        out: dict[str, object] = {name: numbers(x) if isinstance(x, Tensor) else x for name, x in vars(found).items()}
        out["difference"] = None if found.difference is None else number(found.difference)
        inputs = found.key_inputs
        if key is not None and inputs is not None and key >= len(inputs):
            raise Invalid(f"key: there are {len(inputs)}, from 0; got {key}")
        out |= {"key_inputs": None, "key_input": None if key is None or inputs is None else numbers(inputs[key])}
        dim = max(1, len(found.q))  # biases alone have no vectors
        scale = _scale(found.similarity, found.scaled - found.added, dim)
        written = formula(found.score)
        if scale not in (None, dim**-0.5):  # a scale other than 1/√d
            written = written.replace("/ √d", f"· {scale:g}")
        out |= {"formula": written, "terms": terms(found.score), "scale": scale}
        return cast(replies.StepsJson, out)  # the fields of QuerySteps, and those added here

    # --- what needs more than a trace ---

    def align(
        self, *, layer: int | None = None, head: str | None = None, shift: str | None = None, gold: str | None = None
    ) -> replies.AlignmentJson:
        """Word links: of translations."""
        raise Unable("this trace is not of a translation, so it has no word links")

    def effects(self, *, kind: str, layer: int | None = None) -> replies.EffectsJson:
        """How log p changes without each head, in a layer or in all; needs a model and a target."""
        raise Unable(_NO_MODEL)

    def knockout(self, *, heads: Sequence[replies.HeadPlace]) -> replies.WithoutJson:
        """How log p changes without some heads; needs a model and a target."""
        raise Unable(_NO_MODEL)


@contextmanager
def reading() -> Iterator[None]:
    """Reading a trace: what it refuses is an invalid request."""
    try:
        with torch.no_grad():
            yield
    except ValueError as error:
        raise Invalid(str(error)) from error


# --- heads and spans ---


def head_of(head: str) -> int | None:
    """The number of a head, None for the mean."""
    return None if head == "mean" else int(head)


def _span(name: str, text: str | None, count: int) -> tuple[int, int]:
    first, end = (0, count) if text is None else map(int, text.split(":"))
    if not 0 <= first < end <= count:
        raise Invalid(f"{name}: expected first:end within 0:{count}, got {text}")
    return first, end


# --- numbers ---


def numbers(x: Tensor) -> list[Any]:
    """Lists, nested as the tensor's dims are; NaN and infinity as in :func:`number`."""
    found: list[Any] = x.tolist()
    return found if bool(x.isfinite().all()) else _to_json(found)


def _to_json(x: list[Any]) -> list[Any]:
    return [_to_json(each) if isinstance(each, list) else number(each) for each in x]


def number(x: float) -> replies.Number:
    """JSON has no NaN: it is "NaN", and ∞ "Infinity"; −∞, a masked score, is null.

    >>> [number(x) for x in (0.5, float("nan"), float("inf"), -float("inf"))]
    [0.5, 'NaN', 'Infinity', None]
    """
    if math.isfinite(x):
        return x
    return "NaN" if math.isnan(x) else "Infinity" if x > 0 else None


def _scale(similarity: Tensor, scaled: Tensor, dim: int) -> float | None:
    """The factor of the similarities, if it is one number; 1/√d and 1 are returned exactly."""
    plain = similarity.abs() > 0.1 * similarity.abs().max() if len(similarity) else similarity.bool()
    ratios = (scaled / similarity)[plain]
    if not len(ratios) or not torch.allclose(ratios, ratios[0].expand_as(ratios), rtol=1e-3):
        return None
    ratio = ratios.median().item()
    return next((exact for exact in (1.0, dim**-0.5) if abs(ratio - exact) < 1e-4 * exact), ratio)
