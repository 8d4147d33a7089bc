"""Scores by relative position: numbers looked up by the distance j − i."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from regard.score._checks import (
    arguments,
    check_distance,
    check_finite,
    check_fit,
    check_positive,
    check_same_dims,
    parameter_sets,
    sets_of,
)
from regard.score._tensors import distances, glorot_, look_up, project, query_table, repeat_heads, widen, with_head_dim
from regard.score.base import Score
from regard.score.terms import DotTerm, Keys, OffsetTerm, Queries


class Location(Score):
    """e_ij = scale · q_i · r_clip(j−i): the query and the relative position only.

    r has Glorot uniform initialisation, as the relative embeddings of Shaw et al. 2018
    (https://arxiv.org/abs/1803.02155).
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
        (query_dim,) = check_positive("Location", query_dim=query_dim)
        self.max_distance = check_distance("Location", max_distance)
        self.scale = check_finite("Location", "scale", scale)
        sets, _ = parameter_sets("Location", heads, kv_heads)
        self.r = nn.Parameter(torch.empty(*sets, 2 * self.max_distance + 1, query_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        glorot_(self.r)

    def forward(self, q: Tensor, k: Tensor, offset: int | Tensor = 0) -> Tensor:
        return look_up(project(q, self.r) * self.scale, distances(q, k.shape[-2], offset))

    def queries(self, q: Tensor, offset: int | Tensor = 0) -> Queries:
        return Queries((OffsetTerm(query_table(q, self.r, self.scale)),))

    def keys(self, k: Tensor, start: int | Tensor = 0) -> Keys:
        return Keys(())

    def check(self, heads: int, query_dim: int, kv_heads: int | None, key_dim: int | None) -> None:
        check_fit("Location", "query", self.r, heads, query_dim)

    def extra_repr(self) -> str:
        return arguments(
            query_dim=self.r.shape[-1],
            max_distance=self.max_distance,
            scale=None if self.scale == 1 else self.scale,
            heads=sets_of(self.r),
        )


class Relative(Score):
    """e_ij = q_i·(k_j + r_clip(j−i)) / √d (Shaw et al. 2018, https://arxiv.org/abs/1803.02155): Dot + Location.

    With ``values=True`` the context also gets Σ_j α_ij r'_clip(j−i); ``value_dim`` defaults to ``dim``.
    """

    pairs = True

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
        (dim,) = check_positive("Relative", dim=dim)
        self.max_distance = check_distance("Relative", max_distance)
        sets, _ = parameter_sets("Relative", heads, kv_heads)
        self.r = nn.Parameter(torch.empty(*sets, 2 * self.max_distance + 1, dim))
        self.rv = None
        if values:
            self.rv = nn.Parameter(torch.empty(*sets, 2 * self.max_distance + 1, value_dim or dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        glorot_(self.r)
        if self.rv is not None:
            glorot_(self.rv)

    def forward(self, q: Tensor, k: Tensor, offset: int | Tensor = 0) -> Tensor:
        r = look_up(project(q, self.r), distances(q, k.shape[-2], offset))
        return (q @ repeat_heads(k, q).mT + r) / math.sqrt(q.shape[-1])

    def queries(self, q: Tensor, offset: int | Tensor = 0) -> Queries:
        scale = 1 / math.sqrt(q.shape[-1])
        values = None if self.rv is None else with_head_dim(self.rv, 2).to(q.dtype)
        return Queries((DotTerm(q, scale), OffsetTerm(query_table(q, self.r, scale))), values=values)

    def keys(self, k: Tensor, start: int | Tensor = 0) -> Keys:
        return Keys((k,))

    @property
    def value_table(self) -> bool:  # type: ignore[override]
        return self.rv is not None

    def check(self, heads: int, query_dim: int, kv_heads: int | None, key_dim: int | None) -> None:
        check_fit("Relative", "query", self.r, heads, query_dim)
        check_same_dims("Relative", query_dim, key_dim)

    def extra_repr(self) -> str:
        values = self.rv is not None
        value_dim = None if self.rv is None or self.rv.shape[-1] == self.r.shape[-1] else self.rv.shape[-1]
        return arguments(
            dim=self.r.shape[-1],
            max_distance=self.max_distance,
            values=values,
            heads=sets_of(self.r),
            value_dim=value_dim,
        )


class ALiBi(Score):
    """e_ij = −m_h · |j − i| with fixed slopes (Press et al. 2022, https://arxiv.org/abs/2108.12409).

    The slopes are the paper's 2^(−8h/H). If the number of heads is not a power of two, they are those of the next lower
    power, followed by every other slope of the next higher.
    """

    key_tensors = 0

    def __init__(self, heads: int) -> None:
        super().__init__()
        (self.heads,) = check_positive("ALiBi", heads=heads)

    def slopes(self, like: Tensor) -> Tensor:
        """m_h, [heads], in float64 for float64 inputs and float32 otherwise; casting the module does not round them."""
        exact = torch.float64 if like.dtype == torch.float64 else torch.float32
        power = 2 ** math.floor(math.log2(self.heads))
        first = torch.arange(1, power + 1, device=like.device, dtype=exact) * (-8 / power)
        between = (2 * torch.arange(self.heads - power, device=like.device, dtype=exact) + 1) * (-4 / power)
        return torch.exp2(torch.cat((first, between)))

    def forward(self, q: Tensor, k: Tensor, offset: int | Tensor = 0) -> Tensor:
        distance = distances(q, k.shape[-2], offset).abs().to(q.dtype)
        return -self.slopes(q).to(q.dtype)[:, None, None] * distance + q.new_zeros((*q.shape[:-1], 1))

    def queries(self, q: Tensor, offset: int | Tensor = 0) -> Queries:
        slope = self.slopes(q)[None]
        return Queries((OffsetTerm(slope.new_zeros(1, 1, 1, 1), slope),))

    def keys(self, k: Tensor, start: int | Tensor = 0) -> Keys:
        return Keys(())

    def check(self, heads: int, query_dim: int, kv_heads: int | None, key_dim: int | None) -> None:
        if heads != self.heads:
            raise ValueError(f"ALiBi was made for heads={self.heads}, got {heads} query heads")

    def extra_repr(self) -> str:
        return arguments(heads=self.heads)


class T5Bias(Score):
    """e_ij = a learned number per head and bucket of j − i (Raffel et al. 2020, https://arxiv.org/abs/1910.10683).

    Half of the buckets are exact distances; the rest grow logarithmically up to ``max_distance``. With
    ``bidirectional=False`` all keys after the query share the bucket of distance 0. Initialised as in the paper's code,
    N(0, 1/``dim``) with ``dim`` the model's width.
    """

    FARTHEST = 1 << 20  # a table holds every distance up to max_distance

    key_tensors = 0
    buckets: Tensor

    def __init__(
        self, heads: int, buckets: int = 32, max_distance: int = 128, bidirectional: bool = True, *, dim: int = 512
    ) -> None:
        super().__init__()
        heads, buckets, dim = check_positive("T5Bias", heads=heads, buckets=buckets, dim=dim)
        self.max_distance = check_distance("T5Bias", max_distance)
        if self.max_distance > self.FARTHEST:
            raise ValueError(f"T5Bias: max_distance must be at most {self.FARTHEST:,}, got {max_distance}")
        exact = buckets // (4 if bidirectional else 2)
        if exact < 1 or self.max_distance <= exact:
            raise ValueError(
                f"T5Bias: max_distance must exceed the {max(exact, 1)} exact distances of {buckets} "
                f"buckets, got max_distance={max_distance}"
            )
        self.weight = nn.Parameter(torch.empty(buckets, heads))
        self.dim, self.bidirectional = dim, bidirectional
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.normal_(self.weight, std=self.dim**-0.5)

    def _constants(self) -> dict[str, Tensor]:
        delta = torch.arange(-self.max_distance, self.max_distance + 1, device="cpu")
        return {"buckets": t5_bucket(delta, len(self.weight), self.max_distance, self.bidirectional)}

    def forward(self, q: Tensor, k: Tensor, offset: int | Tensor = 0) -> Tensor:
        index = distances(q, k.shape[-2], offset).clamp(-self.max_distance, self.max_distance) + self.max_distance
        e = self.weight.to(q.dtype)[self.buckets[index]].movedim(-1, -3)  # [(B,) 1, H, L, S]: one dim too many with B
        e = e.squeeze(-4) if e.ndim > 3 else e
        return e + q.new_zeros((*q.shape[:-1], 1))

    def queries(self, q: Tensor, offset: int | Tensor = 0) -> Queries:
        return Queries((OffsetTerm(widen(self.weight, q)[self.buckets].mT[None, :, None]),))

    def keys(self, k: Tensor, start: int | Tensor = 0) -> Keys:
        return Keys(())

    def check(self, heads: int, query_dim: int, kv_heads: int | None, key_dim: int | None) -> None:
        if heads != self.weight.shape[1]:
            raise ValueError(f"T5Bias was made for heads={self.weight.shape[1]}, got {heads} query heads")

    def extra_repr(self) -> str:
        buckets, heads = self.weight.shape
        sizes = arguments(heads=heads, buckets=buckets, max_distance=self.max_distance)
        return f"{sizes}, bidirectional={self.bidirectional}"


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
