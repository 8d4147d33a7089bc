"""A trace: the attention calls of a model, addressed by kind, layer, head, batch item and call.

Nothing n × n is kept. Weights, scores, tiles and measures are recomputed from queries and keys for the rows asked for.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from regard.attention.call import OBSERVER, observation_of
from regard.attention.positions import Positions
from regard.mask import Mask
from regard.score import Dot, Score
from regard.trace._call import Call, QuerySteps, TopK
from regard.trace._kinds import by_kind
from regard.trace._rollout import rollout
from regard.trace._rows import RowIndex, Selection, Where, check_place, split_rows
from regard.trace._tiles import pool_tile
from regard.trace._unseen import SEEN, explain, find_unseen
from regard.trace._walk import map_tensors

if TYPE_CHECKING:
    from typing_extensions import Unpack

BORROWED = ("projection", "bias")  # the model's own parameters, not copies
CACHES = ("past_key_values", "past_key_value", "cache")  # arguments that a call changes


class Trace:
    """What :func:`regard.record` saw. A layer is a module, numbered within its kind in order of first use.

    Kinds are "self", "decoder" (the self-attention of a decoder that also attends to an encoder) and "cross". Where a
    model has several towers each has its own, called by its path: CLIP's are "text_model self" and "vision_model self".
    ``head`` None means all heads, one after the other in a first dim. ``rows`` picks queries: one (an int; its dim is
    dropped), some, or None for all. ``item`` is the batch item. ``call`` counts a layer's calls, the last by default;
    None joins the rows of all of them, as generation and recurrent decoders make them one by one.
    ``where`` in a signature stands for the keywords ``item=0``, ``kind="self"`` and ``call=-1``.

    What comes back is on the CPU. Padding is shown as the model saw it: masked keys have weight 0.
    """

    def __init__(self) -> None:
        self.recorded: list[Call] = []
        self.model: torch.nn.Module | None = None
        self.run: tuple[tuple[object, ...], dict[str, object]] | None = None  # how the model was called last
        self.ran: dict[str, type[torch.nn.Module]] = {}  # modules that ran, by path
        self.texts: dict[tuple[str, int], tuple[list[str], list[str]]] = {}
        self._by_kind: dict[str, dict[str, list[Call]]] | None = None

    @classmethod
    def of(
        cls,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        score: Score | None = None,
        mask: Mask | Tensor | None = None,
        offset: int | Tensor = 0,
        positions: Positions | None = None,
    ) -> Trace:
        """A trace of one attention that you have the queries and keys of; nothing is run.

        >>> q = k = v = torch.randn(1, 2, 50, 8)
        >>> Trace.of(q, k, v).tile(0, 1, size=(10, 10)).shape
        torch.Size([10, 10])
        """
        from regard.trace._record import record

        with torch.no_grad(), record() as trace:
            observer = OBSERVER.get()
            assert observer is not None
            how = Dot() if score is None else score
            seen = observation_of(q, k, v, score=how, mask=mask, offset=offset, positions=positions)
            observer(seen, v.new_zeros(*seen.batch, *q.shape[-3:-1], v.shape[-1]))
        trace.recorded[0].out = None
        return trace

    def __repr__(self) -> str:
        parts = [f"{kind}: {count} layers × {self.shape(0, kind=kind)[1]} heads" for kind, count in self.kinds.items()]
        shown = f"<Trace {', '.join(parts) or 'of nothing'}; {len(self.recorded)} calls>"
        return f"{shown}\n{explain(found, self.ran)}" if (found := self.unseen) else shown

    @property
    def unseen(self) -> dict[str, str]:
        """Modules that look like attention, by path, of which nothing was seen; and what they do instead."""
        return find_unseen(self.ran, (call.name for call in self.recorded))

    def why_empty(self) -> str:
        """Why there is nothing, where there is nothing."""
        if not self.ran:
            return "was the model called inside the with block?"
        found = self.unseen
        return explain(found, self.ran) if found else f"nothing that looks like attention ran; {SEEN}"

    @property
    def nbytes(self) -> int:
        """Bytes that are kept, what calls share counted once."""
        storages: dict[int, int] = {}

        def count(x: Tensor) -> Tensor:
            storages[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
            return x

        for call in self.recorded:
            map_tensors(tuple(getattr(call, each.name) for each in fields(call) if each.name not in BORROWED), count)
        return sum(storages.values())

    def add(self, call: Call) -> None:
        """Append a call, in order of execution."""
        self.recorded.append(call)
        self._by_kind = None

    # --- what there is ---

    @property
    def kinds(self) -> dict[str, int]:
        """The kinds of attention there are, with their numbers of layers."""
        return {kind: len(layers) for kind, layers in self._layers().items()}

    def names(self, kind: str = "self") -> tuple[str, ...]:
        """The paths of the modules, one per layer."""
        return tuple(self._of_kind(kind))

    def calls(self, layer: int, *, kind: str = "self") -> int:
        """How often a layer was called."""
        return len(self._calls(layer, kind))

    def shape(self, layer: int, *, kind: str = "self", call: int | None = -1) -> tuple[int, int, int, int]:
        """(batch, heads, queries, keys); of all calls together their rows, and the most keys."""
        shapes = [c.shape for c in self._choose(layer, kind, call)]
        return shapes[0][0], shapes[0][1], sum(s[2] for s in shapes), max(s[3] for s in shapes)

    def score(self, layer: int, head: int | None = None, *, kind: str = "self") -> str:
        """How this layer, or one head of it, scores, in words."""
        call = self._calls(layer, kind)[-1]
        return call.score if head is None else call.score_of(head)

    def label(
        self, queries: Sequence[str], keys: Sequence[str] | None = None, *, kind: str = "self", item: int = 0
    ) -> None:
        """Name the rows and columns of a kind, as a rule by their tokens; ``keys`` are the same unless given.

        There is a name for every row and column, of padding too; with several calls, for the rows of all or of each.
        """
        names = list(queries), list(queries if keys is None else keys)
        batch, _, rows, columns = self.shape(0, kind=kind, call=None)
        if not 0 <= item < batch:
            raise ValueError(f"item: expected one of {batch}, counted from 0, got {item}")
        if len(names[0]) != rows and {len(names[0])} != {c.shape[2] for c in self._calls(0, kind)}:
            raise ValueError(f"queries: expected {rows} names, one for each row of {kind!r}, got {len(names[0])}")
        if len(names[1]) != columns:
            hint = "" if keys is not None else "; where rows and columns differ, give both: label(queries, keys)"
            raise ValueError(
                f"keys: expected {columns} names, one for each column of {kind!r}, got {len(names[1])}{hint}"
            )
        self.texts[kind, item] = names

    def labels(self, *, kind: str = "self", item: int = 0) -> tuple[list[str], list[str]]:
        """The names of rows and columns; their numbers where none were given."""
        known = self.texts.get((kind, item))
        if known is not None:
            return known
        _, _, queries, keys = self.shape(0, kind=kind, call=None)
        return [str(i) for i in range(queries)], [str(j) for j in range(keys)]

    # --- rows ---

    def weights(self, layer: int, head: int | None = None, rows: RowIndex = None, **where: Unpack[Where]) -> Tensor:
        """softmax(E), before dropout, [(heads,) (rows,) keys]."""
        return self._select(layer, head, rows, **where).read(Call.weights)

    def scores(self, layer: int, head: int | None = None, rows: RowIndex = None, **where: Unpack[Where]) -> Tensor:
        """E, −inf where masked, [(heads,) (rows,) keys]."""
        return self._select(layer, head, rows, **where).read(Call.scores, empty=-torch.inf)

    def norms(self, layer: int, head: int | None = None, rows: RowIndex = None, **where: Unpack[Where]) -> Tensor:
        """‖α_ij f(x_j)‖, f(x) being the head's value vector through its part of the output projection.

        How much of what a query got came from a key (Kobayashi et al. 2020, https://arxiv.org/abs/2004.10102): a large
        weight on a vector that is nearly 0 moves nothing.
        """

        def norms(c: Call, h: int, i: int, r: Tensor) -> Tensor:
            return c.weights(h, i, r) * c.value_norms(h, i, r)

        return self._select(layer, head, rows, **where).read(norms)

    def gradient(self, layer: int, head: int | None = None, rows: RowIndex = None, **where: Unpack[Where]) -> Tensor:
        """α_ij · ∂L/∂α_ij of the loss that ``backward`` was called on; needs ``record(model, gradients=True)``."""

        def product(c: Call, h: int, i: int, r: Tensor) -> Tensor:
            return c.weights(h, i, r) * c.weight_gradient(h, i, r)

        return self._select(layer, head, rows, **where).read(product)

    def logsumexp(self, layer: int, head: int | None = None, **where: Unpack[Where]) -> Tensor:
        """log Σ_j exp E_ij, [(heads,) queries]."""
        return self._select(layer, head, None, **where).numbers(Call.logsumexp)

    # --- a number per query ---

    def entropy(self, layer: int, head: int | None = None, rows: RowIndex = None, **where: Unpack[Where]) -> Tensor:
        """−Σ_j α_ij ln α_ij in nats, [(heads,) rows]: 0 is all on one key, ln n is uniform over n keys."""
        return self._select(layer, head, rows, **where).measure(lambda w, c, i, r: -torch.xlogy(w, w).sum(-1))

    def distance(self, layer: int, head: int | None = None, rows: RowIndex = None, **where: Unpack[Where]) -> Tensor:
        """Σ_j α_ij |i − j|, [(heads,) rows]: how far a query looks on average."""

        def far(w: Tensor, c: Call, i: int, r: Tensor) -> Tensor:
            return (w * c.distances(i, r).to(w.device)).sum(-1)

        return self._select(layer, head, rows, **where).measure(far)

    def sink(
        self, layer: int, head: int | None = None, rows: RowIndex = None, *, first: int = 1, **where: Unpack[Where]
    ) -> Tensor:
        """The weight that goes to the ``first`` keys, [(heads,) rows]."""
        return self._select(layer, head, rows, **where).measure(lambda w, c, i, r: w[:, :first].sum(-1))

    # --- one query ---

    def steps(
        self, layer: int, head: int, query: int, *, score: Score | None = None, **where: Unpack[Where]
    ) -> QuerySteps:
        """How one head of one query came to its context.

        ``score``, another one, shows what it would make of the same queries and keys: not what the model did.
        """
        chosen = self._select(layer, head, query, **where)
        ((call, row),) = chosen.pieces
        check_place(call, head, chosen.item)
        return call.steps(head, chosen.item, int(row), score)

    def topk(self, layer: int, head: int, query: int, k: int = 5, **where: Unpack[Where]) -> TopK:
        """The ``k`` keys with the largest weights, and the weight of the rest."""
        weights = self.weights(layer, head, query, **where)
        values, keys = weights.topk(min(k, len(weights)))
        return TopK(values, keys, max(float(weights.sum() - values.sum()), 0.0))

    def rollout(self, row: int, *, layer: int = -1, item: int = 0, kind: str = "self", call: int = -1) -> Tensor:
        """How much of each input a query holds after self-attention layers 0 … layer, [keys].

        Attention rollout (Abnar & Zuidema 2020, https://arxiv.org/abs/2005.00928): heads are averaged, half of every
        layer is taken to be the residual connection, and layers are multiplied; a row at a time, in O(n) memory.
        """
        last = range(len(self._of_kind(kind)))[layer]
        return rollout([self._choose(depth, kind, call)[0] for depth in range(last + 1)], row, item)

    # --- parts of a matrix too large to look at ---

    def tile(
        self,
        layer: int,
        head: int | Literal["mean"],
        rows: tuple[int, int] | None = None,
        cols: tuple[int, int] | None = None,
        size: tuple[int, int] | None = None,
        pool: Literal["max", "sum"] = "max",
        *,
        samples: int | None = None,
        item: int = 0,
        kind: str = "self",
        call: int | None = -1,
    ) -> Tensor:
        """Weights of rows a … b − 1 and columns c … d − 1, pooled by the maximum or the sum of each cell.

        ``head`` "mean" pools the mean over heads. A tile has at most ``size`` cells, (height, width), each as small as
        that allows; without a size every pair has its own cell. With ``samples`` only so many rows of each cell are
        computed, evenly spread: the maximum is then that of these rows, the sum an estimate. All columns are read.
        """
        calls = self._choose(layer, kind, call)
        _, heads, queries, keys = self.shape(layer, kind=kind, call=call)
        several = list(range(heads)) if head == "mean" else [head]
        for h in several:
            check_place(calls[0], h, item)
        p = calls[0].problems[0]
        like = torch.zeros((), dtype=p.compute_dtype, device=p.device).expand(queries, keys)

        def read(some: Tensor, columns: slice) -> Iterator[Tensor]:
            for c, few in split_rows(calls, some):
                yield c.mean_weights(several, item, few, columns)

        return pool_tile(read, like, rows, cols, size, pool, samples).cpu()

    # --- without a head ---

    def ablate(self, heads: Mapping[tuple[str, int], Sequence[int]]) -> Any:
        """The model's output without these heads, {(kind, layer): heads}; it is run again, as recorded.

        >>> import regard
        >>> model = regard.nn.EncoderLayer(8, 2)
        >>> with regard.record(model) as trace:
        ...     out = model(torch.ones(1, 3, 8))
        >>> trace.ablate({("self", 0): [1]}).shape
        torch.Size([1, 3, 8])
        """
        from regard.trace._record import without

        if self.model is None or self.run is None:
            raise ValueError(
                "there is no model to run again: the trace was loaded from a file, or the model was not called as "
                "model(...); wrap a call of your own in regard.trace.without(model, {module path: heads})"
            )
        named: dict[str, list[int]] = {}
        for place, some in heads.items():
            if not isinstance(place, tuple) or len(place) != 2 or not isinstance(some, Iterable):
                raise TypeError(
                    f'heads are {{(kind, layer): heads}}, as in {{("self", 2): [3]}}, got {{{place!r}: {some!r}}}'
                )
            kind, layer = place
            call = self._calls(layer, kind)[-1]
            for head in some:
                check_place(call, head, 0)
            named.setdefault(call.name, []).extend(some)
        args, kwargs = self.run
        if any(kwargs.get(name) is not None for name in CACHES):
            raise ValueError(
                "the model was called last with a cache, which has changed since: record one call of the whole text"
            )
        with torch.no_grad(), without(self.model, named):
            return self.model(*args, **kwargs)

    def save(self, path: str | os.PathLike[str], *, inputs: bool = False) -> None:
        """Write a safetensors file that :func:`regard.trace.load` reads; ``inputs`` adds what modules were given."""
        from regard.trace._file import save

        save(self, path, inputs=inputs)

    def to_html(
        self,
        path: str | os.PathLike[str],
        *,
        title: str = "",
        item: int = 0,
        view: Literal["sentence", "steps", "heads", "compare"] = "sentence",
        kind: str | None = None,
        layer: int | None = None,
        head: int | Literal["mean"] | None = None,
        query: int | None = None,
        bits: Literal[8, 16] = 16,
    ) -> None:
        """Write a page that shows this trace anywhere: one HTML file that opens from disk and loads nothing.

        It opens with a ``view`` of one ``head`` of a ``layer`` of a ``kind``, and one ``query``; readers choose others.
        Weights have ``bits`` bits each and a scale per row; the page says how exact that is.
        """
        from regard.explorer.export import save

        save(self, path, item=item, title=title, bits=bits, view=view, kind=kind, layer=layer, head=head, query=query)

    # --- finding calls ---

    def _layers(self) -> dict[str, dict[str, list[Call]]]:
        if self._by_kind is None:
            self._by_kind = by_kind(self.recorded)
        return self._by_kind

    def _of_kind(self, kind: str) -> dict[str, list[Call]]:
        layers = self._layers()
        if kind not in layers:
            there = ", ".join(layers) or f"nothing: {self.why_empty()}"
            raise ValueError(f"kind: expected one of those recorded ({there}), got {kind!r}")
        return layers[kind]

    def _calls(self, layer: int, kind: str) -> list[Call]:
        layers = list(self._of_kind(kind).values())
        if not -len(layers) <= layer < len(layers):
            raise ValueError(f"layer: there are {len(layers)} of kind {kind!r}, from 0; got {layer}")
        return layers[layer]

    def _choose(self, layer: int, kind: str, call: int | None) -> list[Call]:
        calls = self._calls(layer, kind)
        if call is None:
            return calls
        if not -len(calls) <= call < len(calls):
            raise ValueError(f"call: layer {layer} of kind {kind!r} was called {len(calls)} times, got {call}")
        return [calls[call]]

    def _select(
        self,
        layer: int,
        head: int | None,
        rows: RowIndex,
        *,
        item: int = 0,
        kind: str = "self",
        call: int | None = -1,
    ) -> Selection:
        return Selection.of(self._choose(layer, kind, call), head, rows, item)
