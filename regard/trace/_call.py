"""One recorded attention call, and all that can be recomputed from it without an n × n matrix.

What is kept is the lowered problem: transformed queries and keys, values, mask. A row of weights is one query against
all keys, so rows and tiles cost what they show and nothing is stored for them.

Shapes: B batch, H query heads, K key/value heads, L queries, S keys, D dims, E the module's width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.attention.call import observation_of, select_rows
from regard.attention.plan import choose
from regard.kernels import blockwise, reference
from regard.score import PerHead, Score, Sum
from regard.score.terms import BiasTerm, DotTerm, FormulaTerm, KeyTerm, OffsetTerm, Problem, TanhTerm, Term, plain
from regard.trace._stop import check

BLOCK = 2**22  # numbers in the largest temporary
ROWS, COLUMNS = 256, 2048  # of a block that stays in a cache


class TopK(NamedTuple):
    """The keys that a query attends to most, and the weight of all others together."""

    values: Tensor
    keys: Tensor
    rest: float


@dataclass(frozen=True)
class QuerySteps:
    """How one head of one query came to its context, with nothing left out; S keys.

    ``products`` has a column per dimension, q_d·k_jd or w_d·tanh(a_d + b_jd), and its rows add up to ``similarity``;
    ``added`` is what position terms and biases add to the scaled similarity. ``output`` is the head's part of what the
    module returned: its context through its slice of the output projection. ``recorded`` is what the model itself had
    (the context, or of torch.nn.MultiheadAttention, which shows only that, the module's output), and ``difference``
    the largest |recomputed − recorded|; None for a score that is not the model's.
    """

    query_input: Tensor | None  # [E]
    key_inputs: Tensor | None  # [S, E]
    q: Tensor  # [D]
    k: Tensor  # [S, D]
    v: Tensor  # [S, Dv]
    products: Tensor  # [S, P]
    similarity: Tensor  # [S]
    added: Tensor  # [S]
    scaled: Tensor  # [S]
    masked: Tensor  # [S]
    weights: Tensor  # [S]
    weighted: Tensor  # [S, Dv]
    context: Tensor  # [Dv]
    output: Tensor | None  # [E]
    recorded: Tensor | None  # [Dv] or [E]
    difference: float | None
    score: str
    counterfactual: bool

    def __repr__(self) -> str:
        """A line per step, with its shape: the numbers themselves would fill hundreds."""
        steps = {f.name: getattr(self, f.name) for f in fields(self)}
        shown = [f"  {name:<14}{_show(value)}" for name, value in steps.items()]
        return "\n".join(("QuerySteps", *shown))


def _show(value: Tensor | float | str | None) -> str:
    """A few numbers as they are, many by their shape and range."""
    if not isinstance(value, Tensor):
        return f"{value:.1e}" if isinstance(value, float) else str(value)
    return reference.describe_tensor(value)


@dataclass
class Call:
    """An attention call of a model."""

    name: str  # the module's path
    kind: str  # "self" or "cross"
    problems: tuple[Problem, ...]  # one per group of heads, without dropout
    scores_of: tuple[str, ...]  # the score of each group, in words
    q: Tensor | None = None  # [B, H, L, D] as the score got them
    k: Tensor | None = None  # [B, K, S, D]; None where a cache had them lowered
    out: Tensor | None = None  # [B, H, L, Dv], the model's own context
    query_input: Tensor | None = None  # [B, L, E], what the module was given
    key_input: Tensor | None = None  # [B, S, E]
    projection: Tensor | None = None  # [H, Dv, E], the output projection by heads
    bias: Tensor | None = None  # [E], its bias
    result: Tensor | None = None  # [B, L, E], what the module returned, where its context cannot be seen
    gradient: Tensor | None = None  # [B, H, L, Dv], of a loss by the context
    known: dict[tuple[int, int], Tensor] = field(default_factory=dict)  # logsumexp [L], NaN where not yet computed

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(B, H, L, S)."""
        p = self.problems[0]
        return p.batch, sum(p.heads for p in self.problems), p.queries, p.keys

    @property
    def score(self) -> str:
        """Its score in words; with several, how many heads have each."""
        if len(self.problems) == 1:
            return self.scores_of[0]
        return ", ".join(f"{p.heads} × {text}" for p, text in zip(self.problems, self.scores_of, strict=True))

    def score_of(self, head: int) -> str:
        """The score of a head, in words."""
        return self.scores_of[self._group(head)]

    def _group(self, head: int) -> int:
        return next(i for i, p in enumerate(self.problems) if p.first_head <= head < p.first_head + p.heads)

    # --- one head of one batch item ---

    def narrow(self, head: int, item: int) -> Problem:
        """The problem of one head of one batch item."""
        p = self.problems[self._group(head)]
        own = head - p.first_head
        shared = own * p.kv_heads // p.heads
        terms = tuple(_narrow(term, item, own, shared) for term in plain(p.terms).terms)
        values = None if p.terms.values is None else _pick(p.terms.values, item, own)
        mask = p.mask
        if mask is not None:
            mask = mask.for_items(slice(item, item + 1)).for_heads(slice(own, own + 1))
        return replace(
            p,
            terms=replace(p.terms, terms=terms, values=values),
            v=_pick(p.v, item, shared),
            heads=1,
            mask=mask,
            offset=_of_item(p.offset, item),
            key_positions=None if p.key_positions is None else _item(p.key_positions, item),
            sink=None if p.sink is None else _pick(p.sink, item, own),
            bad_keys=None if p.bad_keys is None else _pick(p.bad_keys, item, shared),
            bad_rows=None if p.bad_rows is None else _pick(p.bad_rows, item, own),
            first_head=0,
        )

    def scores(self, head: int, item: int, rows: Tensor, columns: slice | None = None) -> Tensor:
        """E, −inf where masked, [rows, columns]."""
        return torch.cat([e for _, e in self.blocks(head, item, rows, columns)])

    def weights(self, head: int, item: int, rows: Tensor, columns: slice | None = None) -> Tensor:
        """softmax(E), [rows, columns]."""
        parts = [w for _, w in self.weight_blocks(head, item, rows, columns)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def mean_weights(self, heads: Sequence[int], item: int, rows: Tensor, columns: slice) -> Tensor:
        """The mean of some heads' weights; 0 in columns behind the last key, [rows, columns]."""
        within = slice(*(min(end, self.shape[3]) for end in (columns.start, columns.stop)))
        p = self.problems[0]
        out = torch.zeros(len(rows), within.stop - within.start, dtype=p.compute_dtype, device=p.device)
        if within.start < within.stop:
            parts = (self.weights(head, item, rows, within) for head in heads)
            out = next(parts) if len(heads) == 1 else sum(parts, out) / len(heads)
        return nn.functional.pad(out, (0, columns.stop - columns.start - out.shape[1]))

    def weight_blocks(
        self, head: int, item: int, rows: Tensor, columns: slice | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Weights of a few rows at a time: (rows, [rows, columns])."""
        if columns is None or (columns.start, columns.stop) == (0, self.shape[3]):
            for some, e in self.blocks(head, item, rows):
                yield some, self._softmax(head, item, e)
            return
        self.logsumexp(head, item, rows)
        for some, e in self.blocks(head, item, rows, columns):
            lse = self._logsumexps(head, item)[some]
            yield some, e.sub_(lse.masked_fill(lse == -torch.inf, 0.0)[:, None]).exp_()

    def blocks(
        self, head: int, item: int, rows: Tensor, columns: slice | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Masked scores of a few rows at a time: (rows, [rows, columns])."""
        p = self.narrow(head, item)
        columns = slice(0, p.keys) if columns is None else columns
        many = max(1, BLOCK // max(columns.stop - columns.start, 1))
        for some in rows.split(many) if len(rows) else [rows]:
            check()
            yield some, _scores(select_rows(p, some.to(p.device)), columns)

    def logsumexp(self, head: int, item: int, rows: Tensor) -> Tensor:
        """log Σ exp of these rows' scores; what is not yet known is computed, in O(rows) memory."""
        known = self._logsumexps(head, item)
        missing = rows[known[rows].isnan()].unique()
        if len(missing):
            p = self.narrow(head, item)
            of = _fused_logsumexp if p.terms.tanhs and not p.terms.formulas else _logsumexp
            for few in missing.split(ROWS):
                check()
                known[few] = of(p, few.to(p.device)).to(known.dtype)
        return known[rows]

    def _logsumexps(self, head: int, item: int) -> Tensor:
        p = self.problems[0]
        if (head, item) not in self.known:
            self.known[head, item] = torch.full((p.queries,), torch.nan, dtype=p.compute_dtype, device=p.device)
        return self.known[head, item]

    def _softmax(self, head: int, item: int, e: Tensor) -> Tensor:
        """Of whole rows; from their largest score, since e − logsumexp would lose what is small beside large scores."""
        sink = self.narrow(head, item).sink
        if sink is not None:
            e = torch.cat((e, sink.to(e).reshape(1, 1).expand(len(e), 1)), -1)
        if e.shape[-1]:
            empty = e.amax(-1) == -torch.inf
            e = e.softmax(-1)
            if bool(empty.any()):
                e[empty] = 0.0
        return e if sink is None else e[:, :-1]

    # --- what a value does ---

    def value_norms(self, head: int, item: int, rows: Tensor) -> Tensor:
        """‖f(x_j)‖ with f the head's values through its slice of the output projection, [1 or rows, S]."""
        self._check_values()
        if self.projection is None:
            raise ValueError(
                f"norms need the output projection of {self.name or 'the model'}, which is not known; weights, scores "
                "and tiles do not need it"
            )
        p = self.narrow(head, item)
        through = self.projection[head].to(p.device, p.compute_dtype)  # [Dv, E]
        f = p.v[0, 0].to(p.compute_dtype) @ through  # [S, E]
        if p.terms.values is None:
            norms: Tensor = torch.linalg.vector_norm(f, dim=-1)
            return norms[None]
        moved = p.terms.values[0, 0].to(p.compute_dtype) @ through  # [R, E]
        index = _table_index(select_rows(p, rows))
        squares = (f * f).sum(-1) + (moved * moved).sum(-1)[index]
        return (squares + 2 * (moved @ f.mT).gather(0, index)).clamp(min=0).sqrt()

    def weight_gradient(self, head: int, item: int, rows: Tensor) -> Tensor:
        """∂L/∂α_ij = g_i · v_j, g being the gradient of the context, [rows, S]."""
        if self.gradient is None:
            raise ValueError(
                "no gradient has reached this call: use record(model, gradients=True), call backward() on a loss, "
                "and see that the model's parameters or inputs require gradients"
            )
        p = self.narrow(head, item)
        g = self.gradient[item, head, rows].to(p.compute_dtype)
        out = g @ p.v[0, 0].to(p.compute_dtype).mT
        if p.terms.values is not None:
            by_distance = g @ p.terms.values[0, 0].to(p.compute_dtype).mT  # [rows, R]
            out = out + by_distance.gather(1, _table_index(select_rows(p, rows)))
        return out

    def positions(self, item: int, rows: Tensor) -> Tensor:
        """Where these queries are, in the counting of the keys."""
        return _item(self.problems[0].positions(), item)[0, rows]

    def distances(self, item: int, rows: Tensor) -> Tensor:
        """How far each key is from these queries, [rows, S]."""
        keys = _item(self.problems[0].positions_of_keys(), item)[0]
        return (keys - self.positions(item, rows)[:, None]).abs()

    # --- one query in full ---

    @property
    def has_values(self) -> bool:
        return bool(self.problems[0].v.shape[-1])

    def _check_values(self) -> None:
        if not self.has_values:
            raise ValueError(
                "steps and norms need the values, which were not kept (record(values=False)); weights, scores and "
                "tiles do not need them"
            )

    def steps(self, head: int, item: int, query: int, score: Score | None = None) -> QuerySteps:
        self._check_values()
        own = self.narrow(head, item)
        q, k = self._raw(own, head, item, query)
        p = own if score is None else self._other(own, head, item, score)
        rows = torch.tensor([query], device=p.device)
        one = select_rows(p, rows)
        shown = reference.run_steps(one).map(lambda x: x[0, 0, 0])
        products = _products(one)
        capped = shown.scaled.new_zeros(one.keys) if not one.terms.pairs else _pairs_only(one)
        v = one.v[0, 0].to(shown.context.dtype)
        output = None
        if self.projection is not None:
            output = shown.context.to(self.projection.dtype) @ self.projection[head]
        recorded, difference = (None, None) if score is not None else self._compare(head, item, query, shown.context)
        return QuerySteps(
            None if self.query_input is None else self.query_input[item, query].cpu(),
            None if self.key_input is None else self.key_input[item].cpu(),
            q.cpu(),
            k.cpu(),
            v.cpu(),
            products.cpu(),
            shown.similarity.cpu(),
            (shown.scaled - capped).cpu(),
            shown.scaled.cpu(),
            shown.masked.cpu(),
            shown.weights.cpu(),
            (shown.weights[:, None].to(v.dtype) * v).cpu(),
            shown.context.cpu(),
            None if output is None else output.cpu(),
            None if recorded is None else recorded.cpu(),
            difference,
            self.score_of(head) if score is None else describe(score),
            score is not None,
        )

    def _raw(self, p: Problem, head: int, item: int, query: int) -> tuple[Tensor, Tensor]:
        """q [D] and k [S, D] as the score got them, or lowered where that is all there is."""
        if self.q is not None and self.k is not None:
            shared = head * self.k.shape[1] // self.q.shape[1]
            return self.q[item, head, query], self.k[item, shared]
        pairs = p.terms.pairs
        if not pairs:
            empty = p.v.new_zeros(0)
            return empty, p.v.new_zeros(p.keys, 0)
        term = pairs[0]
        q, k = (term.q, term.k) if isinstance(term, DotTerm) else (term.a, term.b)
        assert k is not None
        return q[0, 0, query], k[0, 0]

    def _other(self, own: Problem, head: int, item: int, score: Score) -> Problem:
        if self.q is None or self.k is None:
            raise ValueError(
                "another score needs the keys before this one transformed them, and a cache only has the transformed "
                "keys: record a forward pass without a cache"
            )
        shared = head * self.k.shape[1] // self.q.shape[1]
        q, k = self.q[item, head][None, None], self.k[item, shared][None, None]
        with torch.no_grad():
            if isinstance(own.offset, int) and own.key_positions is None:
                seen = observation_of(q, k, own.v, score=score, mask=own.mask, offset=own.offset)
            else:
                places = own.positions(), own.key_positions
                seen = observation_of(q, k, own.v, score=score, mask=own.mask, positions=places)
        return seen.problems[0]

    def _compare(self, head: int, item: int, query: int, context: Tensor) -> tuple[Tensor | None, float | None]:
        if self.out is not None:
            recorded = self.out[item, head, query]
            return recorded, _largest(context.to(recorded.dtype) - recorded)
        if self.result is None or self.projection is None:
            return None, None
        recorded = self.result[item, query]
        rows = torch.tensor([query], device=recorded.device)
        mine = torch.zeros_like(recorded) if self.bias is None else self.bias.to(recorded.dtype)
        for h in range(self.shape[1]):
            part = reference.run_steps(select_rows(self.narrow(h, item), rows)).context[0, 0, 0]
            mine = mine + part.to(self.projection.dtype) @ self.projection[h]
        return recorded, _largest(mine - recorded)


def describe(score: nn.Module) -> str:
    """A score as one would write it, without sizes: Dot() + ALiBi(), Rotary(Dot())."""
    if isinstance(score, Sum):
        return " + ".join(describe(part) for part in score.parts)
    if isinstance(score, PerHead):
        return ", ".join(f"{count} × {describe(part)}" for count, part in zip(score.counts, score.scores, strict=True))
    inner = getattr(score, "inner", None)
    return f"{type(score).__name__}({describe(inner) if isinstance(inner, Score) else ''})"


def _largest(x: Tensor) -> float:
    return float(x.abs().max()) if x.numel() else 0.0


def _pick(x: Tensor, item: int, head: int) -> Tensor:
    """[B|1, H|1, …] → [1, 1, …]."""
    i, h = (item if x.shape[0] > 1 else 0), (head if x.shape[1] > 1 else 0)
    return x[i : i + 1, h : h + 1]


def _item(x: Tensor, item: int) -> Tensor:
    """[B|1, …] → [1, …]."""
    return x[item : item + 1] if x.shape[0] > 1 else x


def _of_item(offset: int | Tensor, item: int) -> int | Tensor:
    """A number where queries stand one after the other, else [1, L]."""
    if isinstance(offset, int):
        return offset
    own = _item(offset, item)
    return int(own) if own.shape[1] == 1 else own


def _narrow(term: Term, item: int, own: int, shared: int) -> Term:
    if isinstance(term, DotTerm):
        assert term.k is not None
        scale = term.scale
        if isinstance(scale, Tensor):
            scale = float(scale.reshape(-1)[own if scale.numel() > 1 else 0])
        return DotTerm(_pick(term.q, item, own), scale, _pick(term.k, item, shared))
    if isinstance(term, TanhTerm):
        assert term.b is not None
        return replace(term, a=_pick(term.a, item, own), w=_pick(term.w, item, own), b=_pick(term.b, item, shared))
    if isinstance(term, OffsetTerm):
        slope = None if term.slope is None else _pick(term.slope, item, own)
        return OffsetTerm(_pick(term.table, item, own), slope)
    if isinstance(term, BiasTerm):
        return BiasTerm(_pick(term.bias, item, own))
    if isinstance(term, FormulaTerm):
        return replace(term, item=item, head=own)
    assert isinstance(term, KeyTerm) and term.c is not None
    return KeyTerm(_pick(term.c, item, shared))


def _columns(p: Problem, columns: slice) -> Problem:
    """The problem of some of its keys, without its mask: key j − start takes the place of key j."""

    def cut(x: Tensor | None) -> Tensor | None:
        return None if x is None else x[:, :, columns]

    terms: list[Term] = []
    for term in p.terms.terms:
        if isinstance(term, DotTerm):
            terms.append(replace(term, k=cut(term.k)))
        elif isinstance(term, TanhTerm):
            terms.append(replace(term, b=cut(term.b)))
        elif isinstance(term, KeyTerm):
            terms.append(KeyTerm(cut(term.c)))
        elif isinstance(term, BiasTerm) and term.bias.shape[-1] > 1:
            terms.append(BiasTerm(term.bias[..., columns]))
        elif isinstance(term, FormulaTerm):
            terms.append(replace(term, columns=columns))
        else:
            terms.append(term)
    bad = None if p.bad_keys is None else p.bad_keys[..., columns]
    moved = p.offset - columns.start if p.key_positions is None else p.offset
    return replace(
        p,
        terms=replace(p.terms, terms=tuple(terms)),
        v=p.v[:, :, columns],
        offset=moved,
        key_positions=None if p.key_positions is None else p.key_positions[:, columns],
        mask=None,
        bad_keys=bad,
    )


def _scores(some: Problem, columns: slice, full: bool = False) -> Tensor:
    """E of one head's selected rows, −inf where masked, NaN where something not finite is seen, [rows, columns]."""
    part = replace(some, sink=None, v=some.v[..., :0], terms=replace(some.terms, values=None))
    whole = (columns.start, columns.stop) == (0, some.keys)
    if whole:
        return blockwise.scores(replace(part, mask=None) if full else part)[0, 0]
    e = _dots(part, columns) if _is_dots(part) else blockwise.scores(_columns(part, columns))[0, 0]
    if some.mask is not None and not full:
        at = torch.arange(columns.start, columns.stop, device=some.device)
        e.masked_fill_(~some.mask.visible(some.row_index(), some.positions(), at)[0, 0], -torch.inf)
    return e


def _is_dots(p: Problem) -> bool:
    return p.bad_keys is None and p.terms.cap is None and all(isinstance(term, DotTerm) for term in p.terms.terms)


def _dots(p: Problem, columns: slice) -> Tensor:
    """Σ (scale · q) kᵀ of one head's dot terms: a product needs no tiles, [rows, columns]."""
    e: Tensor | None = None
    for term in p.terms.terms:
        assert isinstance(term, DotTerm) and term.k is not None
        q, k = (x.to(p.compute_dtype) for x in (term.q[0, 0], term.k[0, 0, columns]))
        e = (q * term.scale) @ k.mT if e is None else e.addmm_(q * term.scale, k.mT)
    assert e is not None
    return e


def _fused_logsumexp(p: Problem, rows: Tensor) -> Tensor:
    """Of one head's rows by a kernel that is far faster than tanh for each pair and dim."""
    v = p.v.new_zeros(*p.v.shape[:-1], 1)  # the kernel wants one, and it may not have been kept
    some = select_rows(replace(p, v=v, terms=replace(p.terms, values=None)), rows)
    if isinstance(p.offset, int) and (p.mask is None or p.mask.static) and len(rows) == int(rows[-1] - rows[0]) + 1:
        # neighbours are a sequence of their own, which is what the kernel takes
        some = replace(some, rows=None, offset=p.offset + int(rows[0]))
    lse = choose(replace(some, need_logsumexp=True)).run()[1]
    assert lse is not None
    return lse[0, 0]


def _logsumexp(p: Problem, rows: Tensor) -> Tensor:
    """Of one head's rows, over blocks of columns that stay in a cache; those hidden by position alone are skipped.

    (Online softmax: Milakov & Gimelshein 2018, https://arxiv.org/abs/1805.02867.)
    """
    some = select_rows(p, rows)
    first, last = (int(x) for x in some.positions().aminmax())
    top = torch.full((len(rows),), -torch.inf, dtype=p.compute_dtype, device=p.device)
    if p.sink is not None:
        top = p.sink.to(top).reshape(1).expand(len(rows))
    total = (top > -torch.inf).to(top)
    for start in range(0, p.keys, COLUMNS):
        check()
        columns, full = slice(start, min(start + COLUMNS, p.keys)), p.mask is None
        if p.mask is not None and p.mask.static:
            empty, full = map(bool, p.mask.span(first, last, columns.start, columns.stop - 1))
            if empty:
                continue
        e = _scores(some, columns, full)
        higher = torch.maximum(top, e.amax(-1))
        base = higher.masked_fill(higher == -torch.inf, 0.0)
        total = total * (top - base).exp() + e.sub_(base[:, None]).exp_().sum(-1)
        top = higher
    return top + total.log().masked_fill(top == -torch.inf, 0.0)


def _products(p: Problem) -> Tensor:
    """What each dimension contributes to the similarity of a problem's only query, [S, P]."""
    parts = [p.v.new_zeros(p.keys, 0, dtype=p.compute_dtype)]
    for term in p.terms.pairs:
        if isinstance(term, DotTerm):
            assert term.k is not None
            parts.append(term.q[0, 0].to(p.compute_dtype) * term.k[0, 0].to(p.compute_dtype))
        else:
            assert term.b is not None
            inside = term.a[0, 0].to(p.compute_dtype) + term.b[0, 0].to(p.compute_dtype)
            parts.append(torch.tanh(inside) * term.w[0].to(p.compute_dtype))
    return torch.cat(parts, -1)


def _pairs_only(p: Problem) -> Tensor:
    """The scaled and capped pair terms of a problem's only query, [S]."""
    alone = replace(
        p, terms=replace(p.terms, terms=p.terms.pairs, values=None), mask=None, bad_keys=None, bad_rows=None
    )
    return reference.run_steps(alone).scaled[0, 0, 0]


def _table_index(p: Problem) -> Tensor:
    """Where in the value table each pair looks, [rows, S]."""
    assert p.terms.values is not None
    reach = p.terms.values.shape[-2] // 2
    delta = p.positions_of_keys() - p.positions()[0, :, None]
    return delta.clamp(-reach, reach) + reach
