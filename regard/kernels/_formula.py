"""Scores known by a dense formula alone: evaluated for some of the queries at a time, and differentiated by autograd.

The tensors that a formula reads beside q and k (parameters of its module, tensors in its closure) are found by tracing
the computation of one row: every tensor that requires a gradient and was not created there. The backward pass computes
the rows again, with detached copies substituted for these tensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_iter, tree_map_only

from regard.mask.shape import broadcasts
from regard.score.terms import FormulaTerm

_NOT_COMPILED = (
    "{} only has a formula, which is called for consecutive queries, and a compiled program cannot read {} to find "
    "them: make the mask outside of the program, or call it outside of the program"
)
CHANGED = "needs the gradient of a tensor that it did not use for its first query: use the same tensors for every query"


def rows(term: FormulaTerm, some: Tensor | slice | None = None) -> Tensor:
    """E of all queries, or of those with these indices, [B, H, rows, S]."""
    if some is None:
        return _evaluate(term, slice(0, term.q.shape[2]))
    if isinstance(some, slice):
        return _evaluate(term, some)
    parts = [_evaluate(term, part) for part in _runs(some)]
    return torch.cat(parts, 2) if parts else _evaluate(term, slice(0, 0))


def captured_tensors(term: FormulaTerm) -> tuple[Tensor, ...]:
    """The tensors that the formula reads beside q and k and that require a gradient."""
    if term.captured is not None:
        return term.captured
    assert term.k is not None
    at = _first_query(term)
    q, k = term.q.detach()[:, :, at : at + 1], term.k.detach()
    with torch.enable_grad(), _Watch({}, (q, k)) as watch:
        rows(replace(term, q=q, k=k, first=at))
    return tuple(watch.found.values())


def gradients(term: FormulaTerm, some: slice, grad: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients of these queries [B, H, rows, Dq], of all keys, and of the captured tensors."""
    assert term.k is not None and term.captured is not None
    originals = term.captured if term.originals is None else term.originals
    with torch.enable_grad():
        q, k, *rest = (x.detach().requires_grad_() for x in (term.q[:, :, some], term.k, *term.captured))
        with _Watch(dict(zip(map(id, originals), rest, strict=True)), (q, k, *rest)) as watch:
            e = rows(replace(term, q=q, k=k, first=some.start))
        if watch.found:
            raise RuntimeError(f"{term.name} {CHANGED}")
        if not e.requires_grad:
            return (None,) * (2 + len(rest))
        return torch.autograd.grad(e, (q, k, *rest), grad.to(e.dtype).expand(e.shape), allow_unused=True)


def _evaluate(term: FormulaTerm, some: slice) -> Tensor:
    q, first = term.q[:, :, some], term.first + some.start
    with _autocast(term):
        if term.packed is not None:
            e = _by_document(term, q, first)
        elif term.positional and not term.knows_places and _per_query(term.offset):
            e = _by_run(term, q, first)
        else:
            row, column = (None, 0) if term.starts is None else term.starts
            starts = () if row is None else (_shift(row, q, first), column)
            e = _call(term, q, term.k, _shift(term.offset, q, first), *starts)
    e = e if term.item is None else e[term.item : term.item + 1]
    e = e if term.head is None else e[:, term.head : term.head + 1]
    return e if term.columns is None else e[..., term.columns]


def _per_query(offset: int | Tensor) -> bool:
    return isinstance(offset, Tensor) and offset.ndim > 1


def _shift(offset: int | Tensor, q: Tensor, first: int) -> int | Tensor:
    """The offset of a part of the queries that begins at ``first``: per call, per item, or per query, as it was."""
    if isinstance(offset, Tensor) and offset.ndim > 1 and offset.shape[1] > 1:
        offset = offset[:, first : first + q.shape[2]]
    shifted: int | Tensor = offset + first
    return shifted


def _call(term: FormulaTerm, q: Tensor, k: Tensor | None, offset: int | Tensor, *starts: int | Tensor) -> Tensor:
    """E of some queries, the first at position ``offset``, and keys from position 0; or at the positions ``starts``."""
    assert k is not None
    e = term.formula(q, k, offset, *starts)
    shape = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    if not isinstance(e, Tensor) or not e.is_floating_point():
        got = e.dtype if isinstance(e, Tensor) else type(e).__name__
        raise TypeError(f"{term.name} must return a floating-point tensor of scores, got {got}")
    if not broadcasts(e.shape, shape):
        raise ValueError(
            f"{term.name} must return what broadcasts to [batch, heads, queries, keys] = {list(shape)}, got "
            f"{list(e.shape)}; it is asked for some queries at a time, the first of them at position `offset`"
        )
    return e.expand(shape)


def _by_document(term: FormulaTerm, q: Tensor, first: int) -> Tensor:
    """Each document by itself; 0 between documents, where the mask hides all pairs."""
    assert term.k is not None
    parts = [q.new_zeros(*q.shape[:2], 0, term.k.shape[2])]
    for queries, keys in _documents(term):
        start, stop = max(queries.start, first), min(queries.stop, first + q.shape[2])
        if start >= stop:
            continue
        count = keys.stop - keys.start
        e = q.new_zeros(*q.shape[:2], stop - start, 0)
        if count:
            offset = count - (queries.stop - start)
            e = _call(term, q[:, :, start - first : stop - first], term.k[:, :, keys], offset)
        parts.append(F.pad(e, (keys.start, term.k.shape[2] - keys.stop)))
    return torch.cat(parts, 2)


def _by_run(term: FormulaTerm, q: Tensor, first: int) -> Tensor:
    """Queries with offsets of their own, one run of consecutive positions at a time."""
    assert term.k is not None and isinstance(term.offset, Tensor)
    if torch.compiler.is_compiling():
        raise ValueError(_NOT_COMPILED.format(term.name, "positions="))
    offset = term.offset[:, first : first + q.shape[2]]
    breaks = (offset[:, 1:] != offset[:, :-1]).any(0).nonzero().flatten() + 1
    parts = [q.new_zeros(*q.shape[:2], 0, term.k.shape[2])]
    for start, stop in pairwise([0, *breaks.tolist(), q.shape[2]] if q.shape[2] else []):
        position = offset[:, start] + first + start
        at = position if len(position) > 1 else int(position)
        parts.append(_call(term, q[:, :, start:stop], term.k, at))
    return torch.cat(parts, 2)


def _documents(term: FormulaTerm) -> list[tuple[slice, slice]]:
    assert term.packed is not None
    found = term.packed.documents()
    if found is None:
        raise ValueError(_NOT_COMPILED.format(term.name, "offsets in a tensor"))
    return found


def _first_query(term: FormulaTerm) -> int:
    """The index of the first query with a key in its document: the first for which the formula is called."""
    if term.packed is None:
        return 0
    return next((q.start for q, k in _documents(term) if q.start < q.stop and k.start < k.stop), 0)


def _autocast(term: FormulaTerm) -> AbstractContextManager[object]:
    if term.autocast is None:
        return nullcontext()
    return torch.autocast(term.q.device.type, dtype=term.autocast)


def _runs(index: Tensor) -> Iterator[slice]:
    """Indices as slices of consecutive numbers."""
    start = end = None
    for i in index.tolist():
        if i != end:
            if start is not None:
                yield slice(start, end)
            start = i
        end = i + 1
    if start is not None:
        yield slice(start, end)


class _Watch(TorchFunctionMode):
    """Watch every operation: substitute tensors, and record those from outside that require a gradient."""

    def __init__(self, others: dict[int, Tensor], made: tuple[Tensor, ...]) -> None:
        super().__init__()
        self.others, self.made = others, list(made)
        self.known = {id(x) for x in made}
        self.found: dict[int, Tensor] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map_only(Tensor, self._substitute, (args, kwargs or {}))
        out = func(*args, **kwargs)
        for x in tree_iter(out):
            if isinstance(x, Tensor) and id(x) not in self.known:
                self.known.add(id(x))
                self.made.append(x)  # keep it alive, so that no other tensor gets its id
        return out

    def _substitute(self, x: Tensor) -> Tensor:
        if id(x) in self.others:
            return self.others[id(x)]
        if id(x) not in self.known and x.requires_grad:
            self.found.setdefault(id(x), x)
        return x
