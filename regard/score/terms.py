"""Terms and Problem: the canonical form that scores are lowered to and kernels run.

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
    form: str = "auto"  # how a kernel may compute it: "exact", "series" (approximated, where it can) or as it likes
    exponential: bool = False  # b holds e^{2b}, as a cache keeps it

    def plain(self) -> TanhTerm:
        """The same with b itself."""
        return replace(self, b=0.5 * _tensor(self.b).log(), exponential=False) if self.exponential else self


@dataclass(frozen=True)
class OffsetTerm:
    """Looks up the distance δ = position(j) − position(i), clipped to the table, and goes on straight beyond it.

    table[m + clip(δ, −m, m)] − slope · |δ − clip(δ, −m, m)|,   R = 2m + 1
    """

    table: Tensor  # [B|1, H|1, L|1, R]
    slope: Tensor | None = None  # [B|1, H|1]

    @property
    def reach(self) -> int:
        """m, the largest distance the table tells apart."""
        return self.table.shape[-1] // 2


@dataclass(frozen=True)
class BiasTerm:
    """Any number per pair."""

    bias: Tensor  # [B|1, H|1, L|1, S|1]


@dataclass(frozen=True)
class KeyTerm:
    """One number per key, times a number until joined (one per head in a tensor, [H|1])."""

    c: Tensor | None = None  # [B, K, S, 1], None until joined
    scale: float | Tensor = 1.0


@dataclass(frozen=True)
class Edit:
    """What a formula is if it is a dot product changed by a function: f(scale · q_i·k_j, b, h, i, j)."""

    f: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
    scale: float


@dataclass(frozen=True)
class FormulaTerm:
    """A score that has no other form than its dense formula, f(q, k, offset): Python, asked for some queries at a time.

    It keeps all queries, keys, items and heads, whatever part of the problem it stands in: a formula may look at any.
    """

    formula: Callable[..., Tensor]
    q: Tensor  # [B, H, L, Dq]
    offset: int | Tensor
    autocast: torch.dtype | None = None  # what it is computed under
    k: Tensor | None = None  # [B, K, S, Dk], None until joined
    captured: tuple[Tensor, ...] | None = None  # what else it is made of that wants a gradient, once found
    originals: tuple[Tensor, ...] | None = None  # the very same, as the formula knows them
    item: int | None = None  # the only batch item and the only head of the problem it stands in
    head: int | None = None
    columns: slice | None = None  # the only keys of that problem
    edit: Edit | None = None  # the formula, where it is one
    first: int = 0  # the index of the first of these queries among all
    packed: Packed | None = None  # the documents that it is asked for one by one
    starts: tuple[int | Tensor, int | Tensor] | None = None  # what ``knows_places`` is told of queries and keys

    @property
    def name(self) -> str:
        return type(self._innermost()).__name__

    @property
    def whole(self) -> bool:
        """Does it stand for every item, head and key it was made for?"""
        return self.item is None and self.head is None and self.columns is None

    @property
    def positional(self) -> bool:
        """Does the formula depend on where queries and keys stand? It may, unless its score says no."""
        return getattr(self._innermost(), "positional", True)

    @property
    def knows_places(self) -> bool:
        """Can the formula be told where each query and key stands, rather than where the first query does?"""
        return getattr(self._innermost(), "knows_places", False)

    @property
    def fixes_keys(self) -> bool:
        """Must key j stand at j?"""
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
    """The key half of a lowered score: what a cache keeps, computed once per key.

    ``attend`` takes it in place of ``k``. Every tensor is [..., K, S, its own dims]. ``trusted`` says that they and
    their values are finite where nobody may look: a decoding step must not read its whole cache twice to find out.
    ``exponential``: tensors of tanh terms hold e^{2b} in place of b.
    """

    tensors: tuple[Tensor, ...]
    trusted: bool = False
    exponential: bool = False

    def __add__(self, other: Keys) -> Keys:
        return Keys(self.tensors + other.tensors, exponential=self.exponential or other.exponential)


@dataclass(frozen=True)
class Queries:
    """The query half of a lowered score: terms whose key side is still open."""

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
    """Close each open term with the key tensor made for it, in order."""
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
    """scale · c: with a scale of its own for each query head, of which several may share a key, a bias per key."""
    if not isinstance(scale, Tensor):
        return KeyTerm(c if scale == 1 else c * scale)
    scale = scale.to(c.dtype)[:, None, None]
    if len(scale) == 1 or len(scale) == c.shape[1]:
        return KeyTerm(c * scale)
    return BiasTerm((c.repeat_interleave(len(scale) // c.shape[1], 1) * scale).mT)


def scale_term(term: Term, factor: float | Tensor, q: Tensor) -> Term:
    """factor · term of a query half, at least as wide as q; a tensor holds one factor per head, [H|1]."""

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
    """The same terms with no exponentials in the place of keys."""
    if not any(t.exponential for t in terms.tanhs):
        return terms
    return replace(terms, terms=tuple(t.plain() if isinstance(t, TanhTerm) else t for t in terms.terms))


def fold(terms: Terms) -> tuple[Terms, tuple[str, ...]]:
    """At most one dot and one tanh term: a sum of either kind is one of it over concatenated dims.

    Key terms beside dot products alone are dims of them too, 1 · c_j, where a gradient of theirs may be asked for: then
    what knows dot products, and their gradients, is enough. Also says, in words, what it did.
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
    """Dot and key terms, of types that lose nothing when a key term becomes a dim."""
    dots, keys = terms.dots, terms.keys
    if not dots or not keys or len(dots) + len(keys) != len(terms.terms):
        return False
    full = all(t.q.dtype in (torch.float32, torch.float64) and t.q.dtype == _tensor(t.k).dtype for t in dots)
    same = all(_tensor(t.c).dtype == dots[0].q.dtype for t in keys)
    return terms.cap is None and full and same and may_need_gradient(*(t.c for t in keys))


def _keys_as_dims(terms: Terms) -> Terms:
    """[q; 1]·[k; c], with zeros up to a multiple of 8 dims, which fused kernels want."""
    dots, first = terms.dots, terms.dots[0].q
    c: Tensor = torch.stack([_tensor(t.c) for t in terms.keys]).sum(0)
    q, k = [t.q * _per_head(t.scale, t.q) for t in dots], [_tensor(t.k) for t in dots]
    empty = -(sum(t.shape[-1] for t in q) + 1) % 8
    q += [first.new_ones(*first.shape[:-1], 1), first.new_zeros(*first.shape[:-1], empty)]
    k += [c, c.new_zeros(*c.shape[:-1], empty)]
    return Terms((DotTerm(torch.cat(q, -1), 1.0, torch.cat(k, -1)),), None, terms.values)


def _strictest(forms: Iterable[str]) -> str:
    """What all of the terms allow."""
    wanted = set(forms)
    return next(form for form in ("exact", "auto", "series") if form in wanted)


def _per_head(scale: float | Tensor, q: Tensor) -> float | Tensor:
    return scale.to(q.dtype)[:, None, None] if isinstance(scale, Tensor) else scale


def _tensor(x: Tensor | None) -> Tensor:
    assert x is not None, "a term was used before its key half was joined"
    return x


def may_need_gradient(*tensors: Tensor | None) -> bool:
    """Could a gradient of these be asked for? (Inside torch.func an outer level's requires_grad does not show.)"""
    if torch._C._are_functorch_transforms_active():
        return True
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


@dataclass(frozen=True)
class Problem:
    """One attention problem: everything a kernel needs, checked, batch dims flattened to one."""

    terms: Terms
    v: Tensor  # [B, K, S, Dv]
    heads: int
    queries: int  # L
    mask: Mask | None = None
    offset: int | Tensor = 0  # position of query i less i; a tensor holds one per item, or per query, [B|1, 1|L]
    rows: Tensor | None = None  # the queries' indices if they are a selection of rows, [L]
    dropout: float = 0.0
    seed: Tensor | None = None  # [B|1]
    sink: Tensor | None = None  # [1, H|1]: the logit of an extra key of value zero
    bad_keys: Tensor | None = None  # [B, K, S]: visible pairs with these are NaN
    bad_rows: Tensor | None = None  # [B, H, L]: likewise
    first_head: int = 0  # where these heads start among all heads (dropout counts from there)
    need_logsumexp: bool = False
    need_bias_gradient: bool = True  # an n×n gradient is made only if somebody wants it
    need_offset_gradient: bool = True  # and so is one that sums pairs by their distance
    key_positions: Tensor | None = None  # [B|1, S]; None: key j stands at j

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
        """What scores and softmax are accumulated in."""
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
        """Do queries stand at positions of their own, not one after the other?"""
        return isinstance(self.offset, Tensor) and self.offset.shape[1] != 1


def one_head(p: Problem, head: int) -> Problem:
    """The scores' side of one head alone: terms, mask and sink, with ``head`` counted among those of ``p``."""
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
