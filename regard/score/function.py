"""A score modified by a custom function."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from regard.score._tensors import positions
from regard.score.base import Score, describe_argument, scores_in
from regard.score.combine import PerHead
from regard.score.pairs import Dot
from regard.score.terms import Edit, FormulaTerm, Queries


class Function(Score):
    """e_ij = f(inner_ij, b, h, i, j): any score, by default ``Dot()``, modified by a custom function.

    f receives the inner scores, [batch, heads, queries, keys], and integer tensors that broadcast to that shape: batch
    item, head (within its group in a PerHead), position of the query, position of the key. Tensors in its closure that
    require a gradient are learned; if f is a ``torch.nn.Module`` it is part of the score and of its state dict. f has
    the signature of FlexAttention's ``score_mod``; with a dot product it runs on FlexAttention on a GPU.

    >>> q, k = torch.tensor([[[0.2, 0.1]]]), torch.tensor([[[0.3, 0.4], [0.5, 0.6]]])
    >>> near = Function(lambda s, b, h, i, j: s - 0.5 * (j - i).abs(), Dot(scale=1.0))
    >>> near(q, k).round(decimals=4)
    tensor([[[ 0.1000, -0.3400]]])
    """

    def __init__(
        self, f: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor], inner: Score | None = None
    ) -> None:
        super().__init__()
        if not callable(f) or isinstance(f, Score):
            raise TypeError(f"Function takes a function of (s, b, h, i, j) that returns scores, got {type(f).__name__}")
        inner = Dot() if inner is None else inner
        if not isinstance(inner, Score):
            raise TypeError(f"Function edits a score, as in Function(f, Dot()), got {describe_argument(inner)}")
        if isinstance(inner, PerHead) or inner.value_table:
            what = (
                "a PerHead; edit its groups" if isinstance(inner, PerHead) else "Relative(values=True); add that to it"
            )
            raise ValueError(f"Function edits scores, and cannot stand around {what}")
        self.f, self.inner = f, inner

    @property
    def knows_places(self) -> bool:  # type: ignore[override]
        """False if an inner score only accepts one offset, or depends on the sequence length."""
        inner = scores_in(self.inner)
        formulas = [x for x in inner if isinstance(x, Function) or type(x).queries is Score.queries]
        return not formulas and self.inner.unchanged_up_to == math.inf

    def forward(
        self, q: Tensor, k: Tensor, offset: int | Tensor = 0, row: int | Tensor | None = None, column: int | Tensor = 0
    ) -> Tensor:
        """``row`` = position(query i) − i and ``column`` = position(key j) − j, where ``offset`` does not give them."""
        batch, device = q.shape[:-3], q.device
        items = torch.arange(math.prod(batch), device=device).view(*batch, 1, 1, 1)
        heads = torch.arange(q.shape[-3], device=device)[:, None, None]
        rows = positions(q.shape[-2], offset if row is None else row, device)[..., None]
        columns = positions(k.shape[-2], column, device)
        columns = columns[..., None, :] if columns.ndim > 1 else columns
        e: Tensor = self.f(self.inner(q, k, offset), items, heads, rows, columns)
        return e

    def queries(self, q: Tensor, offset: int | Tensor = 0) -> Queries:
        term = FormulaTerm(self, q, offset)
        if type(self.inner) is not Dot:
            return Queries((term,))
        scale = q.shape[-1] ** -0.5 if self.inner.scale is None else self.inner.scale
        return Queries((replace(term, edit=Edit(self.f, scale)),))

    def check(self, heads: int, query_dim: int, kv_heads: int | None, key_dim: int | None) -> None:
        self.inner.check(heads, query_dim, kv_heads, key_dim)

    def extra_repr(self) -> str:
        return getattr(self.f, "__name__", type(self.f).__name__)
