"""The specification: textbook attention, dense, with every step kept.

Plain differentiable PyTorch, so second derivatives, ``torch.func`` and ``torch.compile`` just work. Half precision is
computed in float32.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.kernels import _autocast, _dropout
from regard.kernels import _dense as dense
from regard.score.terms import DotTerm, Problem, TanhTerm, Term

NAME = "reference"


@dataclass(frozen=True, repr=False)
class Steps:
    """The steps of attention: [..., heads, L, S] each, and the context [..., heads, L, Dv]."""

    similarity: Tensor  # the sum of the pair terms, before scaling
    scaled: Tensor  # the whole score E
    masked: Tensor  # E with −inf where masked
    weights: Tensor  # softmax of it; a row with no visible key is 0
    context: Tensor  # weights · values (and Shaw's value term)
    logsumexp: Tensor  # [..., heads, L]

    def __repr__(self) -> str:
        """One line per step, with its shape and range."""
        return "\n".join(
            ("Steps", *(f"  {name:<12}{describe_tensor(getattr(self, name))}" for name in self.__dataclass_fields__))
        )

    def map(self, f: object) -> Steps:
        """Apply a function to every field."""
        assert callable(f)
        return Steps(*(f(getattr(self, name)) for name in self.__dataclass_fields__))


def describe_tensor(x: Tensor) -> str:
    """Its shape, and the range of its finite numbers."""
    shape = str(list(x.shape))
    if x.is_meta:
        return shape
    seen = x[x.isfinite()]
    return f"{shape:<18}{float(seen.min()):.4g} … {float(seen.max()):.4g}" if seen.numel() else shape


def refuses(problem: Problem) -> str | None:
    return None


def memory_bytes(problem: Problem) -> int:
    """Bytes beyond its inputs: five dense matrices, and the tanh of every pair and hidden dim."""
    size = torch.finfo(problem.compute_dtype).bits // 8
    hidden = sum(t.a.shape[-1] for t in problem.terms.tanhs)
    return problem.batch * problem.heads * problem.queries * problem.keys * size * (5 + hidden)


def error_bound(problem: Problem) -> float:
    return 0.0


def run(problem: Problem) -> tuple[Tensor, Tensor]:
    steps = run_steps(problem)
    return steps.context, steps.logsumexp


def run_steps(problem: Problem) -> Steps:
    with _autocast.off(problem.device):
        return _steps(problem)


def _steps(p: Problem) -> Steps:
    shape = (p.batch, p.heads, p.queries, p.keys)
    zero = torch.zeros((), dtype=p.compute_dtype, device=p.device).expand(shape)
    similarity, pairs = zero, zero
    for term in p.terms.pairs:
        raw = _pair(term, p)
        similarity = similarity + raw
        pairs = pairs + raw * _scale(term)
    if p.terms.cap is not None:
        pairs = p.terms.cap * torch.tanh(pairs / p.terms.cap)
    e = pairs
    for other in p.terms.terms:
        if not isinstance(other, (DotTerm, TanhTerm)):
            e = e + dense.single(other, p)
    seen = None if p.mask is None else dense.visible(p)
    masked = e if seen is None else e.masked_fill(~seen, -torch.inf)
    weights, logsumexp = _softmax(masked, p)
    context = _context(weights, p).to(p.dtype)
    if p.bad_keys is not None:
        bad = dense.nonfinite_rows(p, seen)[..., None]
        weights, context = weights.masked_fill(bad, torch.nan), context.masked_fill(bad, torch.nan)
        logsumexp = logsumexp.masked_fill(bad[..., 0], torch.nan)
    return Steps(similarity, e, masked, weights, context, logsumexp.detach())


def scores(p: Problem) -> Tensor:
    """E alone, before the mask, [B, H, L, S]."""
    with _autocast.off(p.device):
        parts = [_pair(term, p) * _scale(term) for term in p.terms.pairs]
        e: Tensor | None = functools.reduce(torch.add, parts) if parts else None
        if e is not None and p.terms.cap is not None:
            e = p.terms.cap * torch.tanh(e / p.terms.cap)
        for term in p.terms.terms:
            if not isinstance(term, (DotTerm, TanhTerm)):
                e = dense.single(term, p) if e is None else e + dense.single(term, p)
    shape = (p.batch, p.heads, p.queries, p.keys)
    return p.v.new_zeros(shape, dtype=p.compute_dtype) if e is None else e.expand(shape)


def log_weights(p: Problem) -> Tensor:
    """log softmax(E), −inf where masked, [B, H, L, S]."""
    e = scores(p)
    if p.mask is not None:
        e = e.masked_fill(~dense.visible(p), -torch.inf)
    if p.sink is not None:
        sink = dense.up(p.sink, p)[..., None, None].expand(p.batch, p.heads, p.queries, 1)
        e = torch.cat((e, sink), -1)
    return e.log_softmax(-1)[..., : p.keys]


def _pair(term: Term, p: Problem) -> Tensor:
    if isinstance(term, DotTerm):
        return dense.up(term.q, p) @ dense.heads(dense.up(term.k, p), p).mT
    assert isinstance(term, TanhTerm)
    a, b, w = dense.up(term.a, p), dense.heads(dense.up(term.b, p), p), dense.up(term.w, p)
    return (torch.tanh(a[..., :, None, :] + b[..., None, :, :]) * w[..., None, None, :]).sum(-1)


def _scale(term: Term) -> float | Tensor:
    if not isinstance(term, DotTerm):
        return 1.0
    return term.scale[:, None, None] if isinstance(term.scale, Tensor) else term.scale


def _softmax(e: Tensor, p: Problem) -> tuple[Tensor, Tensor]:
    if p.sink is not None:
        sink = dense.up(p.sink, p)[..., None, None].expand(p.batch, p.heads, p.queries, 1)
        e = torch.cat((e, sink), -1)
    if e.shape[-1] == 0:
        return e, e.new_full(e.shape[:-1], -torch.inf)
    top = e.detach().amax(-1, keepdim=True)
    empty = top == -torch.inf
    unnormalised = torch.exp(e - top.masked_fill(empty, 0.0))
    total = unnormalised.sum(-1, keepdim=True)
    weights = unnormalised / total.masked_fill(empty, 1.0)
    logsumexp = (top + total.log().masked_fill(empty, 0.0)).squeeze(-1)
    return weights[..., : p.keys], logsumexp


def _context(weights: Tensor, p: Problem) -> Tensor:
    if p.dropout > 0:
        assert p.seed is not None
        batch = torch.arange(p.batch, device=p.device)
        heads = _dropout.head_index(p.first_head, p.heads, p.device)
        cols = torch.arange(p.keys, device=p.device)
        weights = weights * _dropout.keep(p.dropout, p.seed, batch, heads, p.row_index(), cols) / (1 - p.dropout)
    context = weights @ dense.heads(dense.up(p.v, p), p)
    if p.terms.values is not None:
        table = dense.up(p.terms.values, p)
        reach = table.shape[-2] // 2
        index = (dense.delta(p).clamp(-reach, reach) + reach).expand(weights.shape)
        by_distance = weights.new_zeros(*weights.shape[:-1], table.shape[-2]).scatter_add(-1, index, weights)
        context = context + by_distance @ table
    return context
