"""Rotary positions: dot-shaped scores of turned queries and keys."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.score._checks import check_finite, check_same_dims
from regard.score._tensors import positions
from regard.score.base import Score
from regard.score.pairs import Dot
from regard.terms import Keys, Queries


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
        if check_finite("Rotary", "base", base) <= 0:
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
            check_same_dims("Rotary", query_dim, key_dim)
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
        position = positions(x.shape[-2], start, x.device).to(exact)
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
