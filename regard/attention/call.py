"""attend(), steps() and plan(): ``lower`` turns arguments into problems, and the planner hands these to kernels.

Shapes: q [..., heads, L, Dq], k [..., kv_heads, S, Dk], v [..., kv_heads, S, Dv] → [..., heads, L, Dv], with heads a
multiple of kv_heads and batch dims that broadcast.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Literal, Protocol, overload

import torch
from torch import Tensor

from regard.attention.lower import Lowering, lower
from regard.attention.nested import are_nested, pack
from regard.attention.plan import Plan, is_plain
from regard.attention.positions import Positions
from regard.kernels import _guard as guard
from regard.kernels import reference, sdpa
from regard.kernels.reference import Steps
from regard.mask import Causal, Mask
from regard.score import Dot, Score
from regard.score.terms import Keys, Problem, one_head, plain

_DOT = Dot()
_NESTED = "[batch, heads, *, dim]"


@dataclass(frozen=True)
class Observation:
    """An attention call as an observer sees it: its arguments, and the problems they were lowered to."""

    q: Tensor
    k: Tensor | Keys
    v: Tensor
    score: Score
    problems: tuple[Problem, ...]  # one per group of heads
    batch: tuple[int, ...]


class Observer(Protocol):
    """Set by :func:`regard.record`. It sees every call, and returns the context that the model continues with."""

    def __call__(self, seen: Observation, out: Tensor, /) -> Tensor: ...


OBSERVER: ContextVar[Observer | None] = ContextVar("regard_observer", default=None)


def has_observer() -> bool:
    """Is an observer set? Then pass keys as they are, not lowered."""
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
    positions: Positions | None = ...,
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
    positions: Positions | None = ...,
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
    positions: Positions | None = None,
    dropout: float = 0.0,
    seed: int | Tensor | None = None,
    sink: float | Tensor | None = None,
    return_logsumexp: bool = False,
    backend: str = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    """softmax(score(q, k)) v, with any score, by the best kernel for it.

    Args:
        q, k, v: [..., heads, L, Dq], [..., kv_heads, S, Dk], [..., kv_heads, S, Dv]. ``k`` may be a score's lowered
            keys, ``score.keys(k)``, as a cache keeps them. Nested tensors (``torch.jagged``), [batch, heads, *, dim],
            are treated as packed documents, without padding; the result is nested too.
        score: how a query aligns with a key, see :mod:`regard.score`.
        mask: which keys a query may see, see :mod:`regard.mask`; or a bool tensor (True = may attend).
        offset: position of the first query (key j is at position j); an int, or one per batch item.
        positions: explicit positions instead, integers [L] or [..., L]: one tensor for both queries and keys, or a
            pair (of queries, of keys), with None for a side whose positions are its indices.
        dropout: probability of dropping a weight; a function of (seed, batch, head, i, j) decides which.
        seed: seed of dropout; None draws one from PyTorch's generator.
        sink: logit of an extra key of value zero, a number or one per head, [heads].
        return_logsumexp: also return log Σ exp of each row's scores, [..., heads, L], not differentiable.
        backend: "auto" lets the planner choose. A kernel's name forces that kernel, or raises an error that says why it
            cannot run: "reference", "blockwise", "sdpa", "cpu_dot", "cpu_additive", "triton_additive", "triton_offset",
            "flex".

    A row with no visible key gives 0, zero gradients and logsumexp −inf. NaN or Inf at a masked position reaches
    neither output nor gradients; a row that may see one is NaN.

    >>> import regard
    >>> q = k = v = torch.eye(2)[None]
    >>> regard.attend(q, k, v, score=regard.score.Dot(scale=1.0)).round(decimals=4)
    tensor([[[0.7311, 0.2689],
             [0.2689, 0.7311]]])
    """
    packed = pack(q, k, v, mask, _NESTED) if are_nested(q, k, v) else None
    if packed is not None:
        (q, k, v), mask = packed.values, packed.mask
    out, lse = _attend(q, k, v, score, mask, offset, positions, dropout, seed, sink, return_logsumexp, backend)
    if packed is not None:
        out, lse = packed.nest(out), None if lse is None else packed.nest(lse)
    return out if lse is None else (out, lse)


def _attend(
    q: Tensor,
    k: Tensor | Keys,
    v: Tensor,
    score: Score,
    mask: Mask | Tensor | None,
    offset: int | Tensor,
    positions: Positions | None,
    dropout: float,
    seed: int | Tensor | None,
    sink: float | Tensor | None,
    need_logsumexp: bool,
    backend: str,
) -> tuple[Tensor, Tensor | None]:
    """``attend`` for dense tensors: the context, and the logsumexp if asked for."""
    observer = None if torch.compiler.is_compiling() else OBSERVER.get()
    out, call = None, None
    if backend == "auto" and sink is None and not need_logsumexp and type(dropout) in (float, int) and not dropout:
        out = None if positions is not None else _plain_dot(q, k, v, score, mask, offset)
        if out is not None and observer is None:
            return out, None
    if out is None or observer is not None:
        call = lower(q, k, v, score, mask, offset, positions, dropout, seed, sink, need_logsumexp, backend)
    results: list[tuple[Tensor, Tensor | None]] = []
    if out is None:
        assert call is not None
        results = [choice.run() for choice in call.choices]
        out = _join([out for out, _ in results], call.batch)
    if observer is not None and call is not None:
        out = observer(Observation(q, k, v, score, call.problems, call.batch), out)
    if not need_logsumexp:
        return out, None
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
    positions: Positions | None = None,
    sink: float | Tensor | None = None,
    rows: Tensor | None = None,
) -> Steps:
    """Every step of the same attention, dense: similarity, scaled, masked, weights and context.

    ``rows`` selects queries by index; their positions and masks stay those of the whole call.

    >>> import regard
    >>> s = regard.steps(torch.tensor([[[0.2, 0.1]]]), torch.tensor([[[0.3, 0.4]]]), torch.ones(1, 1, 2))
    >>> round(s.similarity.item(), 4), round(s.scaled.item(), 4), s.weights.item()
    (0.1, 0.0707, 1.0)
    """
    return _steps(lower(q, k, v, score, mask, offset, positions, sink=sink, backend="reference"), rows)


def attend_densely(
    q: Tensor,
    k: Tensor | Keys,
    v: Tensor,
    *,
    score: Score = _DOT,
    mask: Mask | Tensor | None = None,
    offset: int | Tensor = 0,
    positions: Positions | None = None,
) -> Steps:
    """``attend`` for a model that needs the weights, such as a recurrent decoder: all steps, dense.

    The numbers are those of :func:`steps`; but this call is part of the model, so :func:`regard.record` sees it.
    """
    call = lower(q, k, v, score, mask, offset, positions, need_logsumexp=True, backend="reference")
    dense = _steps(call, None)
    observer = None if torch.compiler.is_compiling() else OBSERVER.get()
    if observer is None:
        return dense
    return replace(dense, context=observer(Observation(q, k, v, score, call.problems, call.batch), dense.context))


def log_weights(
    q: Tensor,
    k: Tensor | Keys,
    v: Tensor,
    *,
    head: int,
    score: Score = _DOT,
    mask: Mask | Tensor | None = None,
    offset: int | Tensor = 0,
    positions: Positions | None = None,
    sink: float | Tensor | None = None,
) -> Tensor:
    """log α of one head, dense, [..., L, S], −inf where masked: for a loss on the attention weights.

    ``head`` counts query heads from 0. The other heads are not computed.
    """
    call = lower(q, k, v, score, mask, offset, positions, sink=sink, backend="reference")
    of = [p for p in call.problems if p.first_head <= head < p.first_head + p.heads]
    if not of:
        raise ValueError(f"head: expected one of {q.shape[-3]}, counted from 0, got {head}")
    weights = reference.log_weights(one_head(of[0], head - of[0].first_head))[:, 0]
    return weights.view(*call.batch, *weights.shape[-2:])


def plan(
    q: Tensor,
    k: Tensor | Keys,
    v: Tensor,
    *,
    score: Score = _DOT,
    mask: Mask | Tensor | None = None,
    offset: int | Tensor = 0,
    positions: Positions | None = None,
    dropout: float = 0.0,
    seed: int | Tensor | None = None,
    sink: float | Tensor | None = None,
    return_logsumexp: bool = False,
    backend: str = "auto",
) -> Plan:
    """The plan of ``attend`` for the same arguments, with reasons. Print it."""
    if are_nested(q, k, v):
        packed = pack(q, k, v, mask, _NESTED)
        (q, k, v), mask = packed.values, packed.mask
    return Plan(lower(q, k, v, score, mask, offset, positions, dropout, seed, sink, return_logsumexp, backend).choices)


def _steps(call: Lowering, rows: Tensor | None) -> Steps:
    problems = [replace(problem, terms=plain(problem.terms)) for problem in call.problems]
    problems = problems if rows is None else [select_rows(problem, rows) for problem in problems]
    parts = [reference.run_steps(problem) for problem in problems]
    return Steps(*(_join([getattr(part, name) for part in parts], call.batch) for name in Steps.__dataclass_fields__))


def observation_of(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    score: Score = _DOT,
    mask: Mask | Tensor | None = None,
    offset: int | Tensor = 0,
    positions: Positions | None = None,
    sink: float | Tensor | None = None,
) -> Observation:
    """The call as an observer would see it, without running it."""
    call = lower(q, k, v, score, mask, offset, positions, sink=sink, need_logsumexp=True, backend="reference")
    return Observation(q, k, v, score, call.problems, call.batch)


def select_rows(p: Problem, rows: Tensor) -> Problem:
    """The problem for some of its queries."""
    rows = torch.as_tensor(rows, device=p.device)
    if rows.ndim != 1 or rows.is_floating_point() or rows.dtype == torch.bool:
        raise TypeError(f"rows must be a list of query indices, got {rows.dtype} of shape {list(rows.shape)}")
    if rows.numel() and not 0 <= int(rows.min()) <= int(rows.max()) < p.queries:
        raise ValueError(f"rows must lie in 0…{p.queries - 1}, got {int(rows.min())}…{int(rows.max())}")

    def pick(x: Tensor | None, dim: int = 2) -> Tensor | None:
        return x if x is None or x.shape[dim] == 1 else x.index_select(dim, rows)

    fields = {"DotTerm": "q", "TanhTerm": "a", "OffsetTerm": "table", "BiasTerm": "bias"}
    terms = []
    for term in p.terms.terms:  # a formula keeps all queries
        name = fields.get(type(term).__name__)
        terms.append(term if name is None else replace(term, **{name: pick(getattr(term, name))}))  # type: ignore[arg-type]
    return replace(
        p, terms=replace(p.terms, terms=tuple(terms)), rows=rows, queries=len(rows), bad_rows=pick(p.bad_rows)
    )


def _plain_dot(
    q: Tensor, k: Tensor | Keys, v: Tensor, score: Score, mask: Mask | Tensor | None, offset: int | Tensor
) -> Tensor | None:
    """The most common call, without planning, which would take longer than running it; None for any other call."""
    if type(score) is not Dot or type(offset) is not int or not isinstance(k, Tensor) or not is_plain(q, k, v):
        return None
    if mask is None:
        return sdpa.dot(q, k, v, score.scale)
    if type(mask) is not Causal or offset != 0:
        return None
    q, v, (k,), bad_keys, bad_rows = guard.take_out(q, v, [k], [slice(0, k.shape[1])])
    out = sdpa.dot(q, k, v, score.scale, causal=True)
    return out if bad_keys is None or bad_rows is None else sdpa.spoil_causal(out, bad_keys, bad_rows)


def _join(parts: list[Tensor], batch: tuple[int, ...]) -> Tensor:
    """Concatenate groups of heads and restore the batch dims."""
    whole = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
    return whole if len(batch) == 1 else whole.reshape(*batch, *whole.shape[1:])
