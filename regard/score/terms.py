"""Terms and Problem: the canonical form that scores are lowered to and that kernels run.

    E = softcap( Σ pair terms ) + Σ (offset terms + bias terms + key terms + formulas)

Shapes, here and in the kernels:

    B batch   H query heads   K key/value heads (H = K·G)   L queries   S keys   D dims   R table entries

A dimension written ``B|1`` is either full or broadcast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from regard.mask import Mask
    from regard.mask.packed import Packed

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)  # of queries, keys and values


@dataclass(frozen=True)
class DotTerm:
    """Pair term scale · q_i·k_j. A tensor scale holds one number per head, [H]."""

    q: Tensor  # [B, H, L, D]
    scale: float | Tensor = 1.0
    k: Tensor | None = None  # [B, K, S, D], None until joined


@dataclass(frozen=True)
class TanhTerm:
    """Pair term Σ_d w_d · tanh(a_id + b_jd)."""

    a: Tensor  # [B, H, L, D]
    w: Tensor  # [B|1, H|1, D]
    b: Tensor | None = None  # [B, K, S, D], None until joined
    form: str = "auto"  # how a kernel may compute it: "exact", "series" (approximated where possible), or its choice
    exponential: bool = False  # b holds e^{2b}, as a cache keeps it

    def plain(self) -> TanhTerm:
        """The same term with b itself instead of e^{2b}."""
        return replace(self, b=0.5 * _tensor(self.b).log(), exponential=False) if self.exponential else self


@dataclass(frozen=True)
class OffsetTerm:
    """A table by the distance δ = position(j) − position(i), continued linearly beyond its ends.

    table[m + clip(δ, −m, m)] − slope · |δ − clip(δ, −m, m)|,   R = 2m + 1
    """

    table: Tensor  # [B|1, H|1, L|1, R]
    slope: Tensor | None = None  # [B|1, H|1]

    @property
    def reach(self) -> int:
        """m, the largest distance with its own table entry."""
        return self.table.shape[-1] // 2


@dataclass(frozen=True)
class BiasTerm:
    """Any number per pair."""

    bias: Tensor  # [B|1, H|1, L|1, S|1]


@dataclass(frozen=True)
class KeyTerm:
    """One number per key; until joined also its factor (a tensor holds one per head, [H|1])."""

    c: Tensor | None = None  # [B, K, S, 1], None until joined
    scale: float | Tensor = 1.0


@dataclass(frozen=True)
class Edit:
    """A formula that is a dot product modified by a function: f(scale · q_i·k_j, b, h, i, j)."""

    f: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
    scale: float


@dataclass(frozen=True)
class FormulaTerm:
    """A score known only by its dense formula, f(q, k, offset): Python, called for some of the queries at a time.

    It keeps all queries, keys, items and heads even in a part of the problem, since the formula may read any of them.
    """

    formula: Callable[..., Tensor]
    q: Tensor  # [B, H, L, Dq]
    offset: int | Tensor
    autocast: torch.dtype | None = None  # the autocast dtype it is computed under
    k: Tensor | None = None  # [B, K, S, Dk], None until joined
    captured: tuple[Tensor, ...] | None = None  # other tensors it reads that require a gradient; None until found
    originals: tuple[Tensor, ...] | None = None  # the same tensors, as the formula's own objects
    item: int | None = None  # the one batch item of the problem, if it is a part
    head: int | None = None  # likewise the one head
    columns: slice | None = None  # likewise the keys
    edit: Edit | None = None  # the formula as an Edit, if it is one
    first: int = 0  # the index of the first of these queries among all
    packed: Packed | None = None  # the formula is called for one document at a time
    starts: tuple[int | Tensor, int | Tensor] | None = None  # position − index of queries and keys (``knows_places``)

    @property
    def name(self) -> str:
        return type(self._innermost()).__name__

    @property
    def whole(self) -> bool:
        """Does it cover every item, head and key?"""
        return self.item is None and self.head is None and self.columns is None

    @property
    def positional(self) -> bool:
        """Does the formula depend on positions? Assumed, unless its score declares otherwise."""
        return getattr(self._innermost(), "positional", True)

    @property
    def knows_places(self) -> bool:
        """Does the formula accept the positions of all queries and keys, not only of the first query?"""
        return getattr(self._innermost(), "knows_places", False)

    @property
    def fixes_keys(self) -> bool:
        """Does the formula require key j at position j?"""
        return self._innermost().inner.positional if self.knows_places else self.positional  # type: ignore[attr-defined, no-any-return]

    def _innermost(self) -> Callable[..., Tensor]:
        formula = self.formula
        while isinstance(formula, _Times):
            formula = formula.formula
        return formula


PairTerm = DotTerm | TanhTerm
Term = DotTerm | TanhTerm | OffsetTerm | BiasTerm | KeyTerm | FormulaTerm


@dataclass(frozen=True)
class Keys:
    """The key half of a lowered score, computed once per key and kept by a cache.

    ``attend`` accepts it instead of ``k``. Every tensor is [..., K, S, dims of its own]. ``trusted``: masked keys and
    values are known to be finite, so a decoding step need not read its whole cache to find out. ``exponential``: the
    tensors of tanh terms hold e^{2b} instead of b.
    """

    tensors: tuple[Tensor, ...]
    trusted: bool = False
    exponential: bool = False

    def __add__(self, other: Keys) -> Keys:
        return Keys(self.tensors + other.tensors, exponential=self.exponential or other.exponential)


@dataclass(frozen=True)
class Queries:
    """The query half of a lowered score: terms without their key tensors."""

    terms: tuple[Term, ...]
    cap: float | None = None
    values: Tensor | None = None  # the table r' of the context's relative-position term, [1, H|1, R, Dv]


@dataclass(frozen=True)
class Terms:
    """A lowered score: a sum of terms, the pair terms capped if ``cap`` is set."""

    terms: tuple[Term, ...]
    cap: float | None = None
    values: Tensor | None = None

    @property
    def pairs(self) -> tuple[PairTerm, ...]:
        return tuple(t for t in self.terms if isinstance(t, (DotTerm, TanhTerm)))

    @property
    def dots(self) -> tuple[DotTerm, ...]:
        return tuple(t for t in self.terms if isinstance(t, DotTerm))

    @property
    def tanhs(self) -> tuple[TanhTerm, ...]:
        return tuple(t for t in self.terms if isinstance(t, TanhTerm))

    @property
    def offsets(self) -> tuple[OffsetTerm, ...]:
        return tuple(t for t in self.terms if isinstance(t, OffsetTerm))

    @property
    def biases(self) -> tuple[BiasTerm, ...]:
        return tuple(t for t in self.terms if isinstance(t, BiasTerm))

    @property
    def keys(self) -> tuple[KeyTerm, ...]:
        return tuple(t for t in self.terms if isinstance(t, KeyTerm))

    @property
    def formulas(self) -> tuple[FormulaTerm, ...]:
        return tuple(t for t in self.terms if isinstance(t, FormulaTerm))


def join(queries: Queries, keys: Keys) -> Terms:
    """Give each term its key tensor, in order."""
    tensors = list(keys.tensors)
    terms: list[Term] = []
    for term in queries.terms:
        if isinstance(term, DotTerm):
            terms.append(DotTerm(term.q, term.scale, tensors.pop(0)))
        elif isinstance(term, TanhTerm):
            terms.append(replace(term, b=tensors.pop(0), exponential=keys.exponential))
        elif isinstance(term, KeyTerm):
            terms.append(_key_term(tensors.pop(0), term.scale))
        elif isinstance(term, FormulaTerm):
            terms.append(replace(term, k=tensors.pop(0)))
        else:
            terms.append(term)
    if tensors:
        raise ValueError(
            f"the lowered keys hold {len(keys.tensors)} tensors, more than this score needs; "
            "were they made by another score?"
        )
    return Terms(tuple(terms), queries.cap, queries.values)


def _key_term(c: Tensor, scale: float | Tensor) -> Term:
    """scale · c. If query heads that share a key have different scales, it is a bias instead."""
    if not isinstance(scale, Tensor):
        return KeyTerm(c if scale == 1 else c * scale)
    scale = scale.to(c.dtype)[:, None, None]
    if len(scale) == 1 or len(scale) == c.shape[1]:
        return KeyTerm(c * scale)
    return BiasTerm((c.repeat_interleave(len(scale) // c.shape[1], 1) * scale).mT)


def scale_term(term: Term, factor: float | Tensor, q: Tensor) -> Term:
    """factor · term of a query half, in q's dtype or wider; a tensor holds one factor per head, [H|1]."""

    def times(x: Tensor, dims: int) -> Tensor:
        return x * (factor.to(x.dtype).reshape(-1, *(1,) * dims) if isinstance(factor, Tensor) else factor)

    if isinstance(term, (DotTerm, KeyTerm)):
        scale = factor if not isinstance(term.scale, Tensor) and term.scale == 1 else term.scale * factor
        return replace(term, scale=scale)
    if isinstance(term, TanhTerm):
        return replace(term, w=times(term.w, 1))
    if isinstance(term, OffsetTerm):
        return OffsetTerm(times(term.table, 2), None if term.slope is None else times(term.slope, 0))
    if isinstance(term, BiasTerm):
        return BiasTerm(times(term.bias.to(torch.promote_types(term.bias.dtype, q.dtype)), 2))
    return replace(term, formula=_Times(term.formula, factor), edit=None)


@dataclass(frozen=True)
class _Times:
    """factor · formula."""

    formula: Callable[..., Tensor]
    factor: float | Tensor

    def __call__(self, q: Tensor, k: Tensor, offset: int | Tensor, *starts: int | Tensor) -> Tensor:
        e = self.formula(q, k, offset, *starts)
        return e * (self.factor.to(e.dtype)[:, None, None] if isinstance(self.factor, Tensor) else self.factor)


def plain(terms: Terms) -> Terms:
    """The same terms with b instead of e^{2b}."""
    if not any(t.exponential for t in terms.tanhs):
        return terms
    return replace(terms, terms=tuple(t.plain() if isinstance(t, TanhTerm) else t for t in terms.terms))


def fold(terms: Terms) -> tuple[Terms, tuple[str, ...]]:
    """At most one dot and one tanh term, by concatenating their dims; and notes that say what was folded.

    If a score is dot and key terms alone and the key terms may need a gradient, they become dims too, 1 · c_j: then a
    kernel of plain dot products computes both.
    """
    if _are_dims(terms):
        return _keys_as_dims(terms), ("key terms folded into the dot term",)
    if len(terms.terms) == 1 and not isinstance(getattr(terms.terms[0], "scale", None), Tensor):
        return terms, ()
    dots, tanhs = terms.dots, terms.tanhs
    if len(dots) <= 1 and len(tanhs) <= 1 and not any(isinstance(t.scale, Tensor) for t in dots):
        return terms, ()
    notes: list[str] = []
    rest = tuple(t for t in terms.terms if not isinstance(t, (DotTerm, TanhTerm)))
    folded: tuple[Term, ...] = ()
    if len(dots) > 1 or any(isinstance(t.scale, Tensor) for t in dots):
        notes.append(f"{len(dots)} dot term{'s' * (len(dots) > 1)} folded into one, scales into the query")
        q = torch.cat([t.q * _per_head(t.scale, t.q) for t in dots], -1)
        folded += (DotTerm(q, 1.0, torch.cat([_tensor(t.k) for t in dots], -1)),)
    else:
        folded += dots
    if len(tanhs) > 1:
        notes.append(f"{len(tanhs)} tanh terms folded into one over concatenated hidden dims")
        w = torch.broadcast_tensors(*[t.w[..., :1] for t in tanhs])[0]
        a, b = torch.cat([t.a for t in tanhs], -1), torch.cat([_tensor(t.b) for t in tanhs], -1)
        w = torch.cat([t.w.expand(*w.shape[:-1], -1) for t in tanhs], -1)
        folded += (TanhTerm(a, w, b, _strictest(t.form for t in tanhs), tanhs[0].exponential),)
    else:
        folded += tanhs
    return Terms(folded + rest, terms.cap, terms.values), tuple(notes)


def _are_dims(terms: Terms) -> bool:
    """Only dot and key terms, in dtypes that lose nothing when a key term becomes a dim?"""
    dots, keys = terms.dots, terms.keys
    if not dots or not keys or len(dots) + len(keys) != len(terms.terms):
        return False
    full = all(t.q.dtype in (torch.float32, torch.float64) and t.q.dtype == _tensor(t.k).dtype for t in dots)
    same = all(_tensor(t.c).dtype == dots[0].q.dtype for t in keys)
    return terms.cap is None and full and same and may_need_gradient(*(t.c for t in keys))


def _keys_as_dims(terms: Terms) -> Terms:
    """[q; 1]·[k; c], padded with zeros to a multiple of 8 dims, as fused kernels require."""
    dots, first = terms.dots, terms.dots[0].q
    c: Tensor = torch.stack([_tensor(t.c) for t in terms.keys]).sum(0)
    q, k = [t.q * _per_head(t.scale, t.q) for t in dots], [_tensor(t.k) for t in dots]
    empty = -(sum(t.shape[-1] for t in q) + 1) % 8
    q += [first.new_ones(*first.shape[:-1], 1), first.new_zeros(*first.shape[:-1], empty)]
    k += [c, c.new_zeros(*c.shape[:-1], empty)]
    return Terms((DotTerm(torch.cat(q, -1), 1.0, torch.cat(k, -1)),), None, terms.values)


def _strictest(forms: Iterable[str]) -> str:
    """The form that all terms allow."""
    wanted = set(forms)
    return next(form for form in ("exact", "auto", "series") if form in wanted)


def _per_head(scale: float | Tensor, q: Tensor) -> float | Tensor:
    return scale.to(q.dtype)[:, None, None] if isinstance(scale, Tensor) else scale


def _tensor(x: Tensor | None) -> Tensor:
    assert x is not None, "a term was used before its key half was joined"
    return x


def may_need_gradient(*tensors: Tensor | None) -> bool:
    """Could one of these need a gradient? (Inside torch.func, requires_grad of an outer level is not visible.)"""
    if torch._C._are_functorch_transforms_active():
        return True
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


@dataclass(frozen=True)
class Problem:
    """All that a kernel needs for one call, checked, with batch dims flattened to one."""

    terms: Terms
    v: Tensor  # [B, K, S, Dv]
    heads: int
    queries: int  # L
    mask: Mask | None = None
    offset: int | Tensor = 0  # position(query i) − i; a tensor holds one per item or per query, [B|1, 1|L]
    rows: Tensor | None = None  # [L], the indices of the queries if they are a selection
    dropout: float = 0.0
    seed: Tensor | None = None  # [B|1]
    sink: Tensor | None = None  # [1, H|1]: the logit of an extra key of value zero
    bad_keys: Tensor | None = None  # [B, K, S], keys that were not finite: visible pairs with them are NaN
    bad_rows: Tensor | None = None  # [B, H, L], likewise queries
    first_head: int = 0  # index of the first of these heads among all heads (dropout depends on it)
    need_logsumexp: bool = False
    need_bias_gradient: bool = True  # the n×n gradient of a bias is computed only if needed
    need_offset_gradient: bool = True  # likewise the gradient of an offset table
    key_positions: Tensor | None = None  # [B|1, S]; None: key j is at position j

    @property
    def batch(self) -> int:
        return self.v.shape[0]

    @property
    def kv_heads(self) -> int:
        return self.v.shape[1]

    @property
    def keys(self) -> int:
        return self.v.shape[2]

    @property
    def dtype(self) -> torch.dtype:
        return self.v.dtype

    @property
    def device(self) -> torch.device:
        return self.v.device

    @property
    def compute_dtype(self) -> torch.dtype:
        """The dtype in which scores and softmax are accumulated."""
        return torch.float64 if self.v.dtype == torch.float64 else torch.float32

    def row_index(self) -> Tensor:
        """The index of each query among all queries, [L]."""
        return torch.arange(self.queries, device=self.device) if self.rows is None else self.rows

    def positions(self) -> Tensor:
        """The position of each query, [B|1, L]."""
        index, offset = self.row_index()[None], self.offset
        if self.per_query and self.rows is not None:
            assert isinstance(offset, Tensor)
            offset = offset[:, self.rows]
        return index + offset

    def positions_of_keys(self) -> Tensor:
        """The position of each key, [B|1, S]."""
        index = torch.arange(self.keys, device=self.device)[None]
        return index if self.key_positions is None else self.key_positions

    @property
    def per_query(self) -> bool:
        """Does each query have its own offset, so that positions need not be consecutive?"""
        return isinstance(self.offset, Tensor) and self.offset.shape[1] != 1


def one_head(p: Problem, head: int) -> Problem:
    """The problem of one head: its terms, mask and sink, without marks of NaN. ``head`` counts the heads of ``p``."""
    shared = head * p.kv_heads // p.heads

    def own(x: Tensor) -> Tensor:
        return x if x.shape[1] == 1 else x[:, head : head + 1]

    def keys(x: Tensor | None) -> Tensor:
        return _tensor(x)[:, shared : shared + 1]

    def narrow(term: Term) -> Term:
        if isinstance(term, DotTerm):
            scale = term.scale
            if isinstance(scale, Tensor):
                scale = scale.reshape(-1)
                scale = scale if len(scale) == 1 else scale[head : head + 1]
            return DotTerm(own(term.q), scale, keys(term.k))
        if isinstance(term, TanhTerm):
            return replace(term, a=own(term.a), w=own(term.w), b=keys(term.b))
        if isinstance(term, OffsetTerm):
            return OffsetTerm(own(term.table), None if term.slope is None else own(term.slope))
        if isinstance(term, FormulaTerm):
            return replace(term, head=head)
        return BiasTerm(own(term.bias)) if isinstance(term, BiasTerm) else KeyTerm(keys(term.c))

    return replace(
        p,
        terms=replace(p.terms, terms=tuple(narrow(term) for term in plain(p.terms).terms), values=None),
        v=p.v[:, shared : shared + 1],
        heads=1,
        mask=None if p.mask is None else p.mask.for_heads(slice(head, head + 1)),
        sink=None if p.sink is None else own(p.sink),
        bad_keys=None,
        bad_rows=None,
        first_head=p.first_head + head,
    )
