"""Scores of query–key pairs: by a dot product or by a tanh."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from regard.score._checks import (
    arguments,
    check_finite,
    check_fit,
    check_positive,
    check_same_dims,
    parameter_sets,
    sets_of,
)
from regard.score._tensors import glorot_, project, repeat_heads, widen, with_head_dim
from regard.score.base import Score
from regard.score.terms import DotTerm, Keys, Queries, TanhTerm


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
        self.scale = None if scale is None else check_finite("Dot", "scale", scale)

    def forward(self, q: Tensor, k: Tensor, offset: int | Tensor = 0) -> Tensor:
        return q @ repeat_heads(k, q).mT * self._scale(q)

    def queries(self, q: Tensor, offset: int | Tensor = 0) -> Queries:
        return Queries((DotTerm(q, self._scale(q)),))

    def keys(self, k: Tensor, start: int | Tensor = 0) -> Keys:
        return Keys((k,))

    def check(self, heads: int, query_dim: int, kv_heads: int | None, key_dim: int | None) -> None:
        check_same_dims("Dot", query_dim, key_dim)

    def _scale(self, q: Tensor) -> float:
        return 1 / math.sqrt(max(q.shape[-1], 1)) if self.scale is None else self.scale

    def extra_repr(self) -> str:
        return arguments(scale=self.scale)


class Additive(Score):
    """e_ij = vᵀ tanh(W q_i + U k_j) (Bahdanau et al. 2015, https://arxiv.org/abs/1409.0473).

    Luong's "concat" is the same formula with [W; U] written as one matrix.

    The paper initialises W and U at N(0, 0.001²) and v at zero (``init="paper"``): the first weights are then uniform,
    and no gradient reaches W and U until v has moved. The default is Glorot uniform, as in later toolkits.

    ``form`` is how tanh is computed. ``"exact"``: tanh itself. ``"series"``: on a GPU in half precision a short sine
    series, several times faster, with the error that ``regard.plan`` states; elsewhere exact. ``"auto"``, the default,
    leaves the choice to the kernel.
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
        query_dim, key_dim, hidden_dim = check_positive(
            "Additive", query_dim=query_dim, key_dim=key_dim, hidden_dim=hidden_dim
        )
        if init not in ("glorot", "paper"):
            raise ValueError(f"Additive: init must be 'glorot' or 'paper', got {init!r}")
        if form not in ("auto", "exact", "series"):
            raise ValueError(f"Additive: form must be 'auto', 'exact' or 'series', got {form!r}")
        sets, key_sets = parameter_sets("Additive", heads, kv_heads)
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
            glorot_(self.W)
            glorot_(self.U)
            glorot_(self.v.unsqueeze(-2))

    def forward(self, q: Tensor, k: Tensor, offset: int | Tensor = 0) -> Tensor:
        a, b = project(q, self.W), repeat_heads(project(k, self.U), q)
        v = self.v.to(q.dtype)
        return (torch.tanh(a[..., :, None, :] + b[..., None, :, :]) * v[..., None, None, :]).sum(-1)

    def queries(self, q: Tensor, offset: int | Tensor = 0) -> Queries:
        return Queries((TanhTerm(project(q, self.W), with_head_dim(self.v, 1).to(q.dtype), form=self.form),))

    def keys(self, k: Tensor, start: int | Tensor = 0) -> Keys:
        return Keys((project(k, self.U),))

    def cached_keys(self, k: Tensor, start: int | Tensor = 0) -> Keys:
        """e^{2 U k}, with U k clamped to ±43 (±350 in float64); half precision keeps U k itself."""
        b = project(k, self.U)
        limit = {torch.float32: 43.0, torch.float64: 350.0}.get(b.dtype)
        return Keys((b,)) if limit is None else Keys((torch.exp(2 * b.clamp(-limit, limit)),), exponential=True)

    def check(self, heads: int, query_dim: int, kv_heads: int | None, key_dim: int | None) -> None:
        check_fit("Additive", "query", self.W, heads, query_dim)
        check_fit("Additive", "key", self.U, kv_heads, key_dim)

    def extra_repr(self) -> str:
        return arguments(
            query_dim=self.W.shape[-1],
            key_dim=self.U.shape[-1],
            hidden_dim=self.v.shape[-1],
            heads=sets_of(self.W),
            kv_heads=sets_of(self.U),
            init=None if self.init == "glorot" else self.init,
            form=None if self.form == "auto" else self.form,
        )


class General(Score):
    """e_ij = q_iᵀ W k_j (Luong et al. 2015, https://arxiv.org/abs/1508.04025), W initialised uniformly in ±0.1.

    With ``diagonal``, W is a diagonal matrix: e_ij = w·(q_i∘k_j), w initialised at 1, which is a dot product.
    BiDAF's trilinear score (Seo et al. 2017, https://arxiv.org/abs/1611.01603) w·[q; k; q∘k] is a diagonal General plus
    a :class:`Key`; its term w·q_i is the same for all keys, so the softmax cancels it.

    >>> q, k = torch.randn(2, 1, 3, 4)
    >>> score = General(4, 4, diagonal=True)
    >>> torch.allclose(score(q, k), q @ k.mT)
    True
    """

    positional = False
    dot_shaped = pair_shaped = True

    def __init__(
        self,
        query_dim: int,
        key_dim: int,
        *,
        heads: int | None = None,
        kv_heads: int | None = None,
        scale: float = 1.0,
        diagonal: bool = False,
    ) -> None:
        super().__init__()
        query_dim, key_dim = check_positive("General", query_dim=query_dim, key_dim=key_dim)
        if diagonal and query_dim != key_dim:
            raise ValueError(f"General: diagonal=True needs equal dims, got query_dim={query_dim}, key_dim={key_dim}")
        sets, _ = parameter_sets("General", heads, kv_heads)
        self.scale, self.diagonal = check_finite("General", "scale", scale), diagonal
        self.W = nn.Parameter(torch.empty(*sets, 1 if diagonal else query_dim, key_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.diagonal:
            nn.init.ones_(self.W)
        else:
            nn.init.uniform_(self.W, -0.1, 0.1)

    def forward(self, q: Tensor, k: Tensor, offset: int | Tensor = 0) -> Tensor:
        return self._weigh(q) @ repeat_heads(k, q).mT * self.scale

    def queries(self, q: Tensor, offset: int | Tensor = 0) -> Queries:
        return Queries((DotTerm(self._weigh(q), self.scale),))

    def _weigh(self, q: Tensor) -> Tensor:
        W = self.W.to(q.dtype)
        return q * W if self.diagonal else project(q, W.mT)

    def keys(self, k: Tensor, start: int | Tensor = 0) -> Keys:
        return Keys((k,))

    def check(self, heads: int, query_dim: int, kv_heads: int | None, key_dim: int | None) -> None:
        check_fit("General", "query", self.W if self.diagonal else self.W.mT, heads, query_dim)
        if key_dim is not None and key_dim != self.W.shape[-1]:
            raise ValueError(f"General was made for key_dim={self.W.shape[-1]}, got keys with {key_dim} dims")

    def extra_repr(self) -> str:
        return arguments(
            query_dim=self.W.shape[-1 if self.diagonal else -2],
            key_dim=self.W.shape[-1],
            heads=sets_of(self.W),
            scale=None if self.scale == 1 else self.scale,
            diagonal=self.diagonal,
        )


class Bilinear(Score):
    """e_ij = (W_q q_i)ᵀ(W_k k_j), a low-rank General; ``shared=True`` uses one W for both sides.

    With grouped-query heads and ``shared=True`` there is one W per key/value head, used by its whole group. Glorot
    uniform initialisation, as is common for multi-head projections.
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
        query_dim, key_dim, rank = check_positive("Bilinear", query_dim=query_dim, key_dim=key_dim, rank=rank)
        if shared and query_dim != key_dim:
            raise ValueError(f"Bilinear: shared=True needs equal dims, got query_dim={query_dim}, key_dim={key_dim}")
        sets, key_sets = parameter_sets("Bilinear", heads, kv_heads)
        self.scale = check_finite("Bilinear", "scale", scale)
        self.Wk = nn.Parameter(torch.empty(*key_sets, rank, key_dim))
        self.Wq = None if shared else nn.Parameter(torch.empty(*sets, rank, query_dim))
        self.heads = heads
        self.reset_parameters()

    def reset_parameters(self) -> None:
        glorot_(self.Wk)
        if self.Wq is not None:
            glorot_(self.Wq)

    def forward(self, q: Tensor, k: Tensor, offset: int | Tensor = 0) -> Tensor:
        return project(q, self._query_weight()) @ repeat_heads(project(k, self.Wk), q).mT * self.scale

    def queries(self, q: Tensor, offset: int | Tensor = 0) -> Queries:
        return Queries((DotTerm(project(q, self._query_weight()), self.scale),))

    def keys(self, k: Tensor, start: int | Tensor = 0) -> Keys:
        return Keys((project(k, self.Wk),))

    def check(self, heads: int, query_dim: int, kv_heads: int | None, key_dim: int | None) -> None:
        check_fit("Bilinear", "query", self._query_weight(), heads, query_dim)
        check_fit("Bilinear", "key", self.Wk, kv_heads, key_dim)

    def _query_weight(self) -> Tensor:
        if self.Wq is not None:
            return self.Wq
        if self.heads is None:
            return self.Wk
        return self.Wk.repeat_interleave(self.heads // self.Wk.shape[0], 0)

    def extra_repr(self) -> str:
        return arguments(
            query_dim=(self.Wk if self.Wq is None else self.Wq).shape[-1],
            key_dim=self.Wk.shape[-1],
            rank=self.Wk.shape[-2],
            shared=self.Wq is None,
            heads=self.heads,
            kv_heads=sets_of(self.Wk),
            scale=None if self.scale == 1 else self.scale,
        )


class Cosine(Score):
    """e_ij = τ_h · cos(q_i, k_j) with a learned temperature (Liu et al. 2022, Swin V2, https://arxiv.org/abs/2111.09883).

    τ = exp(log_scale) is initialised at ``scale`` and clamped to at most ``max_scale``; the defaults are the paper's.
    """

    positional = False
    dot_shaped = pair_shaped = True

    def __init__(
        self, scale: float = 10.0, *, heads: int | None = None, max_scale: float = 100.0, eps: float = 1e-6
    ) -> None:
        super().__init__()
        if not 0 < check_finite("Cosine", "scale", scale) <= max_scale:
            raise ValueError(f"Cosine: scale must be positive and at most max_scale={max_scale}, got {scale}")
        sets, _ = parameter_sets("Cosine", heads, None)
        self.max_scale, self.eps = check_finite("Cosine", "max_scale", max_scale), eps
        self.scale = float(scale)
        self.log_scale = nn.Parameter(torch.empty(sets or (1,)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.log_scale, math.log(self.scale))

    def forward(self, q: Tensor, k: Tensor, offset: int | Tensor = 0) -> Tensor:
        return self._unit(q) @ repeat_heads(self._unit(k), q).mT * self._scale(q).to(q.dtype)[:, None, None]

    def queries(self, q: Tensor, offset: int | Tensor = 0) -> Queries:
        return Queries((DotTerm(self._unit(q), self._scale(q)),))

    def keys(self, k: Tensor, start: int | Tensor = 0) -> Keys:
        return Keys((self._unit(k),))

    def check(self, heads: int, query_dim: int, kv_heads: int | None, key_dim: int | None) -> None:
        check_same_dims("Cosine", query_dim, key_dim)
        if len(self.log_scale) != 1 and len(self.log_scale) != heads:
            raise ValueError(f"Cosine was made for heads={self.log_scale.shape[0]}, got {heads} query heads")

    def _scale(self, q: Tensor) -> Tensor:
        return widen(self.log_scale, q).clamp(max=math.log(self.max_scale)).exp()

    def _unit(self, x: Tensor) -> Tensor:
        return nn.functional.normalize(x, dim=-1, eps=self.eps)

    def extra_repr(self) -> str:
        heads = self.log_scale.shape[0]
        return arguments(heads=None if heads == 1 else heads, max_scale=self.max_scale, eps=self.eps)
