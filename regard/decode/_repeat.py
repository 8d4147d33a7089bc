"""A model that never says the same n tokens twice; every search works with it as with the model itself."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Generic

import torch
from torch import Tensor

from regard.decode._common import Model, S

if TYPE_CHECKING:
    from regard.models import Memory


class _State(Generic[S]):
    """The model's state, and the tokens read so far, [R, t], <s> first."""

    def __init__(self, inner: S) -> None:
        self.inner = inner
        self.tokens: Tensor | None = None

    def reorder(self, items: Tensor, sentences: Tensor | None = None) -> None:
        self.inner.reorder(items, sentences)
        if self.tokens is not None:
            self.tokens = self.tokens.index_select(0, items)


class NoRepeat(Generic[S]):
    """A model whose outputs never repeat a sequence of ``size`` tokens (Paulus et al. 2018, https://arxiv.org/abs/1705.04304).

    Tokens that would repeat get probability 0 and the rest is scaled up. It is for searching only; everything else is
    the model's own.
    """

    def __init__(self, model: Model[S], size: int) -> None:
        if size < 1:
            raise ValueError(f"NoRepeat: size must be at least 1, got {size}")
        self._model, self._size = model, size

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def start(self, memory: Memory, beams: int = 1) -> _State[S]:
        return _State(self._model.start(memory, beams))

    def step(self, tokens: Tensor, state: _State[S]) -> tuple[Tensor, _State[S]]:
        logits, state.inner = self._model.step(tokens, state.inner)
        new = tokens[:, None]
        state.tokens = new if state.tokens is None else torch.cat((state.tokens, new), 1)
        return self._without_repeats(logits, state.tokens), state

    def _without_repeats(self, logits: Tensor, tokens: Tensor) -> Tensor:
        """−inf for tokens that would end a run that is there: those after each earlier place of the last n − 1."""
        n = self._size
        if tokens.shape[1] < n:
            return logits
        runs = tokens.unfold(1, n, 1)  # [R, t − n + 1, n]
        last = tokens[:, tokens.shape[1] - n + 1 :]  # [R, n − 1]
        again = (runs[..., : n - 1] == last[:, None]).all(-1)
        # a run that is not repeated bans <s>, which no search may produce
        banned = torch.where(again, runs[..., -1], self._model.bos_id)
        return logits.scatter(1, banned, -math.inf)
