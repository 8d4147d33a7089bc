"""From the arguments of a call to problems: checks, removal of masked NaN, and lowering of the score."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard.attention.arguments import autocast, check_number, check_tensors, flat, seed_of, shape_of, sink_of
from regard.attention.plan import BACKENDS, Choice, choose
from regard.attention.positions import Places, Positions, places_of
from regard.kernels import _autocast
from regard.kernels import _guard as guard
from regard.mask import Mask
from regard.mask.dense import as_mask
from regard.mask.own import bind
from regard.mask.packed import Packed
from regard.mask.shape import Shape, broadcast_pairs
from regard.score import PerHead, Score
from regard.score.base import describe_argument
from regard.score.terms import (
    BiasTerm,
    DotTerm,
    FormulaTerm,
    Keys,
    KeyTerm,
    Problem,
    TanhTerm,
    Term,
    Terms,
    join,
    may_need_gradient,
)


@dataclass(frozen=True)
class Lowering:
    """A checked call: one problem per group of heads."""

    problems: tuple[Problem, ...]
    batch: tuple[int, ...]
    backend: str

    @property
    def choices(self) -> tuple[Choice, ...]:
        return tuple(choose(problem, self.backend) for problem in self.problems)


def lower(
    q: Tensor,
    k: Tensor | Keys,
    v: Tensor,
    score: Score,
    mask: Mask | Tensor | None,
    offset: int | Tensor,
    positions: Positions | None,
    dropout: float = 0.0,
    seed: int | Tensor | None = None,
    sink: float | Tensor | None = None,
    need_logsumexp: bool = False,
    backend: str = "auto",
) -> Lowering:
    """Turn arguments into problems, or raise before any work is done."""
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
    if not isinstance(score, Score):
        raise TypeError(f"score must be a regard.score.Score, such as Dot(), got {describe_argument(score)}")
    check_number("dropout", dropout, 0, 1)
    lowered = isinstance(k, Keys)
    key_tensors = k.tensors if isinstance(k, Keys) else (k,)
    check_tensors(q, key_tensors, v)
    q, key_tensors, v = autocast(q, key_tensors, v)
    for x in (*key_tensors, v):
        if x.dtype != q.dtype:
            raise TypeError(f"q, k and v must have one dtype, got {q.dtype} and {x.dtype}")
    shape = shape_of(q, key_tensors, v)
    kv_heads = v.shape[-3]
    score.check(shape.heads, q.shape[-1], kv_heads, None if lowered else key_tensors[0].shape[-1])
    if lowered and len(key_tensors) != score.key_tensors:
        raise ValueError(
            f"the lowered keys hold {len(key_tensors)} tensors, {type(score).__name__} makes "
            f"{score.key_tensors}; were they made by another score?"
        )
    mask = None if mask is None else as_mask(mask)
    places = places_of(offset, positions, None if mask is None else mask.packing(), shape, lowered)
    if places.packed is not None:
        _check_lengths(score, places.packed)
    bound = None if mask is None else bind(mask, replace(shape, key_positions=places.keys, laid=places.laid))
    q, v, *keys = (flat(x, shape.batch) for x in (q, v, *key_tensors))
    bad_keys, bad_rows = None, None
    if bound is not None and not (isinstance(k, Keys) and k.trusted):
        q, v, keys, bad_keys, bad_rows = guard.take_out(q, v, keys, _places(score, len(keys), kv_heads, lowered))
    keys_or_k = replace(k, tensors=tuple(keys)) if isinstance(k, Keys) else keys[0]
    terms = Terms(()) if isinstance(score, PerHead) else _join_terms(score, q, keys_or_k, places, v, kv_heads, shape)
    whole = Problem(
        terms,
        v,
        shape.heads,
        shape.queries,
        bound,
        places.offset,
        None,
        float(dropout),
        seed_of(seed, q.device) if dropout > 0 else None,
        sink_of(sink, shape),
        bad_keys,
        bad_rows,
        0,
        need_logsumexp,
        _learned_biases(terms),
        _learned_offsets(terms),
        places.keys,
    )
    problems = _groups(whole, score, q, keys_or_k, places, shape) if isinstance(score, PerHead) else (whole,)
    return Lowering(problems, shape.batch, backend)


def _check_lengths(score: Score, packed: Packed) -> None:
    """Refuse packed documents of several lengths if the score depends on the length: a call has one length."""
    if score.unchanged_up_to == math.inf:
        return
    documents = packed.documents()
    lengths = None if documents is None else {keys.stop - keys.start for _, keys in documents} - {0}
    if lengths is None or (len(lengths) > 1 and max(lengths) > score.unchanged_up_to):
        raise ValueError(
            "NTKScaling depends on the sequence length, and packed documents have several lengths: run them one by "
            "one, or use a scaling that does not depend on it, such as YaRNScaling"
        )


def _places(score: Score, count: int, kv_heads: int, lowered: bool) -> list[slice]:
    """The key/value heads of each key tensor: all heads, except in lowered keys of a PerHead."""
    if not lowered or not isinstance(score, PerHead):
        return [slice(0, kv_heads)] * count
    return [heads for _, heads, part in score.slices(kv_heads) for _ in range(part.key_tensors)]


def _groups(
    whole: Problem, score: PerHead, q: Tensor, k: Tensor | Keys, places: Places, shape: Shape
) -> tuple[Problem, ...]:
    """One problem per group of heads of a PerHead."""
    problems = []
    cleaned = whole.bad_keys is not None
    parts = score.split(k) if isinstance(k, Keys) else None
    for i, (heads, kv, part) in enumerate(score.slices(whole.kv_heads)):
        keys = parts[i] if parts is not None else _cut(k, kv, cleaned)  # type: ignore[arg-type]
        count, v = heads.stop - heads.start, _cut(whole.v, kv, cleaned)
        some = replace(shape, heads=count)
        terms = _join_terms(part, _cut(q, heads, cleaned), keys, places, v, v.shape[1], some)
        problems.append(
            replace(
                whole,
                terms=terms,
                v=v,
                heads=count,
                first_head=heads.start,
                mask=None if whole.mask is None else whole.mask.for_heads(heads),
                sink=whole.sink if whole.sink is None or whole.sink.shape[1] == 1 else whole.sink[:, heads],
                bad_keys=None if whole.bad_keys is None else _cut(whole.bad_keys, kv, cleaned),
                bad_rows=None if whole.bad_rows is None else _cut(whole.bad_rows, heads, cleaned),
                need_bias_gradient=_learned_biases(terms),
                need_offset_gradient=_learned_offsets(terms),
            )
        )
    return tuple(problems)


def _cut(x: Tensor, heads: slice, cleaned: bool) -> Tensor:
    """Some heads of x: a view, or when compiling a copy of a cleaned tensor, which the cleaning writes at no cost.

    (PyTorch 2.13, compiling such slices with gradients for any length, takes the strides of one length for constants.)
    """
    part = x[:, heads]
    return part.clone() if cleaned and torch.compiler.is_compiling() else part


def _join_terms(
    score: Score, q: Tensor, k: Tensor | Keys, places: Places, v: Tensor, kv_heads: int, shape: Shape
) -> Terms:
    """The lowered score, with its own tensors checked: biases and the value table."""
    keys = k if isinstance(k, Keys) else score.keys(k, places.key_start)
    terms = join(score.queries(q, places.query_start), keys)
    if terms.values is not None and terms.values.shape[-1] != v.shape[-1]:
        raise ValueError(
            f"Relative(values=True) was made for value_dim={terms.values.shape[-1]}, got values with {v.shape[-1]} dims"
        )
    bias = False
    for term in terms.terms:
        _check_joined(term, kv_heads)
        bias = bias or isinstance(term, BiasTerm)
    if terms.formulas:
        terms = replace(terms, terms=tuple(_formula(t, places, q.device) for t in terms.terms))
    if not bias:
        return terms
    return replace(
        terms,
        terms=tuple(BiasTerm(_pairs(t.bias, v.shape[0], shape)) if isinstance(t, BiasTerm) else t for t in terms.terms),
    )


def _formula(term: Term, places: Places, device: torch.device) -> Term:
    """A formula with the positions of queries relative to the keys and the autocast dtype; other terms unchanged."""
    if not isinstance(term, FormulaTerm):
        return term
    if places.keys is not None and term.fixes_keys:
        raise ValueError(
            f"{term.name} only has a dense formula, which assumes key j at position j: it takes positions of queries, "
            "but not of keys (if it ignores positions, declare positional = False)"
        )
    under = torch.get_autocast_dtype(device.type) if _autocast.is_on(device) else None
    term = replace(term, offset=places.among_keys, autocast=under)
    if not term.knows_places:
        return replace(term, packed=places.packed)
    moved = places.keys is not None or places.packed is not None
    return replace(term, starts=(places.query_start, places.key_start) if moved else None)


def _learned_biases(terms: Terms) -> bool:
    biases = terms.biases
    return len(biases) == 0 or may_need_gradient(*(t.bias for t in biases))


def _learned_offsets(terms: Terms) -> bool:
    offsets = terms.offsets
    return len(offsets) == 0 or may_need_gradient(*(x for t in offsets for x in (t.table, t.slope)))


def _check_joined(term: Term, kv_heads: int) -> None:
    """Check that the halves of a term fit each other: the key half may come from a cache."""
    dims, made = 1, None
    if isinstance(term, DotTerm):
        dims, made = term.q.shape[-1], term.k
    elif isinstance(term, TanhTerm):
        dims, made = term.a.shape[-1], term.b
    elif isinstance(term, KeyTerm):
        made = term.c
    if made is not None and (made.shape[1] != kv_heads or made.shape[-1] != dims):
        raise ValueError(
            f"the lowered keys have {made.shape[1]} heads of {made.shape[-1]} dims where {kv_heads} heads of {dims} "
            "are needed; were they made by another score?"
        )


def _pairs(bias: Tensor, batch: int, shape: Shape) -> Tensor:
    """A bias as [B|1, H|1, L|1, S|1]; it has the caller's batch dims, or the flattened one if made from q."""
    if len(shape.batch) != 1 and bias.ndim == 4 and bias.shape[0] == batch != 1:
        return broadcast_pairs("Bias", bias, replace(shape, batch=(batch,)))
    return broadcast_pairs("Bias", bias, shape)
