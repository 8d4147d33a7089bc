"""What runs a trained model: sentences in subwords go in, hypotheses come out. A translator is given one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from regard.common.processors import threads
from regard.decode._common import Model, score
from regard.decode.search import Search
from regard.models import Memory, RNNSeq2Seq, Transformer
from regard.nn.int8 import weights

if TYPE_CHECKING:
    from regard.decode._words import KnownWords

Seq2Seq = Transformer | RNNSeq2Seq
"""A model that reads a sentence and writes one."""

TokenLists = Sequence[Sequence[int]]
"""Sentences in subwords, without start and end symbols."""


class EngineHypothesis(NamedTuple):
    """A translation: its subwords, its ranking score, and Σ log p.

    ``attention``, if requested, is [layers, heads, T, S], end symbols included.
    """

    tokens: list[int]
    score: float
    log_prob: float
    attention: Tensor | None = None


class Engine(Protocol):
    """The interface that a translator needs."""

    name: str
    max_length: int | None  # positions that it knows; None: any number
    shown: tuple[int, int | None] | None  # the only layer and head (None: their mean) it shows; None: it shows all
    shift: bool  # whether the decoder has read a word before it attends

    @property
    def device(self) -> torch.device:
        """Where it runs."""

    def search(
        self,
        sources: TokenLists,
        prefixes: TokenLists,
        search: Search,
        *,
        number: int,
        ban: Sequence[int],
        words: KnownWords | None = None,
    ) -> list[list[EngineHypothesis]]:
        """The best translations of each sentence, none with a banned subword; ``number`` tells batches apart.

        With ``words`` none has another word, as far as the engine supports it.
        """

    def read(self, sources: TokenLists, targets: TokenLists, *, attention: bool) -> list[EngineHypothesis]:
        """Forced decoding: given translations, as if they had been written here; the score is Σ log p."""


class TorchEngine:
    """The model itself, in PyTorch."""

    name = "torch"
    shown: tuple[int, int | None] | None = None

    def __init__(self, model: Seq2Seq) -> None:
        self.model = model.eval()
        self._decoder: Model[Any] = self.model
        self._weights = weights(model)
        self.max_length: int | None = model.max_length
        self.shift = not isinstance(model, RNNSeq2Seq)

    def search(
        self,
        sources: TokenLists,
        prefixes: TokenLists,
        search: Search,
        *,
        number: int,
        ban: Sequence[int],
        words: KnownWords | None = None,
    ) -> list[list[EngineHypothesis]]:
        memory = self._encode(sources)
        with threads(self._weights * len(sources) * search.rows):
            rows = search.run(self._decoder, memory, number, prefix=self._prefix(prefixes), ban=ban, words=words)
        return [[EngineHypothesis(h.tokens.tolist(), h.score, h.log_probs.sum().item()) for h in row] for row in rows]

    def read(self, sources: TokenLists, targets: TokenLists, *, attention: bool) -> list[EngineHypothesis]:
        memory = self._encode(sources)
        with threads(self._weights * sum(map(len, targets))):
            found = score(self._decoder, memory, self._with_end(targets), attention=attention)
        return [EngineHypothesis(h.tokens.tolist(), h.score, h.score, h.attention) for h in found]

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    @torch.no_grad()
    def _encode(self, sources: TokenLists) -> Memory:
        with threads(self._weights * sum(map(len, sources))):
            return self.model.encode(self._with_end(sources))

    def _with_end(self, rows: TokenLists) -> Tensor:
        """[N, S], each with the end symbol, then padding."""
        ended = [torch.tensor([*row, self.model.eos_id]) for row in rows]
        return pad_sequence(ended, True, self.model.pad_id).to(self.device)

    def _prefix(self, rows: TokenLists) -> Tensor | None:
        if not any(rows):
            return None
        tensors = [torch.tensor(row, dtype=torch.int64) for row in rows]
        return pad_sequence(tensors, True, self.model.pad_id).to(self.device)
