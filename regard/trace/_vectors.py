"""All vectors of one head at once: what a program without this package needs to follow its steps.

Shapes: L queries, S keys, D dims of queries and keys, Dv of values, E the module's width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.kernels import reference
from regard.score.terms import DotTerm, PairTerm, Problem
from regard.trace._call import Call


@dataclass(frozen=True)
class Vectors:
    """One head: softmax(masked scaled) · v is its context.

    ``products`` are None where they are q_id · k_jd. ``scaled`` is None where it is their sum times ``scale``.
    """

    q: Tensor  # [L, D]
    k: Tensor  # [S, D]
    v: Tensor  # [S, Dv]
    allowed: Tensor  # [L, S], whether a query may look at a key
    scale: float | None
    products: Tensor | None  # [L · S, P]
    scaled: Tensor | None  # [L, S]
    recorded: Tensor | None  # [L, Dv], the model's own context
    output: Tensor | None  # [L, E], the context through the head's slice of the output projection

    def all_products(self) -> Tensor:
        """What each dimension contributes to the similarity of each pair, [L, S, P]."""
        if self.products is None:
            return self.q[:, None] * self.k[None]
        return self.products.reshape(len(self.q), len(self.k), -1)

    def all_scaled(self) -> Tensor:
        """The score of each pair before the mask, [L, S]."""
        if self.scaled is not None:
            return self.scaled
        assert self.scale is not None
        scaled: Tensor = self.all_products().sum(-1) * self.scale
        return scaled


def vectors(calls: Sequence[Call], head: int, item: int) -> Vectors | None:
    """The vectors of a layer's calls, their queries one after the other.

    None where weights and values are not all: a sink beside the keys, positions in the values, or calls that do not
    look at the same keys.
    """
    parts = [_of_call(call, head, item) for call in calls]
    if any(part is None for part in parts):
        return None
    known = [part for part in parts if part is not None]
    k, v = known[-1].k, known[-1].v
    for part in known:
        if not (torch.equal(part.k, k[: len(part.k)]) and torch.equal(part.v, v[: len(part.v)])):
            return None
    if len(known) == 1:
        return known[0]
    scales = {part.scale for part in known}
    whole = len(scales) == 1 and all(part.scaled is None for part in known)
    bare = all(part.products is None for part in known)
    return Vectors(
        torch.cat([part.q for part in known]),
        k,
        v,
        torch.cat([_wide(part.allowed, len(k)) for part in known]),
        scales.pop() if whole else None,
        None if bare else torch.cat([_products(part, len(k)) for part in known]),
        None if whole else torch.cat([_wide(part.all_scaled(), len(k)) for part in known]),
        _join([part.recorded for part in known]),
        _join([part.output for part in known]),
    )


def products_wide(calls: Sequence[Call], head: int) -> int:
    """P, numbers per pair that ``vectors`` would give as products; 0 for those that can be computed from q and k."""
    call = calls[-1]
    p = call.narrow(head, 0)
    return 0 if _is_plain_dot(call, p, head, 0) else sum(_width(term) for term in p.terms.pairs)


def _of_call(call: Call, head: int, item: int) -> Vectors | None:
    p = call.narrow(head, item)
    if p.sink is not None or p.terms.values is not None or not call.has_values:
        return None
    with torch.no_grad():
        shown = reference.run_steps(p).map(lambda x: x[0, 0])
    plain = _is_plain_dot(call, p, head, item)
    q, k = _sides(call, p, head, item)
    scale = _scale(p)
    finite = shown.scaled.isfinite()
    output = None
    if call.projection is not None:
        output = shown.context.to(call.projection.dtype) @ call.projection[head]
    return Vectors(
        q.cpu(),
        k.cpu(),
        p.v[0, 0].cpu(),
        (shown.masked.isfinite() & finite).cpu(),
        scale,
        None if plain else _pairs(p).flatten(0, 1).cpu(),
        None if scale is not None else shown.scaled.masked_fill(~finite, 0.0).cpu(),
        None if call.out is None else call.out[item, head].cpu(),
        None if output is None else output.cpu(),
    )


def _sides(call: Call, p: Problem, head: int, item: int) -> tuple[Tensor, Tensor]:
    """q [L, D] and k [S, D] as the score got them, or lowered where that is all there is."""
    if call.q is not None and call.k is not None:
        return call.q[item, head], call.k[item, head * call.k.shape[1] // call.q.shape[1]]
    if not p.terms.pairs:
        return p.v.new_zeros(p.queries, 0), p.v.new_zeros(p.keys, 0)
    return _halves(p.terms.pairs[0])


def _halves(term: PairTerm) -> tuple[Tensor, Tensor]:
    q, k = (term.q, term.k) if isinstance(term, DotTerm) else (term.a, term.b)
    assert k is not None
    return q[0, 0], k[0, 0]


def _is_plain_dot(call: Call, p: Problem, head: int, item: int) -> bool:
    """Is the similarity q · k of the very vectors that are shown?"""
    if len(p.terms.pairs) != 1 or not isinstance(p.terms.pairs[0], DotTerm):
        return False
    return all(torch.equal(a, b) for a, b in zip(_sides(call, p, head, item), _halves(p.terms.pairs[0]), strict=True))


def _scale(p: Problem) -> float | None:
    """The factor of the similarity, if the score is the similarity times a factor."""
    if p.terms.cap is not None or not p.terms.pairs or len(p.terms.pairs) != len(p.terms.terms):
        return None
    scales = {float(term.scale) if isinstance(term, DotTerm) else 1.0 for term in p.terms.pairs}
    return scales.pop() if len(scales) == 1 else None


def _width(term: PairTerm) -> int:
    return int((term.q if isinstance(term, DotTerm) else term.a).shape[-1])


def _pairs(p: Problem) -> Tensor:
    """What each dimension contributes to the similarity, [L, S, P]."""
    parts = [p.v.new_zeros(p.queries, p.keys, 0, dtype=p.compute_dtype)]
    for term in p.terms.pairs:
        q, k = (x.to(p.compute_dtype) for x in _halves(term))
        if isinstance(term, DotTerm):
            parts.append(q[:, None] * k[None])
        else:
            parts.append(torch.tanh(q[:, None] + k[None]) * term.w[0, 0].to(p.compute_dtype))
    return torch.cat(parts, -1)


# --- calls joined ---


def _wide(x: Tensor, keys: int) -> Tensor:
    """With columns for keys that came later; their weights are 0."""
    return torch.nn.functional.pad(x, (0, keys - x.shape[1]))


def _products(part: Vectors, keys: int) -> Tensor:
    return torch.nn.functional.pad(part.all_products(), (0, 0, 0, keys - len(part.k))).flatten(0, 1)


def _join(parts: Sequence[Tensor | None]) -> Tensor | None:
    known = [part for part in parts if part is not None]
    return torch.cat(known) if len(known) == len(parts) else None
