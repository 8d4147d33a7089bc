"""attend(), steps() and plan(): check everything once, lower the score, hand the problem to the planner.

Shapes: q [..., heads, L, Dq], k [..., kv_heads, S, Dk], v [..., kv_heads, S, Dv] → [..., heads, L, Dv], with heads a
multiple of kv_heads and batch dims that broadcast.
"""

from __future__ import annotations

import math
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Literal, Protocol, overload

import torch
from torch import Tensor

from regard.kernels import _guard as guard
from regard.kernels import reference, sdpa
from regard.kernels.reference import Steps
from regard.mask import Causal, Mask, Shape, as_mask, broadcast_pairs
from regard.plan import BACKENDS, Choice, Plan, choose, is_plain
from regard.score import Dot, PerHead, Score
from regard.terms import (
    BiasTerm,
    DotTerm,
    Keys,
    KeyTerm,
    Problem,
    TanhTerm,
    Term,
    Terms,
    join,
    may_need_gradient,
    one_head,
    plain,
)

_DOT = Dot()


@dataclass(frozen=True)
class Seen:
    """An attention call as an observer sees it: what came in, and what it was lowered to."""

    q: Tensor
    k: Tensor | Keys
    v: Tensor
    score: Score
    problems: tuple[Problem, ...]  # one per group of heads
    batch: tuple[int, ...]


class Observer(Protocol):
    """What :func:`regard.record` sets: told of every call, it returns the context that the model goes on with."""

    def __call__(self, seen: Seen, out: Tensor, /) -> Tensor: ...


OBSERVER: ContextVar[Observer | None] = ContextVar("regard_observer", default=None)


def observed() -> bool:
    """Is somebody looking? Then keys are better given as they are than lowered."""
    return not torch.compiler.is_compiling() and OBSERVER.get() is not None


@overload
def attend(
    q: Tensor,
    k: Tensor | Keys,
    v: Tensor,
    *,
    score: Score = ...,
    mask: Mask | Tensor | None = ...,
    offset: int | Tensor = ...,
    dropout: float = ...,
    seed: int | Tensor | None = ...,
    sink: float | Tensor | None = ...,
    return_logsumexp: Literal[False] = ...,
    backend: str = ...,
) -> Tensor: ...


@overload
def attend(
    q: Tensor,
    k: Tensor | Keys,
    v: Tensor,
    *,
    score: Score = ...,
    mask: Mask | Tensor | None = ...,
    offset: int | Tensor = ...,
    dropout: float = ...,
    seed: int | Tensor | None = ...,
    sink: float | Tensor | None = ...,
    return_logsumexp: Literal[True],
    backend: str = ...,
) -> tuple[Tensor, Tensor]: ...


def attend(
    q: Tensor,
    k: Tensor | Keys,
    v: Tensor,
    *,
    score: Score = _DOT,
    mask: Mask | Tensor | None = None,
    offset: int | Tensor = 0,
    dropout: float = 0.0,
    seed: int | Tensor | None = None,
    sink: float | Tensor | None = None,
    return_logsumexp: bool = False,
    backend: str = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    """softmax(score(q, k)) v, with any score, by the best kernel that can do it.

    Args:
        q, k, v: [..., heads, L, Dq], [..., kv_heads, S, Dk], [..., kv_heads, S, Dv]. ``k`` may be a score's lowered
            keys, ``score.keys(k)``, as a cache keeps them.
        score: how a query aligns with a key, see :mod:`regard.score`.
        mask: what a query may see, see :mod:`regard.mask`; a bool tensor (True = may attend) works too.
        offset: position of the first query (key j is at position j); an int, or one per batch item.
        dropout: probability of dropping a weight; which ones depends on (seed, batch, head, i, j) alone.
        seed: None draws one from PyTorch's generator.
        sink: logit of an extra key of value zero, a number or one per head, [heads].
        return_logsumexp: also return log Σ exp of each row's scores, [..., heads, L], not differentiable.
        backend: "auto" lets the planner choose; "reference", "blockwise", "sdpa" force a kernel.

    A row with nothing to attend to gives 0, zero gradients and logsumexp −inf. NaN or Inf in a masked place reaches
    neither output nor gradients; a row that may see one is NaN.

    >>> import regard
    >>> q = k = v = torch.eye(2)[None]
    >>> regard.attend(q, k, v, score=regard.score.Dot(scale=1.0)).round(decimals=4)
    tensor([[[0.7311, 0.2689],
             [0.2689, 0.7311]]])
    """
    observer = None if torch.compiler.is_compiling() else OBSERVER.get()
    out, call = None, None
    if backend == "auto" and sink is None and not return_logsumexp and type(dropout) in (float, int) and not dropout:
        out = _plain_dot(q, k, v, score, mask, offset)
        if out is not None and observer is None:
            return out
    if out is None or observer is not None:
        call = _check(q, k, v, score, mask, offset, dropout, seed, sink, return_logsumexp, backend)
    results: list[tuple[Tensor, Tensor | None]] = []
    if out is None:
        assert call is not None
        results = [choice.run() for choice in call.choices]
        out = _join([out for out, _ in results], call.batch)
    if observer is not None and call is not None:
        out = observer(Seen(q, k, v, score, call.problems, call.batch), out)
    if not return_logsumexp:
        return out
    assert call is not None
    return out, _join([lse for _, lse in results if lse is not None], call.batch)


def steps(
    q: Tensor,
    k: Tensor | Keys,
    v: Tensor,
    *,
    score: Score = _DOT,
    mask: Mask | Tensor | None = None,
    offset: int | Tensor = 0,
    sink: float | Tensor | None = None,
    rows: Tensor | None = None,
) -> Steps:
    """The same attention in plain sight: similarity, scaled, masked, weights and context, all dense.

    ``rows`` picks some of the queries by index; positions and masks stay those of the whole.

    >>> import regard
    >>> s = regard.steps(torch.tensor([[[0.2, 0.1]]]), torch.tensor([[[0.3, 0.4]]]), torch.ones(1, 1, 2))
    >>> round(s.similarity.item(), 4), round(s.scaled.item(), 4), s.weights.item()
    (0.1, 0.0707, 1.0)
    """
    call = _check(q, k, v, score, mask, offset, 0.0, None, sink, True, "reference")
    return _steps(call, rows)


def attend_densely(
    q: Tensor,
    k: Tensor | Keys,
    v: Tensor,
    *,
    score: Score = _DOT,
    mask: Mask | Tensor | None = None,
    offset: int | Tensor = 0,
) -> Steps:
    """``attend`` for a model that needs its own weights, as a recurrent decoder may: all its steps, dense.

    The numbers are those of :func:`steps`, which only looks; this is the model's attention itself, and
    :func:`regard.record` sees it.
    """
    call = _check(q, k, v, score, mask, offset, 0.0, None, None, True, "reference")
    shown = _steps(call, None)
    observer = None if torch.compiler.is_compiling() else OBSERVER.get()
    if observer is None:
        return shown
    return replace(shown, context=observer(Seen(q, k, v, score, call.problems, call.batch), shown.context))


def log_weights(
    q: Tensor,
    k: Tensor | Keys,
    v: Tensor,
    *,
    head: int,
    score: Score = _DOT,
    mask: Mask | Tensor | None = None,
    offset: int | Tensor = 0,
    sink: float | Tensor | None = None,
) -> Tensor:
    """log α of one head, dense, [..., L, S], −inf where it may not look: for losses that attention itself is to learn.

    The other heads are not computed. ``head`` counts query heads from 0.
    """
    call = _check(q, k, v, score, mask, offset, 0.0, None, sink, False, "reference")
    of = [p for p in call.problems if p.first_head <= head < p.first_head + p.heads]
    if not of:
        raise ValueError(f"head: expected one of {q.shape[-3]}, counted from 0, got {head}")
    found = reference.log_weights(one_head(of[0], head - of[0].first_head))[:, 0]
    return found.view(*call.batch, *found.shape[-2:])


def plan(
    q: Tensor,
    k: Tensor | Keys,
    v: Tensor,
    *,
    score: Score = _DOT,
    mask: Mask | Tensor | None = None,
    offset: int | Tensor = 0,
    dropout: float = 0.0,
    seed: int | Tensor | None = None,
    sink: float | Tensor | None = None,
    return_logsumexp: bool = False,
    backend: str = "auto",
) -> Plan:
    """What ``attend`` would do with the same arguments, and why. Print it."""
    return Plan(_check(q, k, v, score, mask, offset, dropout, seed, sink, return_logsumexp, backend).choices)


@dataclass(frozen=True)
class _Call:
    """A checked call: a problem per group of heads."""

    problems: tuple[Problem, ...]
    batch: tuple[int, ...]
    backend: str

    @property
    def choices(self) -> tuple[Choice, ...]:
        return tuple(choose(problem, self.backend) for problem in self.problems)


def _steps(call: _Call, rows: Tensor | None) -> Steps:
    problems = [replace(problem, terms=plain(problem.terms)) for problem in call.problems]
    problems = problems if rows is None else [select_rows(problem, rows) for problem in problems]
    parts = [reference.run_steps(problem) for problem in problems]
    return Steps(*(_join([getattr(part, name) for part in parts], call.batch) for name in Steps.__dataclass_fields__))


def lowered(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    score: Score = _DOT,
    mask: Mask | Tensor | None = None,
    offset: int | Tensor = 0,
    sink: float | Tensor | None = None,
) -> Seen:
    """The call as an observer would see it; nothing is run."""
    call = _check(q, k, v, score, mask, offset, 0.0, None, sink, True, "reference")
    return Seen(q, k, v, score, call.problems, call.batch)


def select_rows(p: Problem, rows: Tensor) -> Problem:
    """The problem of some of its queries."""
    rows = torch.as_tensor(rows, device=p.device)
    if rows.ndim != 1 or rows.is_floating_point() or rows.dtype == torch.bool:
        raise TypeError(f"rows must be a list of query indices, got {rows.dtype} of shape {list(rows.shape)}")
    if rows.numel() and not 0 <= int(rows.min()) <= int(rows.max()) < p.queries:
        raise ValueError(f"rows must lie in 0…{p.queries - 1}, got {int(rows.min())}…{int(rows.max())}")

    def pick(x: Tensor | None, dim: int = 2) -> Tensor | None:
        return x if x is None or x.shape[dim] == 1 else x.index_select(dim, rows)

    fields = {"DotTerm": "q", "TanhTerm": "a", "OffsetTerm": "table", "BiasTerm": "bias"}
    terms = []
    for term in p.terms.terms:
        name = fields.get(type(term).__name__)
        terms.append(term if name is None else replace(term, **{name: pick(getattr(term, name))}))  # type: ignore[arg-type]
    return replace(
        p, terms=replace(p.terms, terms=tuple(terms)), rows=rows, queries=len(rows), bad_rows=pick(p.bad_rows)
    )


def _plain_dot(
    q: Tensor, k: Tensor | Keys, v: Tensor, score: Score, mask: Mask | Tensor | None, offset: int | Tensor
) -> Tensor | None:
    """The most usual call by the shortest way, or None if this is another: planning would take longer than running."""
    if type(score) is not Dot or type(offset) is not int or not isinstance(k, Tensor) or not is_plain(q, k, v):
        return None
    if mask is None:
        return sdpa.dot(q, k, v, score.scale)
    if type(mask) is not Causal or offset != 0:
        return None
    q, v, (k,), bad_keys, bad_rows = _guard(q, v, [k], [slice(0, k.shape[1])])
    out = sdpa.dot(q, k, v, score.scale, causal=True)
    return out if bad_keys is None or bad_rows is None else sdpa.spoil_causal(out, bad_keys, bad_rows)


# --- checks ---


def _check(
    q: Tensor,
    k: Tensor | Keys,
    v: Tensor,
    score: Score,
    mask: Mask | Tensor | None,
    offset: int | Tensor,
    dropout: float,
    seed: int | Tensor | None,
    sink: float | Tensor | None,
    need_logsumexp: bool,
    backend: str,
) -> _Call:
    """Turn arguments into problems, or raise before any work is done."""
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
    if not isinstance(score, Score):
        raise TypeError(f"score must be a regard.score.Score, such as Dot(), got {type(score).__name__}")
    _check_number("dropout", dropout, 0, 1)
    lowered = isinstance(k, Keys)
    key_tensors = k.tensors if isinstance(k, Keys) else (k,)
    _check_tensors(q, key_tensors, v)
    q, key_tensors, v = _autocast(q, key_tensors, v)
    for x in (*key_tensors, v):
        if x.dtype != q.dtype:
            raise TypeError(f"q, k and v must have one dtype, got {q.dtype} and {x.dtype}")
    shape = _shape(q, key_tensors, v)
    kv_heads = v.shape[-3]
    score.check(shape.heads, q.shape[-1], kv_heads, None if lowered else key_tensors[0].shape[-1])
    if lowered and len(key_tensors) != score.key_tensors:
        raise ValueError(
            f"the lowered keys hold {len(key_tensors)} tensors, {type(score).__name__} makes "
            f"{score.key_tensors}; were they made by another score?"
        )
    offset = _offset(offset, shape)
    bound = None if mask is None else as_mask(mask).bind(shape)
    q, v, *keys = (_flat(x, shape.batch) for x in (q, v, *key_tensors))
    bad_keys, bad_rows = None, None
    if bound is not None and not (isinstance(k, Keys) and k.trusted):
        q, v, keys, bad_keys, bad_rows = _guard(q, v, keys, _places(score, len(keys), kv_heads, lowered))
    keys_or_k = replace(k, tensors=tuple(keys)) if isinstance(k, Keys) else keys[0]
    terms = Terms(()) if isinstance(score, PerHead) else _join_terms(score, q, keys_or_k, offset, v, kv_heads, shape)
    whole = Problem(
        terms,
        v,
        shape.heads,
        shape.queries,
        bound,
        offset,
        None,
        float(dropout),
        _seed(seed, q.device) if dropout > 0 else None,
        _sink(sink, shape),
        bad_keys,
        bad_rows,
        0,
        need_logsumexp,
        _learned_biases(terms),
        _learned_offsets(terms),
    )
    problems = _groups(whole, score, q, keys_or_k, shape) if isinstance(score, PerHead) else (whole,)
    return _Call(problems, shape.batch, backend)


def _check_tensors(q: Tensor, keys: tuple[Tensor, ...], v: Tensor) -> None:
    for name, x in (("q", q), *(("k", t) for t in keys), ("v", v)):
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(x).__name__}")
        if not x.is_floating_point():
            raise TypeError(f"{name} must be floating point (float16, bfloat16, float32 or float64), got {x.dtype}")
        if x.ndim < 3:
            raise ValueError(
                f"{name} must be [..., heads, length, dim], at least 3 dims, got shape {list(x.shape)}; "
                f"for one head write {name}[None]"
            )
        if x.device != q.device:
            raise ValueError(f"q, k and v must be on one device, got q on {q.device} and {name} on {x.device}")


def _shape(q: Tensor, keys: tuple[Tensor, ...], v: Tensor) -> Shape:
    for t in keys:
        if t.shape[-2] != v.shape[-2]:
            raise ValueError(f"k and v must have the same length, got {t.shape[-2]} keys and {v.shape[-2]} values")
    if len(keys) == 1 and keys[0].shape[-3] != v.shape[-3]:
        raise ValueError(f"k and v must have the same number of heads, got {keys[0].shape[-3]} and {v.shape[-3]}")
    heads, kv_heads = q.shape[-3], v.shape[-3]
    if kv_heads == 0 or heads % kv_heads:
        raise ValueError(f"query heads must be a multiple of key/value heads, got {heads} and {kv_heads}")
    batch = q.shape[:-3]
    for t in (*keys, v):
        if t.shape[:-3] != batch:
            try:
                batch = torch.broadcast_shapes(batch, t.shape[:-3])
            except RuntimeError:
                raise ValueError(
                    f"batch dims must broadcast, got {list(q.shape[:-3])} for q and {list(t.shape[:-3])} for k or v"
                ) from None
    return Shape(tuple(batch), heads, q.shape[-2], v.shape[-2], q.device)


def _autocast(q: Tensor, keys: tuple[Tensor, ...], v: Tensor) -> tuple[Tensor, tuple[Tensor, ...], Tensor]:
    """Under autocast q, k and v become its dtype, as for PyTorch's own attention."""
    device = q.device.type
    if not torch.is_autocast_enabled(device) or q.dtype == torch.float64:
        return q, keys, v
    dtype = torch.get_autocast_dtype(device)
    return q.to(dtype), tuple(t.to(dtype) for t in keys), v.to(dtype)


def _offset(offset: int | Tensor, shape: Shape) -> int | Tensor:
    if not isinstance(offset, Tensor):
        if isinstance(offset, bool) or not isinstance(offset, (int, torch.SymInt)):
            raise TypeError(f"offset must be an int or a tensor of one per batch item, got {type(offset).__name__}")
        return offset
    if offset.is_floating_point() or offset.dtype == torch.bool:
        raise TypeError(f"offset must hold whole numbers, got {offset.dtype}")
    if offset.numel() != 1 and offset.shape != shape.batch:
        raise ValueError(
            f"offset must be one number or one per batch item, {list(shape.batch)}, got shape {list(offset.shape)}"
        )
    return offset.to(shape.device).reshape(-1)


def _seed(seed: int | Tensor | None, device: torch.device) -> Tensor:
    if seed is None:
        return torch.randint(2**62, (1,), device=device)
    if isinstance(seed, Tensor):
        if seed.is_floating_point() or seed.dtype == torch.bool or seed.numel() != 1:
            raise ValueError(f"seed must be one whole number, got a tensor of {seed.dtype}, shape {list(seed.shape)}")
        return seed.to(device, torch.int64).reshape(1)
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise TypeError(f"seed must be a whole number or None, got {seed!r}")
    if not -(2**63) <= seed < 2**63:
        raise ValueError(f"seed must fit into 64 bits, got {seed}")
    return torch.tensor([seed], device=device)


def _sink(sink: float | Tensor | None, shape: Shape) -> Tensor | None:
    if sink is None:
        return None
    if not isinstance(sink, Tensor):
        _check_number("sink", sink, -math.inf, math.inf)
        sink = torch.tensor(float(sink), dtype=torch.float64, device=shape.device)
    if not sink.is_floating_point():
        raise TypeError(f"sink must be floating point, got {sink.dtype}")
    if sink.device != shape.device:
        raise ValueError(f"sink is on {sink.device}, but q, k and v are on {shape.device}")
    if sink.ndim > 1 or sink.numel() not in (1, shape.heads):
        raise ValueError(f"sink must be a number or one per head, [{shape.heads}], got shape {list(sink.shape)}")
    return sink.reshape(1, -1)


def _check_number(name: str, value: float, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value < high:
        expected = "a finite number" if math.isinf(high) else f"at least {low} and below {high}"
        raise ValueError(f"{name} must be {expected}, got {value!r}")


def _flat(x: Tensor, batch: tuple[int, ...]) -> Tensor:
    """Batch dims broadcast and flattened to one."""
    if len(batch) == 1 and x.ndim == 4 and x.shape[0] == batch[0]:
        return x
    return x.expand(*batch, *x.shape[-3:]).reshape(math.prod(batch), *x.shape[-3:])


def _join(parts: list[Tensor], batch: tuple[int, ...]) -> Tensor:
    """Groups of heads side by side, batch dims as they came."""
    whole = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
    return whole if len(batch) == 1 else whole.reshape(*batch, *whole.shape[1:])


# --- masked NaN and Inf ---


def _guard(
    q: Tensor, v: Tensor, keys: list[Tensor], places: list[slice]
) -> tuple[Tensor, Tensor, list[Tensor], Tensor | None, Tensor | None]:
    """Take what is not finite out of q, k and v, and say where it was.

    A masked pair has weight 0, but 0 · NaN is NaN, forward and backward, and a linear projection's weight gradient
    would see it too. Kernels put NaN back into the pairs that are visible. On a CPU a sum tells cheaply that
    there is nothing to do; where data may not be looked at (compiled, vmapped, on a GPU) everything is cleaned.
    """
    if guard.fits(q, v, *keys):
        return guard.clean(q, v, keys, places)
    if _all_finite(q, v, *keys):
        return q, v, keys, None, None
    sums = _sum(v)
    for t, heads in zip(keys, places, strict=True):
        part = _sum(t)
        if part.shape[1] != v.shape[1]:
            part = torch.nn.functional.pad(part, (0, 0, heads.start, v.shape[1] - heads.stop))
        sums = sums + part
    bad_rows, bad_keys = _not_finite(_sum(q)), _not_finite(sums)
    q, v, *keys = (t.nan_to_num(0.0, 0.0, 0.0) for t in (q, v, *keys))
    return q, v, keys, bad_keys, bad_rows


def _sum(x: Tensor) -> Tensor:
    """Per vector, in a type wide enough that only NaN and Inf make it NaN or Inf: [B, heads, length]."""
    return x.sum(-1, dtype=torch.float32 if x.dtype == torch.float16 else torch.float64)


def _not_finite(x: Tensor) -> Tensor:
    return x - x != 0  # two small kernels; isfinite is more


def _places(score: Score, count: int, kv_heads: int, lowered: bool) -> list[slice]:
    """The key/value heads that each key tensor belongs to: all, but for a PerHead's lowered keys."""
    if not lowered or not isinstance(score, PerHead):
        return [slice(0, kv_heads)] * count
    return [heads for _, heads, part in score.slices(kv_heads) for _ in range(part.key_tensors)]


def _all_finite(*tensors: Tensor) -> bool:
    if torch.compiler.is_compiling() or tensors[0].device.type != "cpu":
        return False
    try:
        return all(math.isfinite(t.detach().sum(dtype=_wide(t)).item()) for t in tensors)
    except RuntimeError:  # vmap allows no look at the data
        return False


def _wide(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


# --- lowering ---


def _groups(whole: Problem, score: PerHead, q: Tensor, k: Tensor | Keys, shape: Shape) -> tuple[Problem, ...]:
    """A problem per group of heads."""
    problems = []
    parts = score.split(k) if isinstance(k, Keys) else None
    for i, (heads, kv, part) in enumerate(score.slices(whole.kv_heads)):
        keys = parts[i] if parts is not None else k[:, kv]  # type: ignore[index]
        count, v = heads.stop - heads.start, whole.v[:, kv]
        some = replace(shape, heads=count)
        terms = _join_terms(part, q[:, heads], keys, whole.offset, v, v.shape[1], some)
        problems.append(
            replace(
                whole,
                terms=terms,
                v=v,
                heads=count,
                first_head=heads.start,
                mask=None if whole.mask is None else whole.mask.for_heads(heads),
                sink=whole.sink if whole.sink is None or whole.sink.shape[1] == 1 else whole.sink[:, heads],
                bad_keys=None if whole.bad_keys is None else whole.bad_keys[:, kv],
                bad_rows=None if whole.bad_rows is None else whole.bad_rows[:, heads],
                need_bias_gradient=_learned_biases(terms),
                need_offset_gradient=_learned_offsets(terms),
            )
        )
    return tuple(problems)


def _join_terms(
    score: Score, q: Tensor, k: Tensor | Keys, offset: int | Tensor, v: Tensor, kv_heads: int, shape: Shape
) -> Terms:
    """The lowered score, and checks of what it brought along itself: biases and a value table."""
    terms = join(score.queries(q, offset), k if isinstance(k, Keys) else score.keys(k))
    if terms.values is not None and terms.values.shape[-1] != v.shape[-1]:
        raise ValueError(
            f"Relative(values=True) was made for value_dim={terms.values.shape[-1]}, got values with {v.shape[-1]} dims"
        )
    bias = False
    for term in terms.terms:
        _check_joined(term, kv_heads)
        bias = bias or isinstance(term, BiasTerm)
    if not bias:
        return terms
    return replace(
        terms,
        terms=tuple(BiasTerm(_pairs(t.bias, v.shape[0], shape)) if isinstance(t, BiasTerm) else t for t in terms.terms),
    )


def _learned_biases(terms: Terms) -> bool:
    biases = terms.biases
    return len(biases) == 0 or may_need_gradient(*(t.bias for t in biases))


def _learned_offsets(terms: Terms) -> bool:
    offsets = terms.offsets
    return len(offsets) == 0 or may_need_gradient(*(x for t in offsets for x in (t.table, t.slope)))


def _check_joined(term: Term, kv_heads: int) -> None:
    """Do the two halves of a term fit? They may come from a cache."""
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
    """[B|1, H|1, L|1, S|1] of a bias with the caller's batch dims, or made from q with the flattened one."""
    if len(shape.batch) != 1 and bias.ndim == 4 and bias.shape[0] == batch != 1:
        return broadcast_pairs("Bias", bias, replace(shape, batch=(batch,)))
    return broadcast_pairs("Bias", bias, shape)
