"""Scores times a factor, and scores of normalised queries and keys."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.score._checks import arguments, check_finite, check_fit, check_positive
from regard.score._tensors import widen
from regard.score.base import Score, describe_argument
from regard.score.combine import PerHead
from regard.score.terms import Keys, Queries, scale_term


class _Around(Score):
    """Base of scores that wrap another and keep its form."""

    def __init__(self, inner: Score) -> None:
        super().__init__()
        name = type(self).__name__
        if not isinstance(inner, Score):
            raise TypeError(f"{name} wraps a score, such as {name}(Dot()), got {describe_argument(inner)}")
        if isinstance(inner, PerHead):
            raise ValueError(f"{name} cannot wrap a PerHead; wrap its groups, as in PerHead((4, {name}(Dot())), ...)")
        self.inner = inner

    @property
    def dot_shaped(self) -> bool:  # type: ignore[override]
        return self.inner.dot_shaped

    @property
    def pair_shaped(self) -> bool:  # type: ignore[override]
        return self.inner.pair_shaped

    @property
    def pairs(self) -> bool:  # type: ignore[override]
        return self.inner.pairs

    @property
    def capped(self) -> bool:  # type: ignore[override]
        return self.inner.capped

    @property
    def value_table(self) -> bool:  # type: ignore[override]
        return self.inner.value_table

    @property
    def positional(self) -> bool:  # type: ignore[override]
        return self.inner.positional

    @property
    def key_tensors(self) -> int:  # type: ignore[override]
        return self.inner.key_tensors

    def check(self, heads: int, query_dim: int, kv_heads: int | None, key_dim: int | None) -> None:
        self.inner.check(heads, query_dim, kv_heads, key_dim)


class Scale(_Around):
    """e_ij = s · inner_ij with a fixed factor, ``2 * Dot()``, or a learned one per head, ``Scale(Dot(), heads=8)``.

    ``heads=1`` learns one factor for all heads. A learned factor is initialised at ``factor``. A score with a Softcap
    inside only takes a fixed factor.

    >>> q, k = torch.tensor([[[0.2, 0.1]]]), torch.tensor([[[0.3, 0.4]]])
    >>> from regard.score import Dot
    >>> round((3 * Dot(scale=1.0))(q, k).item(), 4)
    0.3
    """

    def __init__(self, inner: Score, factor: float = 1.0, *, heads: int | None = None) -> None:
        super().__init__(inner)
        self.factor = check_finite("Scale", "factor", factor)
        self.weight = None
        if heads is not None:
            (heads,) = check_positive("Scale", heads=heads)
            if inner.capped:
                raise ValueError(
                    "Scale: a learned factor cannot stand around a Softcap; put it inside, as in "
                    "Softcap(Scale(Dot(), heads=8), 50.0)"
                )
            self.weight = nn.Parameter(torch.empty(heads))
            self._start()

    def _start(self) -> None:
        if self.weight is not None:
            nn.init.constant_(self.weight, self.factor)

    def forward(self, q: Tensor, k: Tensor, offset: int | Tensor = 0) -> Tensor:
        e: Tensor = self.inner(q, k, offset)
        return e * (self.factor if self.weight is None else self.weight.to(e.dtype)[:, None, None])

    def queries(self, q: Tensor, offset: int | Tensor = 0) -> Queries:
        half = self.inner.queries(q, offset)
        factor = self.factor if self.weight is None else widen(self.weight, q)
        cap = half.cap
        if cap is not None:  # s · c · tanh(e / c) = |s| c · tanh(s e / |s| c)
            cap = cap * abs(self.factor) or None
        return Queries(tuple(scale_term(term, factor, q) for term in half.terms), cap, half.values)

    def keys(self, k: Tensor, start: int | Tensor = 0) -> Keys:
        return self.inner.keys(k, start)

    def cached_keys(self, k: Tensor, start: int | Tensor = 0) -> Keys:
        return self.inner.cached_keys(k, start)

    def check(self, heads: int, query_dim: int, kv_heads: int | None, key_dim: int | None) -> None:
        super().check(heads, query_dim, kv_heads, key_dim)
        if self.weight is not None and len(self.weight) != 1 and len(self.weight) != heads:
            raise ValueError(f"Scale was made for heads={len(self.weight)}, got {heads} query heads")

    def extra_repr(self) -> str:
        return arguments(factor=self.factor, heads=None if self.weight is None else len(self.weight))


class QKNorm(_Around):
    """The inner score of normalised queries and keys: their lengths no longer matter.

    ``kind="l2"`` divides by ‖x‖: q̂·k̂ for ``Dot(scale=1.0)`` (Henry et al. 2020, https://arxiv.org/abs/2010.04245;
    :class:`Cosine` adds a learned temperature). ``kind="rms"`` divides by √(mean x² + eps) (Zhang & Sennrich 2019,
    https://arxiv.org/abs/1910.07467), and with ``dim`` multiplies by learned gains, one set for queries and one for
    keys, which stabilises large models (Dehghani et al. 2023, https://arxiv.org/abs/2302.05442). Rotary positions
    come after it: ``QKNorm(Rotary(Dot()), kind="rms", dim=64)``.

    >>> from regard.score import Dot
    >>> q, k = torch.tensor([[[3.0, 4.0]]]), torch.tensor([[[0.0, 2.0]]])
    >>> round(QKNorm(Dot(scale=1.0))(q, k).item(), 4)
    0.8
    """

    def __init__(self, inner: Score, kind: str = "l2", *, dim: int | None = None, eps: float = 1e-6) -> None:
        super().__init__(inner)
        if kind not in ("l2", "rms"):
            raise ValueError(f"QKNorm: kind must be 'l2' or 'rms', got {kind!r}")
        if dim is not None and kind == "l2":
            raise ValueError("QKNorm: only kind='rms' has learned gains; leave out dim=, or put a Scale inside")
        self.kind, self.eps = kind, check_finite("QKNorm", "eps", eps)
        self.query_gain = self.key_gain = None
        if dim is not None:
            (dim,) = check_positive("QKNorm", dim=dim)
            self.query_gain, self.key_gain = (nn.Parameter(torch.empty(dim)) for _ in range(2))
            self._start()

    def _start(self) -> None:
        for gain in (self.query_gain, self.key_gain):
            if gain is not None:
                nn.init.ones_(gain)

    def forward(self, q: Tensor, k: Tensor, offset: int | Tensor = 0) -> Tensor:
        e: Tensor = self.inner(self._norm(q, self.query_gain), self._norm(k, self.key_gain), offset)
        return e

    def queries(self, q: Tensor, offset: int | Tensor = 0) -> Queries:
        return self.inner.queries(self._norm(q, self.query_gain), offset)

    def keys(self, k: Tensor, start: int | Tensor = 0) -> Keys:
        return self.inner.keys(self._norm(k, self.key_gain), start)

    def cached_keys(self, k: Tensor, start: int | Tensor = 0) -> Keys:
        return self.inner.cached_keys(self._norm(k, self.key_gain), start)

    def check(self, heads: int, query_dim: int, kv_heads: int | None, key_dim: int | None) -> None:
        super().check(heads, query_dim, kv_heads, key_dim)
        if self.query_gain is not None and self.key_gain is not None:
            check_fit("QKNorm", "query", self.query_gain, heads, query_dim)
            check_fit("QKNorm", "key", self.key_gain, kv_heads, key_dim)

    def _norm(self, x: Tensor, gain: Tensor | None) -> Tensor:
        """In float32 or wider; a zero vector stays zero."""
        wide = x if x.dtype == torch.float64 else x.float()
        if self.kind == "l2":
            return nn.functional.normalize(wide, dim=-1, eps=self.eps).to(x.dtype)
        unit = (wide * (wide.square().mean(-1, keepdim=True) + self.eps).rsqrt()).to(x.dtype)
        return unit if gain is None else unit * gain.to(x.dtype)

    def extra_repr(self) -> str:
        return arguments(kind=self.kind, dim=None if self.query_gain is None else len(self.query_gain), eps=self.eps)
