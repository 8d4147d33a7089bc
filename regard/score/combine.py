"""Scores made of scores: softcap, sum, and one score per group of heads."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from regard.score._checks import check_finite, check_positive
from regard.score.base import Score, describe_argument
from regard.score.terms import FormulaTerm, Keys, Queries, Term


class Softcap(Score):
    """e_ij = c · tanh(inner_ij / c) (Gemma 2, https://arxiv.org/abs/2408.00118): keeps scores within ±c.

    It wraps scores made of pair terms; add position terms and biases outside.
    """

    pairs = capped = True

    def __init__(self, inner: Score, cap: float) -> None:
        super().__init__()
        if not isinstance(inner, Score) or not inner.pair_shaped:
            raise ValueError(
                f"Softcap wraps pair-shaped scores (Dot, Additive, General, Bilinear, Rotary, Cosine or a "
                f"sum of these), got {describe_argument(inner)}; add the rest outside, as in "
                "Softcap(Dot(), 50.0) + ALiBi(...)"
            )
        if check_finite("Softcap", "cap", cap) <= 0:
            raise ValueError(f"Softcap: cap must be positive, got {cap}")
        self.inner, self.cap = inner, float(cap)

    def forward(self, q: Tensor, k: Tensor, offset: int | Tensor = 0) -> Tensor:
        return self.cap * torch.tanh(self.inner(q, k, offset) / self.cap)

    def queries(self, q: Tensor, offset: int | Tensor = 0) -> Queries:
        terms = self.inner.queries(q, offset).terms
        for term in terms:
            if isinstance(term, FormulaTerm):
                raise ValueError(
                    f"Softcap cannot wrap {term.name}, which only has a formula; cap it in its own forward"
                )
        return Queries(terms, cap=self.cap)

    def keys(self, k: Tensor, start: int | Tensor = 0) -> Keys:
        return self.inner.keys(k, start)

    def cached_keys(self, k: Tensor, start: int | Tensor = 0) -> Keys:
        return self.inner.cached_keys(k, start)

    @property
    def key_tensors(self) -> int:  # type: ignore[override]
        return self.inner.key_tensors

    @property
    def positional(self) -> bool:  # type: ignore[override]
        return self.inner.positional

    def check(self, heads: int, query_dim: int, kv_heads: int | None, key_dim: int | None) -> None:
        self.inner.check(heads, query_dim, kv_heads, key_dim)

    def extra_repr(self) -> str:
        return f"cap={self.cap}"


class Sum(Score):
    """e_ij = Σ of the parts. Written ``Dot() + ALiBi(heads=8)``."""

    def __init__(self, *parts: Score) -> None:
        super().__init__()
        flat: list[Score] = []
        for part in parts:
            if not isinstance(part, Score):
                raise TypeError(f"Sum adds scores, as in Sum(Dot(), ALiBi(heads=8)), got {describe_argument(part)}")
            flat += part._scores() if isinstance(part, Sum) else [part]
        if any(isinstance(p, PerHead) for p in flat):
            raise ValueError(
                "a PerHead cannot be added to; add inside its groups, as in PerHead((4, Dot() + Key(64)), ...)"
            )
        self.parts = nn.ModuleList(flat)
        capped = [p for p in flat if p.capped]
        pairs = [p for p in flat if p.pairs or p.pair_shaped]
        if capped and len(pairs) > 1:
            raise ValueError(
                "a sum takes one Softcap, with every pair term inside it: "
                "Softcap(Dot() + Additive(...), 50.0) + ALiBi(...)"
            )
        if sum(p.value_table for p in flat) > 1:
            raise ValueError("a sum takes at most one Relative(values=True)")

    @property
    def dot_shaped(self) -> bool:  # type: ignore[override]
        return all(p.dot_shaped for p in self._scores())

    @property
    def pair_shaped(self) -> bool:  # type: ignore[override]
        return all(p.pair_shaped for p in self._scores())

    @property
    def pairs(self) -> bool:  # type: ignore[override]
        return any(p.pairs or p.pair_shaped for p in self._scores())

    @property
    def capped(self) -> bool:  # type: ignore[override]
        return any(p.capped for p in self._scores())

    @property
    def value_table(self) -> bool:  # type: ignore[override]
        return any(p.value_table for p in self._scores())

    @property
    def positional(self) -> bool:  # type: ignore[override]
        return any(p.positional for p in self._scores())

    @property
    def key_tensors(self) -> int:  # type: ignore[override]
        return sum(p.key_tensors for p in self._scores())

    def _scores(self) -> list[Score]:
        return [p for p in self.parts if isinstance(p, Score)]

    def forward(self, q: Tensor, k: Tensor, offset: int | Tensor = 0) -> Tensor:
        parts = [p(q, k, offset) for p in self.parts]
        return torch.stack(torch.broadcast_tensors(*parts)).sum(0)

    def queries(self, q: Tensor, offset: int | Tensor = 0) -> Queries:
        terms: tuple[Term, ...] = ()
        cap, values = None, None
        for part in self._scores():
            half = part.queries(q, offset)
            terms += half.terms
            cap = half.cap if cap is None else cap
            values = half.values if values is None else values
        return Queries(terms, cap, values)

    def keys(self, k: Tensor, start: int | Tensor = 0) -> Keys:
        return sum((part.keys(k, start) for part in self._scores()), Keys(()))

    def cached_keys(self, k: Tensor, start: int | Tensor = 0) -> Keys:
        return sum((part.cached_keys(k, start) for part in self._scores()), Keys(()))

    def check(self, heads: int, query_dim: int, kv_heads: int | None, key_dim: int | None) -> None:
        for part in self._scores():
            part.check(heads, query_dim, kv_heads, key_dim)


class PerHead(Score):
    """A different score for each group of heads, in order.

    ``PerHead((4, Dot()), (2, Additive(64, 64, 32)), (2, Rotary(Dot())))``: the counts are query heads. A group must
    cover whole key/value groups.
    """

    def __init__(self, *groups: tuple[int, Score]) -> None:
        super().__init__()
        if not groups:
            raise ValueError("PerHead needs at least one group, as in PerHead((4, Dot()), (4, ALiBi(heads=4)))")
        for group in groups:
            if not (isinstance(group, Sequence) and len(group) == 2 and isinstance(group[1], Score)):
                raise ValueError(f"PerHead: a group is (number of heads, score), got {group!r}")
            if isinstance(group[1], PerHead):
                raise ValueError("PerHead: a group cannot be a PerHead itself")
        self.counts = check_positive("PerHead", **{f"group_{i}": n for i, (n, _) in enumerate(groups)})
        self.scores = nn.ModuleList(score for _, score in groups)

    def __mul__(self, factor: float) -> Score:
        if isinstance(factor, bool) or not isinstance(factor, (int, float)):
            return NotImplemented
        return PerHead(*[(end - first, score * factor) for first, end, score in self.groups()])

    __rmul__ = __mul__

    @property
    def heads(self) -> int:
        return sum(self.counts)

    @property
    def key_tensors(self) -> int:  # type: ignore[override]
        return sum(score.key_tensors for _, _, score in self.groups())

    @property
    def positional(self) -> bool:  # type: ignore[override]
        return any(score.positional for _, _, score in self.groups())

    def groups(self) -> list[tuple[int, int, Score]]:
        """(first head, end, score) of each group."""
        ends = [sum(self.counts[: i + 1]) for i in range(len(self.counts))]
        return [
            (end - n, end, s) for end, n, s in zip(ends, self.counts, self.scores, strict=True) if isinstance(s, Score)
        ]

    def slices(self, kv_heads: int) -> list[tuple[slice, slice, Score]]:
        """The query heads, the key/value heads and the score of each group."""
        size = self.heads // kv_heads
        return [(slice(a, b), slice(a // size, b // size), score) for a, b, score in self.groups()]

    def forward(self, q: Tensor, k: Tensor, offset: int | Tensor = 0) -> Tensor:
        groups = self.slices(k.shape[-3])
        return torch.cat([s(q[..., h, :, :], k[..., g, :, :], offset) for h, g, s in groups], -3)

    def queries(self, q: Tensor, offset: int | Tensor = 0) -> Queries:
        raise TypeError("a PerHead is lowered group by group: see PerHead.slices")

    def keys(self, k: Tensor, start: int | Tensor = 0) -> Keys:
        """The key halves of all groups, concatenated; ``split`` is the inverse."""
        return sum((score.keys(k[..., g, :, :], start) for _, g, score in self.slices(k.shape[-3])), Keys(()))

    def cached_keys(self, k: Tensor, start: int | Tensor = 0) -> Keys:
        return sum((score.cached_keys(k[..., g, :, :], start) for _, g, score in self.slices(k.shape[-3])), Keys(()))

    def split(self, keys: Keys) -> list[Keys]:
        parts, tensors = [], keys.tensors
        for _, _, score in self.groups():
            parts.append(Keys(tensors[: score.key_tensors], exponential=keys.exponential))
            tensors = tensors[score.key_tensors :]
        return parts

    def check(self, heads: int, query_dim: int, kv_heads: int | None, key_dim: int | None) -> None:
        if heads != self.heads:
            raise ValueError(
                f"PerHead's groups have {' + '.join(map(str, self.counts))} = {self.heads} heads, "
                f"got {heads} query heads"
            )
        size = 1 if kv_heads is None else heads // kv_heads
        for count, score in zip(self.counts, self.scores, strict=True):
            if count % size:
                raise ValueError(
                    f"PerHead: a group covers whole key/value groups of {size} query heads, got a group of {count}"
                )
            assert isinstance(score, Score)
            score.check(count, query_dim, None if kv_heads is None else count // size, key_dim)

    def extra_repr(self) -> str:
        return f"heads={' + '.join(map(str, self.counts))}"
