"""A recorded sentence as numbers for the page: the only file of the service that knows what a trace is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.align import Alignment, links, parse, quality, word_weights
from regard.explorer.schema import Invalid
from regard.explorer.scores import counterfactual, formula
from regard.explorer.sides import alignment, source_side, target_side
from regard.models import RNNSeq2Seq
from regard.text import Encoded
from regard.trace import Trace
from regard.trace import record as recording
from regard.translator import Translator

SIDES = {"self": ("source", "source"), "decoder": ("target", "target"), "cross": ("target", "source")}
TRAINED = "trained"


def record(translator: Translator, text: str, target: str, *, own: bool = False) -> Recording:
    """Reads a pair once, as if the model had written the target, and keeps what it looked at.

    A target of the model's ``own`` may be longer than a given one: as long as the model has positions.
    """
    source = encoded(translator, text, "text", translator.limit)
    most: int | None = translator.limit
    if own:
        positions = translator.engine.max_length
        most = None if positions is None else positions - 1
    wanted = encoded(translator, target, "target", most)
    model, device = translator.model, translator.device
    read = torch.tensor([[*source.ids, model.eos_id]], device=device)
    given = torch.tensor([[model.bos_id, *wanted.ids]], device=device)
    with torch.no_grad(), recording(model, inputs=True) as trace:
        model(read, given)
    if isinstance(model, RNNSeq2Seq):
        for call in trace.recorded:  # its decoder hands over keys already transformed; what they were made of are h,
            call.k = call.problems[0].v  # the values too
    return Recording(translator, trace, (text, source), (target, wanted))


def encoded(translator: Translator, text: str, name: str, most: int | None) -> Encoded:
    """A side in subwords, if it can be traced."""
    if not text.strip():
        raise Invalid(f"{name}: it is empty, so there is nothing to look at")
    found = translator.subwords.encode(text)
    if most is not None and len(found.ids) > most:
        raise Invalid(f"{name}: {len(found.ids):,} subwords, and the most in a trace is {most:,}")
    return found


class Recording:
    """A pair of texts and the trace of reading it; each method is an answer of the service.

    Source columns are its subwords and </s>; target rows <s> and its subwords, each row predicting the next.
    """

    def __init__(
        self, translator: Translator, trace: Trace, source: tuple[str, Encoded], target: tuple[str, Encoded]
    ) -> None:
        self._translator, self.trace, self._source, self._target = translator, trace, source, target

    @property
    def size(self) -> int:
        """Bytes that the trace keeps, what calls share counted once."""
        known: dict[int, int] = {}
        for call in self.trace.recorded:
            given = [call.q, call.k, call.out, call.query_input, call.key_input]
            lowered = [x for p in call.problems for term in p.terms.terms for x in vars(term).values()]
            for x in (*given, *lowered, *(p.v for p in call.problems)):
                if isinstance(x, Tensor):
                    known[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return sum(known.values())

    def kinds(self) -> list[dict[str, Any]]:
        """What there is to look at."""
        return [
            {
                "kind": kind,
                "layers": layers,
                "heads": self.trace.shape(0, kind=kind)[1],
                "rows": SIDES[kind][0],
                "columns": SIDES[kind][1],
                "score": self.trace.score(0, kind=kind),
            }
            for kind, layers in self.trace.kinds.items()
        ]

    def described(self) -> dict[str, Any]:
        """Both sides, the kinds, and the alignment that the model's own settings give."""
        (text, source), (target, wanted) = self._source, self._target
        return {
            "source": source_side(text, [(0, text, source)]),
            "target": target_side(target, [(0, target, wanted)]),
            "kinds": self.kinds(),
            "alignment": self.align(),
        }

    def row(self, *, kind: str, layer: int, head: str, query: int, measure: str) -> dict[str, Any]:
        """How much one query looks at each key."""
        with _asked():
            weights = self._weights(kind, layer, head, query)
            values = weights
            if measure == "norms":
                values = _mean(self.trace.norms(layer, _head(head), query, kind=kind, call=None), head)
        return {
            "values": _numbers(values),
            "query": query,
            "kind": kind,
            "layer": layer,
            "head": _shown(head),
            "measure": measure,
            "entropy": -torch.xlogy(weights, weights).sum().item() + 0.0,
        }

    def tile(
        self,
        *,
        kind: str,
        layer: int,
        head: str,
        pool: str,
        limit: int,
        rows: str | None = None,
        cols: str | None = None,
        height: int | None = None,
        width: int | None = None,
    ) -> np.ndarray[Any, np.dtype[np.float32]]:
        """A part of the weights as [h, w], each side ``limit`` long at most."""
        size = min(height or limit, limit), min(width or limit, limit)
        with _asked():
            _, _, queries, keys = self.trace.shape(layer, kind=kind, call=None)
            spans = _span("rows", rows, queries), _span("cols", cols, keys)
            if self.trace.calls(layer, kind=kind) == 1 and _head(head) is not None:
                how: Any = pool
                found = self.trace.tile(layer, int(head), *spans, size, how, kind=kind)
            else:
                (top, bottom), (left, right) = spans
                found = pooled(self._weights(kind, layer, head, None)[top:bottom, left:right], size, pool)
        return found.float().numpy()

    def steps(
        self, *, kind: str, layer: int, head: str, query: int, score: str, key: int | None = None
    ) -> dict[str, Any]:
        """Every number on the way from one query to its context."""
        if _head(head) is None:
            raise Invalid("head: the steps are those of one head; give its number")
        with _asked():
            where: dict[str, Any] = {"kind": kind, "call": None}
            found = self.trace.steps(layer, int(head), query, **where)
            if score != TRAINED:
                other = counterfactual(score, len(found.q)).to(self._translator.device)
                found = self.trace.steps(layer, int(head), query, score=other, **where)
        out = {name: _numbers(x) if isinstance(x, Tensor) else x for name, x in vars(found).items()}
        keys = found.key_inputs
        if key is not None and keys is not None and key >= len(keys):
            raise Invalid(f"key: there are {len(keys)}, from 0; got {key}")
        out |= {"key_inputs": None, "key_input": None if key is None or keys is None else _numbers(keys[key])}
        scale = _scale(found.similarity, found.scaled - found.added, len(found.q))
        written = formula(found.score)
        if scale not in (None, len(found.q) ** -0.5):  # a scale of its own
            written = written.replace("/ √d", f"· {scale:g}")
        return {**out, "formula": written, "scale": scale}

    def align(
        self,
        *,
        layer: int | None = None,
        head: str | None = None,
        shift: str | None = None,
        gold: str | None = None,
    ) -> dict[str, Any]:
        """Word links by cross-attention, and their error rate where right ones are given."""
        turned = None if shift is None else shift == "1"
        with _asked():
            look = self._translator.look(self.trace.kinds["cross"], layer=layer, shift=turned)
            look = look if head is None else look._replace(head=_head(head))
            weights = self.trace.weights(look.layer, None, kind="cross", call=None)[None]
            words = self._source[1].words, self._target[1].words
            matrix = word_weights(weights, *words, layer=0, head=look.head, shift=look.shift)
        right = _gold(gold, [max(side, default=-1) + 1 for side in words])
        return alignment(matrix, look, None if right is None else quality([links(matrix)], [right]).aer)

    def _weights(self, kind: str, layer: int, head: str, rows: int | None) -> Tensor:
        return _mean(self.trace.weights(layer, _head(head), rows, kind=kind, call=None), head)


@contextmanager
def _asked() -> Iterator[None]:
    """Reading a trace: what it refuses is a mistake of who asked."""
    try:
        with torch.no_grad():
            yield
    except ValueError as error:
        raise Invalid(str(error)) from error


# --- heads and spans ---


def _head(head: str) -> int | None:
    return None if head == "mean" else int(head)


def _shown(head: str) -> int | str:
    return head if _head(head) is None else int(head)


def _mean(values: Tensor, head: str) -> Tensor:
    return values.mean(0) if _head(head) is None else values


def _span(name: str, text: str | None, count: int) -> tuple[int, int]:
    first, end = (0, count) if text is None else map(int, text.split(":"))
    if not 0 <= first < end <= count:
        raise Invalid(f"{name}: expected first:end within 0:{count}, got {text}")
    return first, end


def pooled(weights: Tensor, size: tuple[int, int], pool: str) -> Tensor:
    """[L, S] → at most ``size``, the maximum or the sum of each cell, cut as ``Trace.tile`` cuts it.

    >>> pooled(torch.tensor([[1.0, 2.0, 3.0]]), (1, 2), "sum")
    tensor([[3., 3.]])
    """
    how = "amax" if pool == "max" else "sum"
    for axis in (0, 1):
        length, count = weights.shape[axis], min(weights.shape[axis], size[axis])
        cells = torch.arange(length) * count // length
        index = cells[:, None].expand_as(weights) if axis == 0 else cells.expand_as(weights)
        shape = [count, weights.shape[1]] if axis == 0 else [weights.shape[0], count]
        weights = weights.new_zeros(shape).scatter_reduce(axis, index, weights, how)
    return weights


# --- numbers ---


def _numbers(x: Tensor) -> Any:
    """Nested lists, null for what JSON has no number for: −inf, the score of what is masked."""
    return x.tolist() if bool(x.isfinite().all()) else _finite(x.tolist())


def _finite(x: Any) -> Any:
    if isinstance(x, list):
        return [_finite(each) for each in x]
    return x if -float("inf") < x < float("inf") else None


def _scale(similarity: Tensor, scaled: Tensor, dim: int) -> float | None:
    """What similarities were multiplied by, if by one number; 1/√d or 1 are told exactly."""
    plain = similarity.abs() > 0.1 * similarity.abs().max() if len(similarity) else similarity.bool()
    ratios = (scaled / similarity)[plain]
    if not len(ratios) or not torch.allclose(ratios, ratios[0].expand_as(ratios), rtol=1e-3):
        return None
    ratio = ratios.median().item()
    return next((exact for exact in (1.0, dim**-0.5) if abs(ratio - exact) < 1e-4 * exact), ratio)


def _gold(text: str | None, counts: list[int]) -> Alignment | None:
    """Links as people write them, ``0-0 1p2``; a possible one may also be written ``1-2p``."""
    if text is None or not text.strip():
        return None
    with _asked():
        right = parse(re.sub(r"(?a)\b(\d+)-(\d+)[pP]\b", r"\1p\2", text))
    for name, place, count in (("source", 0, counts[0]), ("target", 1, counts[1])):
        if (last := max(link[place] for link in right.possible)) >= count:
            raise Invalid(f"gold: names {name} word {last}, and there are {count}, from 0")
    return right
