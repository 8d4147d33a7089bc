"""What all scores share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from regard.terms import Keys, Queries

if TYPE_CHECKING:
    from regard.score.combine import Sum


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
        from regard.score.combine import Sum  # which is made from this class

        return Sum(self, other)
