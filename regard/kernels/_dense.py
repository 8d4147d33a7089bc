"""Dense parts of a problem, [B, H, L, S]: masks, offsets, biases and key terms as in the textbook."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.kernels import _formula
from regard.score.terms import BiasTerm, FormulaTerm, KeyTerm, OffsetTerm, Problem, Term


def single(term: Term, p: Problem) -> Tensor:
    if isinstance(term, BiasTerm):
        return up(term.bias, p)
    if isinstance(term, KeyTerm):
        return heads(up(term.c, p), p).mT
    if isinstance(term, FormulaTerm):
        return up(_formula.rows(term, p.rows), p)
    assert isinstance(term, OffsetTerm)
    distance = delta(p)
    near = distance.clamp(-term.reach, term.reach)
    table = up(term.table, p).expand(p.batch, p.heads, p.queries, -1)
    e = table.gather(-1, (near + term.reach).expand(p.batch, p.heads, -1, -1))
    if term.slope is not None:
        e = e - up(term.slope, p)[..., None, None] * (distance - near).abs()
    return e


def delta(p: Problem) -> Tensor:
    """position(j) − position(i), [B|1, 1, L, S]."""
    return (p.positions_of_keys()[:, None] - p.positions()[..., None])[:, None]


def visible(p: Problem) -> Tensor:
    """The mask as booleans, broadcasts to [B, H, L, S]."""
    assert p.mask is not None
    return p.mask.visible(p.row_index(), p.positions(), torch.arange(p.keys, device=p.device))


def nonfinite_rows(p: Problem, seen: Tensor | None) -> Tensor:
    """Rows that see a key that is not finite, or are not finite themselves and see any key: [B, H, L]."""
    assert p.bad_keys is not None and p.bad_rows is not None
    keys = heads(p.bad_keys, p)
    if seen is None:
        return keys.any(-1, keepdim=True) | p.bad_rows
    return (seen & keys[..., None, :]).any(-1) | (p.bad_rows & seen.any(-1))


def up(x: Tensor | None, p: Problem) -> Tensor:
    assert x is not None
    return x.to(p.compute_dtype)


def heads(x: Tensor, p: Problem) -> Tensor:
    """Repeat key/value heads so that every query head has its own, [B, K, …] → [B, H, …]."""
    return x if p.kv_heads == p.heads else x.repeat_interleave(p.heads // p.kv_heads, 1)
