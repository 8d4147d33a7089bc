"""A model whose next token depends on all before it, small enough to enumerate what it may write."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from regard.decode import Hypothesis

PAD, BOS, EOS = 0, 1, 2


@dataclass
class Memory:
    lengths: Tensor

    @property
    def size(self) -> int:
        return len(self.lengths)

    def select(self, items: Tensor) -> Memory:
        return Memory(self.lengths[items])


@dataclass
class State:
    sentences: Tensor  # [n]
    history: Tensor  # [n · k, t]
    beams: int
    widths: list[int]

    def reorder(self, items: Tensor, sentences: Tensor | None = None) -> None:
        self.history = self.history[items]
        if sentences is not None:
            self.sentences = self.sentences[sentences]
        owners = items // self.beams  # rows must stay with their sentences
        kept = torch.arange(len(items) // self.beams) if sentences is None else sentences
        assert torch.equal(owners, kept.repeat_interleave(self.beams))


class Toy:
    """Logits that are a fixed random function of the sentence (its length) and of all tokens so far."""

    pad_id, bos_id, eos_id, max_length = PAD, BOS, EOS, None

    def __init__(self, vocabulary: int, sharpness: float = 2.0, seed: int = 0) -> None:
        g = torch.Generator().manual_seed(seed)
        self.table = torch.randn(40, vocabulary, 8, generator=g, dtype=torch.float64)
        self.sentence = torch.randn(40, 8, generator=g, dtype=torch.float64)
        self.out = torch.randn(8, vocabulary, generator=g, dtype=torch.float64) * sharpness
        self.widths: list[int] = []

    def start(self, memory: Memory, beams: int = 1) -> State:
        return State(memory.lengths, torch.empty(memory.size * beams, 0, dtype=torch.int64), beams, self.widths)

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        assert len(tokens) == len(state.history)
        state.widths.append(len(state.sentences))
        state.history = torch.cat((state.history, tokens[:, None]), 1)
        features = self.features(state.history, state.sentences.repeat_interleave(state.beams))
        return self.logits(features), state

    def features(self, history: Tensor, sentences: Tensor) -> Tensor:
        places = torch.arange(history.shape[1])
        return torch.sin(self.table[places, history].sum(1) * 2 + self.sentence[sentences])

    def decode(self, target_in: Tensor, memory: Memory, *, attention: bool = False) -> Tensor:
        assert not attention
        return torch.stack([self.features(target_in[:, : t + 1], memory.lengths) for t in range(target_in.shape[1])], 1)

    def logits(self, features: Tensor) -> Tensor:
        return features @ self.out

    def log_probs(self, sentence: int, tokens: tuple[int, ...]) -> list[float]:
        """Of each of the tokens, by definition."""
        history, out = [BOS], []
        for token in tokens:
            logits = self.logits(self.features(torch.tensor([history]), torch.tensor([sentence])))[0]
            out.append(logits.log_softmax(-1)[token].item())
            history.append(token)
        return out


def memory(*lengths: int) -> Memory:
    return Memory(torch.tensor(lengths))


def enumerated(model: Toy, sentence: int, vocabulary: int, longest: int, alpha: float, shortest: int = 0) -> list:
    """Every output there is, best first: (score, tokens, log-probabilities)."""
    words = [token for token in range(vocabulary) if token not in (PAD, BOS, EOS)]
    found = []
    for n in range(shortest, longest + 1):
        for body in itertools.product(words, repeat=n):
            tokens = (*body, EOS)
            values = model.log_probs(sentence, tokens)
            found.append((sum(values) / len(tokens) ** alpha, tokens, values))
    return sorted(found, key=lambda entry: -entry[0])


def close(hypothesis: Hypothesis, expected: tuple) -> None:
    assert tuple(hypothesis.tokens.tolist()) == tuple(expected[1])
    assert hypothesis.score == pytest.approx(expected[0], abs=1e-9)
    assert hypothesis.log_probs.tolist() == pytest.approx(expected[2], abs=1e-9)
