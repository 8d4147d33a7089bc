"""The scores: how well a query aligns with a key.

Every score is a small module with three faces:

- ``score(q, k, offset)``: the dense textbook matrix E, [..., heads, L, S]. It is the specification.
- ``score.queries(q, offset)`` and ``score.keys(k, start)``: the two halves of its lowering
  (:mod:`regard.terms`). The key half depends on the keys alone, so a cache computes it once per key.

Shapes: q [..., H, L, Dq], k [..., K, S, Dk] with H a multiple of K. Key j is at position ``start + j``
(``start`` is 0 outside a cache), query i at ``offset + i``; ``offset`` is an int or one per batch item.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.terms import BiasTerm, DotTerm, Keys, KeyTerm, OffsetTerm, Queries, TanhTerm, Term

__all__ = [
    "ALiBi",
    "Additive",
    "Bias",
    "Bilinear",
    "Cosine",
    "Dot",
    "General",
    "Key",
    "Location",
    "PerHead",
    "Relative",
    "Rotary",
    "Score",
    "Softcap",
    "Sum",
    "T5Bias",
]


class Score(nn.Module):
    """What all scores share. Scores add: ``Dot() + ALiBi(heads=8)``."""

    dot_shaped = False  # E is a dot product of something of the query and something of the key
    pair_shaped = False  # E is made of pair terms only
    positional = True  # E depends on where queries and keys stand, not on their vectors alone
    key_tensors = 1  # how many tensors the key half holds

    def forward(self, q: Tensor, k: Tensor, offset: int | Tensor = 0) -> Tensor:
        raise NotImplementedError

    def queries(self, q: Tensor, offset: int | Tensor = 0) -> Queries:
        raise NotImplementedError

    def keys(self, k: Tensor, start: int | Tensor = 0) -> Keys:
        raise NotImplementedError

    def cached_keys(self, k: Tensor, start: int | Tensor = 0) -> Keys:
        """The key half as a cache keeps it, in the form that is cheapest to attend to many times."""
        return self.keys(k, start)

    def check(self, heads: int, query_dim: int, kv_heads: int | None, key_dim: int | None) -> None:
        """Raise ValueError unless the score fits these heads and dims (None: keys already lowered)."""

    def __add__(self, other: Score) -> Sum:
        if not isinstance(other, Score):
            return NotImplemented
        return Sum(self, other)


class Dot(Score):
    """e_ij = q_i·k_j · scale, by default 1/√d (Vaswani et al. 2017, https://arxiv.org/abs/1706.03762).

    >>> q, k = torch.tensor([[[0.2, 0.1]]]), torch.tensor([[[0.3, 0.4]]])
    >>> round(Dot(scale=1.0)(q, k).item(), 4)
    0.1
    """

    positional = False
    dot_shaped = pair_shaped = True

    def __init__(self, scale: float | None = None) -> None:
        super().__init__()
        self.scale = None if scale is None else _finite("Dot", "scale", scale)

    def forward(self, q: Tensor, k: Tensor, offset: int | Tensor = 0) -> Tensor:
        return q @ _grouped(k, q).mT * self._scale(q)

    def queries(self, q: Tensor, offset: int | Tensor = 0) -> Queries:
        return Queries((DotTerm(q, self._scale(q)),))

    def keys(self, k: Tensor, start: int | Tensor = 0) -> Keys:
        return Keys((k,))

    def check(self, heads: int, query_dim: int, kv_heads: int | None, key_dim: int | None) -> None:
        _same_dims("Dot", query_dim, key_dim)

    def _scale(self, q: Tensor) -> float:
        return 1 / math.sqrt(max(q.shape[-1], 1)) if self.scale is None else self.scale

    def extra_repr(self) -> str:
        return "" if self.scale is None else f"scale={self.scale}"


class Additive(Score):
    """e_ij = vᵀ tanh(W q_i + U k_j) (Bahdanau et al. 2015, https://arxiv.org/abs/1409.0473).

    Luong's "concat" is the same formula with [W; U] written as one matrix.

    The paper starts W, U at N(0, 0.001²) and v at zero (``init="paper"``): the first weights are then uniform and
    no gradient reaches W and U until v has moved. The default is Glorot's uniform, as later toolkits chose.

    Half types on a GPU are computed by a short sine series of tanh, several times as fast, with an error that
    ``regard.plan`` states; ``form="exact"`` asks for tanh itself, ``form="series"`` says that the series will do (what
    has none, a CPU or float32, is computed exactly). ``"auto"`` takes the series where it is no worse than the type.
    """

    positional = False
    pair_shaped = True

    def __init__(
        self,
        query_dim: int,
        key_dim: int,
        hidden_dim: int,
        *,
        heads: int | None = None,
        kv_heads: int | None = None,
        init: str = "glorot",
        form: str = "auto",
    ) -> None:
        super().__init__()
        query_dim, key_dim, hidden_dim = _positive(
            "Additive", query_dim=query_dim, key_dim=key_dim, hidden_dim=hidden_dim
        )
        if init not in ("glorot", "paper"):
            raise ValueError(f"Additive: init must be 'glorot' or 'paper', got {init!r}")
        if form not in ("auto", "exact", "series"):
            raise ValueError(f"Additive: form must be 'auto', 'exact' or 'series', got {form!r}")
        sets, key_sets = _sets("Additive", heads, kv_heads)
        self.init, self.form = init, form
        self.W = nn.Parameter(torch.empty(*sets, hidden_dim, query_dim))
        self.U = nn.Parameter(torch.empty(*key_sets, hidden_dim, key_dim))
        self.v = nn.Parameter(torch.empty(*sets, hidden_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.init == "paper":
            nn.init.normal_(self.W, std=0.001)
            nn.init.normal_(self.U, std=0.001)
            nn.init.zeros_(self.v)
        else:
            _glorot_(self.W)
            _glorot_(self.U)
            _glorot_(self.v.unsqueeze(-2))

    def forward(self, q: Tensor, k: Tensor, offset: int | Tensor = 0) -> Tensor:
        a, b = _project(q, self.W), _grouped(_project(k, self.U), q)
        v = self.v.to(q.dtype)
        return (torch.tanh(a[..., :, None, :] + b[..., None, :, :]) * v[..., None, None, :]).sum(-1)

    def queries(self, q: Tensor, offset: int | Tensor = 0) -> Queries:
        return Queries((TanhTerm(_project(q, self.W), _headed(self.v, 1).to(q.dtype), form=self.form),))

    def keys(self, k: Tensor, start: int | Tensor = 0) -> Keys:
        return Keys((_project(k, self.U),))

    def cached_keys(self, k: Tensor, start: int | Tensor = 0) -> Keys:
        """e^{2 U k}, once per key; a number beyond ±43 (±350 in float64) counts as that. Half types keep U k."""
        b = _project(k, self.U)
        limit = {torch.float32: 43.0, torch.float64: 350.0}.get(b.dtype)
        return Keys((b,)) if limit is None else Keys((torch.exp(2 * b.clamp(-limit, limit)),), exponential=True)

    def check(self, heads: int, query_dim: int, kv_heads: int | None, key_dim: int | None) -> None:
        _fits("Additive", "query", self.W, heads, query_dim)
        _fits("Additive", "key", self.U, kv_heads, key_dim)


class General(Score):
    """e_ij = q_iᵀ W k_j (Luong et al. 2015, https://arxiv.org/abs/1508.04025), W uniform in ±0.1 as there."""

    positional = False
    dot_shaped = pair_shaped = True

    def __init__(
        self, query_dim: int, key_dim: int, *, heads: int | None = None, kv_heads: int | None = None, scale: float = 1.0
    ) -> None:
        super().__init__()
        query_dim, key_dim = _positive("General", query_dim=query_dim, key_dim=key_dim)
        sets, _ = _sets("General", heads, kv_heads)
        self.scale = _finite("General", "scale", scale)
        self.W = nn.Parameter(torch.empty(*sets, query_dim, key_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.uniform_(self.W, -0.1, 0.1)

    def forward(self, q: Tensor, k: Tensor, offset: int | Tensor = 0) -> Tensor:
        return q @ self.W.to(q.dtype) @ _grouped(k, q).mT * self.scale

    def queries(self, q: Tensor, offset: int | Tensor = 0) -> Queries:
        return Queries((DotTerm(q @ self.W.to(q.dtype), self.scale),))

    def keys(self, k: Tensor, start: int | Tensor = 0) -> Keys:
        return Keys((k,))

    def check(self, heads: int, query_dim: int, kv_heads: int | None, key_dim: int | None) -> None:
        _fits("General", "query", self.W.mT, heads, query_dim)
        if key_dim is not None and key_dim != self.W.shape[-1]:
            raise ValueError(f"General was made for key_dim={self.W.shape[-1]}, got keys with {key_dim} dims")


class Bilinear(Score):
    """e_ij = (W_q q_i)ᵀ(W_k k_j), a General of low rank; ``shared=True`` uses one W for both sides.

    With grouped-query heads and ``shared=True`` there is one W per key/value head, used by its whole group.
    Glorot's uniform, as multi-head projections are commonly started.
    """

    positional = False
    dot_shaped = pair_shaped = True

    def __init__(
        self,
        query_dim: int,
        key_dim: int,
        rank: int,
        shared: bool = False,
        *,
        heads: int | None = None,
        kv_heads: int | None = None,
        scale: float = 1.0,
    ) -> None:
        super().__init__()
        query_dim, key_dim, rank = _positive("Bilinear", query_dim=query_dim, key_dim=key_dim, rank=rank)
        if shared and query_dim != key_dim:
            raise ValueError(f"Bilinear: shared=True needs equal dims, got query_dim={query_dim}, key_dim={key_dim}")
        sets, key_sets = _sets("Bilinear", heads, kv_heads)
        self.scale = _finite("Bilinear", "scale", scale)
        self.Wk = nn.Parameter(torch.empty(*key_sets, rank, key_dim))
        self.Wq = None if shared else nn.Parameter(torch.empty(*sets, rank, query_dim))
        self.heads = heads
        self.reset_parameters()

    def reset_parameters(self) -> None:
        _glorot_(self.Wk)
        if self.Wq is not None:
            _glorot_(self.Wq)

    def forward(self, q: Tensor, k: Tensor, offset: int | Tensor = 0) -> Tensor:
        return _project(q, self._query_weight()) @ _grouped(_project(k, self.Wk), q).mT * self.scale

    def queries(self, q: Tensor, offset: int | Tensor = 0) -> Queries:
        return Queries((DotTerm(_project(q, self._query_weight()), self.scale),))

    def keys(self, k: Tensor, start: int | Tensor = 0) -> Keys:
        return Keys((_project(k, self.Wk),))

    def check(self, heads: int, query_dim: int, kv_heads: int | None, key_dim: int | None) -> None:
        _fits("Bilinear", "query", self._query_weight(), heads, query_dim)
        _fits("Bilinear", "key", self.Wk, kv_heads, key_dim)

    def _query_weight(self) -> Tensor:
        if self.Wq is not None:
            return self.Wq
        if self.heads is None:
            return self.Wk
        return self.Wk.repeat_interleave(self.heads // self.Wk.shape[0], 0)


class Location(Score):
    """e_ij = scale · q_i · r_clip(j−i): the query and the relative position only.

    Glorot's uniform for r, as in the relative embeddings of Shaw et al. 2018 (https://arxiv.org/abs/1803.02155).
    """

    key_tensors = 0

    def __init__(
        self,
        query_dim: int,
        max_distance: int,
        scale: float = 1.0,
        *,
        heads: int | None = None,
        kv_heads: int | None = None,
    ) -> None:
        super().__init__()
        (query_dim,) = _positive("Location", query_dim=query_dim)
        self.max_distance = _distance("Location", max_distance)
        self.scale = _finite("Location", "scale", scale)
        sets, _ = _sets("Location", heads, kv_heads)
        self.r = nn.Parameter(torch.empty(*sets, 2 * self.max_distance + 1, query_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        _glorot_(self.r)

    def forward(self, q: Tensor, k: Tensor, offset: int | Tensor = 0) -> Tensor:
        return _look_up(_project(q, self.r) * self.scale, _distances(q, k.shape[-2], offset))

    def queries(self, q: Tensor, offset: int | Tensor = 0) -> Queries:
        return Queries((OffsetTerm(_query_table(q, self.r, self.scale)),))

    def keys(self, k: Tensor, start: int | Tensor = 0) -> Keys:
        return Keys(())

    def check(self, heads: int, query_dim: int, kv_heads: int | None, key_dim: int | None) -> None:
        _fits("Location", "query", self.r, heads, query_dim)


class Relative(Score):
    """e_ij = q_i·(k_j + r_clip(j−i)) / √d (Shaw et al. 2018, https://arxiv.org/abs/1803.02155): Dot + Location.

    With ``values=True`` the context also gets Σ_j α_ij r'_clip(j−i); ``value_dim`` defaults to ``dim``.
    """

    def __init__(
        self,
        dim: int,
        max_distance: int,
        values: bool = False,
        *,
        heads: int | None = None,
        kv_heads: int | None = None,
        value_dim: int | None = None,
    ) -> None:
        super().__init__()
        (dim,) = _positive("Relative", dim=dim)
        self.max_distance = _distance("Relative", max_distance)
        sets, _ = _sets("Relative", heads, kv_heads)
        self.r = nn.Parameter(torch.empty(*sets, 2 * self.max_distance + 1, dim))
        self.rv = None
        if values:
            self.rv = nn.Parameter(torch.empty(*sets, 2 * self.max_distance + 1, value_dim or dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        _glorot_(self.r)
        if self.rv is not None:
            _glorot_(self.rv)

    def forward(self, q: Tensor, k: Tensor, offset: int | Tensor = 0) -> Tensor:
        r = _look_up(_project(q, self.r), _distances(q, k.shape[-2], offset))
        return (q @ _grouped(k, q).mT + r) / math.sqrt(q.shape[-1])

    def queries(self, q: Tensor, offset: int | Tensor = 0) -> Queries:
        scale = 1 / math.sqrt(q.shape[-1])
        values = None if self.rv is None else _headed(self.rv, 2).to(q.dtype)
        return Queries((DotTerm(q, scale), OffsetTerm(_query_table(q, self.r, scale))), values=values)

    def keys(self, k: Tensor, start: int | Tensor = 0) -> Keys:
        return Keys((k,))

    def check(self, heads: int, query_dim: int, kv_heads: int | None, key_dim: int | None) -> None:
        _fits("Relative", "query", self.r, heads, query_dim)
        _same_dims("Relative", query_dim, key_dim)


class Rotary(Score):
    """The inner dot-shaped score on rotated q and k (Su et al. 2021, https://arxiv.org/abs/2104.09864).

    ``dims`` rotates only the first that many dims (an even number). ``interleaved=False`` pairs dim d with
    d + dims/2 (GPT-NeoX, Llama), ``True`` pairs 2d with 2d + 1 (the paper).
    """

    dot_shaped = pair_shaped = True

    def __init__(
        self, inner: Score | None = None, base: float = 10000.0, *, dims: int | None = None, interleaved: bool = False
    ) -> None:
        super().__init__()
        inner = Dot() if inner is None else inner
        if not isinstance(inner, Score) or not inner.dot_shaped:
            raise ValueError(
                f"Rotary wraps dot-shaped scores (Dot, General, Bilinear, Cosine or a sum of these), "
                f"got {type(inner).__name__}; add position terms outside, as in "
                "Rotary(Dot()) + ALiBi(...)"
            )
        if _finite("Rotary", "base", base) <= 0:
            raise ValueError(f"Rotary: base must be positive, got {base}")
        if dims is not None and (dims <= 0 or dims % 2):
            raise ValueError(f"Rotary: dims must be a positive even number, got {dims}")
        self.inner, self.base, self.dims, self.interleaved = inner, float(base), dims, interleaved

    def forward(self, q: Tensor, k: Tensor, offset: int | Tensor = 0) -> Tensor:
        e: Tensor = self.inner(self._rotate(q, offset), self._rotate(k, 0), offset)
        return e

    def queries(self, q: Tensor, offset: int | Tensor = 0) -> Queries:
        return self.inner.queries(self._rotate(q, offset), offset)

    def keys(self, k: Tensor, start: int | Tensor = 0) -> Keys:
        return self.inner.keys(self._rotate(k, start), start)

    @property
    def key_tensors(self) -> int:  # type: ignore[override]
        return self.inner.key_tensors

    def check(self, heads: int, query_dim: int, kv_heads: int | None, key_dim: int | None) -> None:
        if self.dims is None:
            _same_dims("Rotary", query_dim, key_dim)
            if query_dim % 2:
                raise ValueError(
                    f"Rotary turns pairs of dims and needs an even number, got {query_dim}; "
                    "set dims= to rotate only the first that many"
                )
        elif self.dims > min(query_dim, query_dim if key_dim is None else key_dim):
            raise ValueError(
                f"Rotary: dims={self.dims} is more than the {query_dim} dims of the queries "
                f"or the {key_dim} of the keys"
            )
        self.inner.check(heads, query_dim, kv_heads, key_dim)

    def _rotate(self, x: Tensor, start: int | Tensor) -> Tensor:
        dims = x.shape[-1] if self.dims is None else self.dims
        exact = torch.float64 if x.dtype == torch.float64 else torch.float32
        position = _positions(x.shape[-2], start, x.device).to(exact)
        frequency = self.base ** (-torch.arange(0, dims, 2, device=x.device, dtype=exact) / dims)
        angle = position[..., None] * frequency
        return rotate(x, angle.cos(), angle.sin(), interleaved=self.interleaved)

    def extra_repr(self) -> str:
        return f"base={self.base}, dims={self.dims}, interleaved={self.interleaved}"


def rotate(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool = False) -> Tensor:
    """Turn pairs of the first 2·cos.shape[-1] dims of x by the angles given as cosines and sines."""
    half = cos.shape[-1]
    turned, rest = x[..., : 2 * half].to(cos.dtype), x[..., 2 * half :]
    if interleaved:
        even, odd = turned[..., 0::2], turned[..., 1::2]
        turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)
    else:
        low, high = turned[..., :half], turned[..., half:]
        turned = torch.cat((low * cos - high * sin, low * sin + high * cos), -1)
    turned = turned.to(x.dtype)
    return torch.cat((turned, rest), -1) if rest.shape[-1] else turned


class ALiBi(Score):
    """e_ij = −m_h · |j − i| with fixed slopes (Press et al. 2022, https://arxiv.org/abs/2108.12409).

    The slopes are the paper's 2^(−8h/H); with a number of heads that is no power of two, those of the next lower
    power followed by every other one of the next higher.
    """

    key_tensors = 0

    def __init__(self, heads: int) -> None:
        super().__init__()
        (self.heads,) = _positive("ALiBi", heads=heads)

    def slopes(self, like: Tensor) -> Tensor:
        """m_h, [heads], in float64 for float64 and else in float32: no cast of the module rounds them."""
        exact = torch.float64 if like.dtype == torch.float64 else torch.float32
        power = 2 ** math.floor(math.log2(self.heads))
        first = torch.arange(1, power + 1, device=like.device, dtype=exact) * (-8 / power)
        between = (2 * torch.arange(self.heads - power, device=like.device, dtype=exact) + 1) * (-4 / power)
        return torch.exp2(torch.cat((first, between)))

    def forward(self, q: Tensor, k: Tensor, offset: int | Tensor = 0) -> Tensor:
        distance = _distances(q, k.shape[-2], offset).abs().to(q.dtype)
        return -self.slopes(q).to(q.dtype)[:, None, None] * distance + q.new_zeros((*q.shape[:-1], 1))

    def queries(self, q: Tensor, offset: int | Tensor = 0) -> Queries:
        slope = self.slopes(q)[None]
        return Queries((OffsetTerm(slope.new_zeros(1, 1, 1, 1), slope),))

    def keys(self, k: Tensor, start: int | Tensor = 0) -> Keys:
        return Keys(())

    def check(self, heads: int, query_dim: int, kv_heads: int | None, key_dim: int | None) -> None:
        if heads != self.heads:
            raise ValueError(f"ALiBi was made for heads={self.heads}, got {heads} query heads")


class T5Bias(Score):
    """e_ij = a learned number per head and bucket of j − i (Raffel et al. 2020, https://arxiv.org/abs/1910.10683).

    Half the buckets are exact distances, the rest grow logarithmically up to ``max_distance``; with
    ``bidirectional=False`` all keys after the query share the bucket of distance 0. Started as in the paper's code,
    N(0, 1/``dim``) with ``dim`` the model's width.
    """

    key_tensors = 0
    buckets: Tensor

    def __init__(
        self, heads: int, buckets: int = 32, max_distance: int = 128, bidirectional: bool = True, *, dim: int = 512
    ) -> None:
        super().__init__()
        heads, buckets, dim = _positive("T5Bias", heads=heads, buckets=buckets, dim=dim)
        self.max_distance = _distance("T5Bias", max_distance)
        exact = buckets // (4 if bidirectional else 2)
        if exact < 1 or self.max_distance <= exact:
            raise ValueError(
                f"T5Bias: max_distance must exceed the {max(exact, 1)} exact distances of {buckets} "
                f"buckets, got max_distance={max_distance}"
            )
        self.weight = nn.Parameter(torch.empty(buckets, heads))
        self.dim = dim
        delta = torch.arange(-self.max_distance, self.max_distance + 1)
        self.register_buffer("buckets", t5_bucket(delta, buckets, self.max_distance, bidirectional), persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.dim**-0.5)

    def forward(self, q: Tensor, k: Tensor, offset: int | Tensor = 0) -> Tensor:
        index = _distances(q, k.shape[-2], offset).clamp(-self.max_distance, self.max_distance) + self.max_distance
        e = self.weight.to(q.dtype)[self.buckets[index]].movedim(-1, -3)  # [B|nothing, 1, H, L, S] has a spare dim
        e = e.squeeze(-4) if e.ndim > 3 else e
        return e + q.new_zeros((*q.shape[:-1], 1))

    def queries(self, q: Tensor, offset: int | Tensor = 0) -> Queries:
        return Queries((OffsetTerm(self.weight[self.buckets].mT[None, :, None]),))

    def keys(self, k: Tensor, start: int | Tensor = 0) -> Keys:
        return Keys(())

    def check(self, heads: int, query_dim: int, kv_heads: int | None, key_dim: int | None) -> None:
        if heads != self.weight.shape[1]:
            raise ValueError(f"T5Bias was made for heads={self.weight.shape[1]}, got {heads} query heads")


def t5_bucket(delta: Tensor, buckets: int, max_distance: int, bidirectional: bool) -> Tensor:
    """The bucket of each relative position δ = j − i."""
    if bidirectional:
        buckets //= 2
        start, distance = (delta > 0) * buckets, delta.abs()
    else:
        start, distance = torch.zeros_like(delta), (-delta).clamp(min=0)
    exact = buckets // 2
    ratio = torch.log(distance.clamp(min=1) / exact) / math.log(max_distance / exact)
    far = (exact + (ratio * (buckets - exact)).long()).clamp(max=buckets - 1)
    return start + torch.where(distance < exact, distance, far)


class Cosine(Score):
    """e_ij = τ_h · cos(q_i, k_j) with a learned temperature (Liu et al. 2022, Swin V2, https://arxiv.org/abs/2111.09883).

    τ = exp(log_scale), started at 10 and kept at most ``max_scale``, as in that paper.
    """

    positional = False
    dot_shaped = pair_shaped = True

    def __init__(
        self, scale: float = 10.0, *, heads: int | None = None, max_scale: float = 100.0, eps: float = 1e-6
    ) -> None:
        super().__init__()
        if not 0 < _finite("Cosine", "scale", scale) <= max_scale:
            raise ValueError(f"Cosine: scale must be positive and at most max_scale={max_scale}, got {scale}")
        sets, _ = _sets("Cosine", heads, None)
        self.max_scale, self.eps = _finite("Cosine", "max_scale", max_scale), eps
        self.log_scale = nn.Parameter(torch.full(sets or (1,), math.log(scale)))

    def forward(self, q: Tensor, k: Tensor, offset: int | Tensor = 0) -> Tensor:
        return self._unit(q) @ _grouped(self._unit(k), q).mT * self._scale().to(q.dtype)[:, None, None]

    def queries(self, q: Tensor, offset: int | Tensor = 0) -> Queries:
        return Queries((DotTerm(self._unit(q), self._scale()),))

    def keys(self, k: Tensor, start: int | Tensor = 0) -> Keys:
        return Keys((self._unit(k),))

    def check(self, heads: int, query_dim: int, kv_heads: int | None, key_dim: int | None) -> None:
        _same_dims("Cosine", query_dim, key_dim)
        if self.log_scale.shape[0] not in (1, heads):
            raise ValueError(f"Cosine was made for heads={self.log_scale.shape[0]}, got {heads} query heads")

    def _scale(self) -> Tensor:
        return self.log_scale.clamp(max=math.log(self.max_scale)).exp()

    def _unit(self, x: Tensor) -> Tensor:
        return nn.functional.normalize(x, dim=-1, eps=self.eps)


class Bias(Score):
    """e_ij = a given tensor, broadcast to [batch, heads, L, S]; −inf hides a pair (but see masks)."""

    key_tensors = 0
    bias: Tensor

    def __init__(self, bias: Tensor) -> None:
        super().__init__()
        if not isinstance(bias, Tensor) or not bias.is_floating_point():
            got = bias.dtype if isinstance(bias, Tensor) else type(bias).__name__
            raise TypeError(f"Bias takes a floating-point tensor, got {got}; a bool tensor is a mask")
        if isinstance(bias, nn.Parameter):
            self.bias = bias
        else:
            self.register_buffer("bias", bias, persistent=False)

    def forward(self, q: Tensor, k: Tensor, offset: int | Tensor = 0) -> Tensor:
        return self.bias.to(q.dtype).expand(torch.broadcast_shapes(self.bias.shape, q.shape[:-1] + k.shape[-2:-1]))

    def queries(self, q: Tensor, offset: int | Tensor = 0) -> Queries:
        return Queries((BiasTerm(self.bias),))

    def keys(self, k: Tensor, start: int | Tensor = 0) -> Keys:
        return Keys(())


class Key(Score):
    """e_ij = w·k_j: how much a key is worth to anyone. w is uniform in ±1/√dim."""

    positional = False

    def __init__(self, dim: int, *, heads: int | None = None, kv_heads: int | None = None) -> None:
        super().__init__()
        (dim,) = _positive("Key", dim=dim)
        _, key_sets = _sets("Key", heads, kv_heads)
        self.w = nn.Parameter(torch.empty(*key_sets, 1, dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        bound = self.w.shape[-1] ** -0.5
        nn.init.uniform_(self.w, -bound, bound)

    def forward(self, q: Tensor, k: Tensor, offset: int | Tensor = 0) -> Tensor:
        return _grouped(_project(k, self.w), q).mT + q.new_zeros((*q.shape[:-1], 1))

    def queries(self, q: Tensor, offset: int | Tensor = 0) -> Queries:
        return Queries((KeyTerm(),))

    def keys(self, k: Tensor, start: int | Tensor = 0) -> Keys:
        return Keys((_project(k, self.w),))

    def check(self, heads: int, query_dim: int, kv_heads: int | None, key_dim: int | None) -> None:
        _fits("Key", "key", self.w, kv_heads, key_dim)


class Softcap(Score):
    """e_ij = c · tanh(inner_ij / c) (Gemma 2, https://arxiv.org/abs/2408.00118): keeps scores within ±c.

    It wraps scores made of pair terms; position terms and biases are added outside.
    """

    def __init__(self, inner: Score, cap: float) -> None:
        super().__init__()
        if not isinstance(inner, Score) or not inner.pair_shaped:
            raise ValueError(
                f"Softcap wraps pair-shaped scores (Dot, Additive, General, Bilinear, Rotary, Cosine or a "
                f"sum of these), got {type(inner).__name__}; add the rest outside, as in "
                "Softcap(Dot(), 50.0) + ALiBi(...)"
            )
        if _finite("Softcap", "cap", cap) <= 0:
            raise ValueError(f"Softcap: cap must be positive, got {cap}")
        self.inner, self.cap = inner, float(cap)

    def forward(self, q: Tensor, k: Tensor, offset: int | Tensor = 0) -> Tensor:
        return self.cap * torch.tanh(self.inner(q, k, offset) / self.cap)

    def queries(self, q: Tensor, offset: int | Tensor = 0) -> Queries:
        return Queries(self.inner.queries(q, offset).terms, cap=self.cap)

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
            flat += part._scores() if isinstance(part, Sum) else [part]
        if any(isinstance(p, PerHead) for p in flat):
            raise ValueError(
                "a PerHead cannot be added to; add inside its groups, as in PerHead((4, Dot() + Key(64)), ...)"
            )
        self.parts = nn.ModuleList(flat)
        capped = [p for p in flat if isinstance(p, Softcap)]
        pairs = [p for p in flat if _has_pairs(p)]
        if capped and len(pairs) > 1:
            raise ValueError(
                "a sum takes one Softcap, with every pair term inside it: "
                "Softcap(Dot() + Additive(...), 50.0) + ALiBi(...)"
            )
        if sum(_value_table(p) for p in flat) > 1:
            raise ValueError("a sum takes at most one Relative(values=True)")

    @property
    def dot_shaped(self) -> bool:  # type: ignore[override]
        return all(p.dot_shaped for p in self._scores())

    @property
    def pair_shaped(self) -> bool:  # type: ignore[override]
        return all(p.pair_shaped for p in self._scores())

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


def _has_pairs(score: Score) -> bool:
    return score.pair_shaped or isinstance(score, (Softcap, Relative))


def _value_table(score: Score) -> bool:
    return isinstance(score, Relative) and score.rv is not None


class PerHead(Score):
    """A different score for each group of heads, in order.

    ``PerHead((4, Dot()), (2, Additive(64, 64, 32)), (2, Rotary(Dot())))``: the counts are query heads, and a group
    must cover whole key/value groups.
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
        self.counts = _positive("PerHead", **{f"group_{i}": n for i, (n, _) in enumerate(groups)})
        self.scores = nn.ModuleList(score for _, score in groups)

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
        """The groups' key halves one after the other; ``split`` takes them apart."""
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


# --- what the formulas are made of ---


def _grouped(k: Tensor, q: Tensor) -> Tensor:
    """Repeat key heads so that every query head has its own."""
    group = q.shape[-3] // k.shape[-3]
    return k if group == 1 else k.repeat_interleave(group, -3)


def _project(x: Tensor, weight: Tensor) -> Tensor:
    """x Wᵀ with one W for all heads, [out, in], or one per head, [heads, out, in]."""
    return x @ weight.to(x.dtype).mT


def _query_table(q: Tensor, r: Tensor, scale: float) -> Tensor:
    """scale · q_i·r, a number per query and relative position, [..., L, R].

    Scaling r is less work than scaling the table. On a GPU products of half types are fast only into rows of whole 16
    bytes, and R is odd: there a few zeros are computed and left out.
    """
    r = r * scale
    entries = r.shape[-2]
    if q.is_cuda and q.element_size() == 2:
        r = F.pad(r, (0, 0, 0, -entries % 8))
    table = _project(q, r)
    return table if r.shape[-2] == entries else table[..., :entries]


def _headed(weight: Tensor, dims: int) -> Tensor:
    """Give a parameter of ``dims`` dims per head its leading [1, H|1]."""
    return weight[None] if weight.ndim > dims else weight[None, None]


def _positions(length: int, start: int | Tensor, device: torch.device) -> Tensor:
    """start + 0, 1, …: [L], or [B, 1, L] for one start per batch item."""
    index = torch.arange(length, device=device)
    if isinstance(start, Tensor) and start.ndim:
        return index + start.to(device)[..., None, None]
    return index + start


def _distances(q: Tensor, keys: int, offset: int | Tensor) -> Tensor:
    """δ_ij = j − position(i), [L, S] or [B, 1, L, S]."""
    return torch.arange(keys, device=q.device) - _positions(q.shape[-2], offset, q.device)[..., None]


def _look_up(table: Tensor, distance: Tensor) -> Tensor:
    """table_i[clip(δ_ij)] for a table per query, [..., L, R]."""
    reach = table.shape[-1] // 2
    index = distance.clamp(-reach, reach) + reach
    return table.gather(-1, index.expand(*table.shape[:-1], index.shape[-1]))


# --- checks ---


def _glorot_(weight: Tensor) -> None:
    bound = math.sqrt(6 / (weight.shape[-1] + weight.shape[-2]))
    nn.init.uniform_(weight, -bound, bound)


def _sets(name: str, heads: int | None, kv_heads: int | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Leading shapes of the query side's and the key side's parameters."""
    if heads is None:
        if kv_heads is not None:
            raise ValueError(f"{name}: kv_heads={kv_heads} needs heads too (None means one set shared by all heads)")
        return (), ()
    kv_heads = heads if kv_heads is None else kv_heads
    _positive(name, heads=heads, kv_heads=kv_heads)
    if heads % kv_heads:
        raise ValueError(f"{name}: heads={heads} is not a multiple of kv_heads={kv_heads}")
    return (heads,), (kv_heads,)


def _fits(name: str, side: str, weight: Tensor, heads: int | None, dim: int | None) -> None:
    if dim is None:
        return
    if dim != weight.shape[-1]:
        raise ValueError(f"{name} was made for {side}_dim={weight.shape[-1]}, got {side} vectors of {dim} dims")
    if weight.ndim > 2 and heads != weight.shape[0]:
        hint = "" if side == "query" else " (set kv_heads= when the keys have fewer heads)"
        raise ValueError(f"{name} has {weight.shape[0]} {side} heads, got {heads}{hint}")


def _same_dims(name: str, query_dim: int, key_dim: int | None) -> None:
    if key_dim is not None and query_dim != key_dim:
        raise ValueError(
            f"{name} needs queries and keys of the same dims, got {query_dim} and {key_dim}; "
            "General, Bilinear and Additive take different ones"
        )


def _positive(name: str, **values: int) -> tuple[int, ...]:
    for key, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name}: {key} must be a positive integer, got {value!r}")
    return tuple(values.values())


def _distance(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{name}: max_distance must be an integer ≥ 0, got {value!r}")
    return value


def _finite(name: str, key: str, value: float) -> float:
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"{name}: {key} must be a finite number, got {value!r}")
    return float(value)
