"""Shared by all searches: the interface of a model, allowed next tokens, hypotheses, and forced decoding.

Shapes: N sentences (n still open), k beams, V vocabulary, t tokens so far; row s · k + b is beam b of sentence s.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from regard.decode._words import KnownWords

if TYPE_CHECKING:
    from regard.models import Memory

P = ParamSpec("P")
T = TypeVar("T")


class State(Protocol):
    """A model in the middle of n · k hypotheses."""

    def reorder(self, items: Tensor, sentences: Tensor | None = None) -> None:
        """Continue with these rows, each of its own sentence; ``sentences`` names the kept ones if some are dropped."""


S = TypeVar("S", bound=State)


class Model(Protocol[S]):
    """What decoding needs of a model. ``memory`` is what its encoder made."""

    pad_id: int
    bos_id: int
    eos_id: int

    @property
    def max_length(self) -> int | None:
        """The positions it knows; None: any number."""

    def start(self, memory: Memory, beams: int = 1) -> S:
        """The state before the first token, k hypotheses per sentence."""

    def step(self, tokens: Tensor, state: S) -> tuple[Tensor, S]:
        """Read one token per row, [n · k]: the next one's logits, [n · k, V], and the state."""

    def decode(self, target_in: Tensor, memory: Memory, *, attention: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """Features of a whole target [N, T], and weights [N, layers, heads, T, S] if asked."""

    def logits(self, features: Tensor) -> Tensor:
        """Features → logits."""


@dataclass(frozen=True)
class Limits:
    """How many tokens may come before the end symbol.

    At most ``maximum``, and at most ``ratio`` · source + ``extra`` of each sentence; the latter is left out if only
    ``maximum`` is given, and ``ratio`` is 2 if neither is. A prefix may be longer.
    """

    minimum: int = 0
    maximum: int | None = None
    ratio: float | None = None
    extra: int = 10

    def __post_init__(self) -> None:
        if self.minimum < 0 or (self.maximum is not None and self.maximum < self.minimum):
            raise ValueError(f"Limits: 0 ≤ minimum ≤ maximum is needed, got {self.minimum} and {self.maximum}")
        if (self.ratio is not None and self.ratio < 0) or self.extra < 0:
            raise ValueError(f"Limits: ratio and extra cannot be negative, got {self.ratio} and {self.extra}")

    def longest(self, lengths: Tensor, positions: int | None) -> Tensor:
        """The most tokens for sources of these lengths, [N], by a model that knows so many positions."""
        cap = 2**31 if self.maximum is None else self.maximum
        if positions is not None:
            cap = min(cap, positions - 1)
        if cap < self.minimum:
            raise ValueError(f"Limits: minimum={self.minimum}, but the model has {positions} positions")
        if self.ratio is None and self.maximum is not None:
            return torch.full_like(lengths, cap)
        ratio = 2.0 if self.ratio is None else self.ratio
        return ((lengths * ratio).ceil().long() + self.extra).clamp(min=self.minimum).clamp(max=cap)


@dataclass(frozen=True)
class Hypothesis:
    """One output: tokens [T], end symbol included, their log-probabilities [T], and its ranking score.

    ``attention``, if requested, is [layers, heads, T, S]: row t are the weights with which token t was predicted.
    """

    tokens: Tensor
    score: float
    log_probs: Tensor
    attention: Tensor | None = None


class NoProbabilities(ValueError):
    """A model's output is not a distribution: NaN, or 0 for every allowed token."""

    def __init__(self, name: str = "the model") -> None:
        super().__init__(
            f"{name} gives no probabilities (NaN, or 0 for every allowed token): its weights are damaged, or its "
            "numbers overflow"
        )


class Named(Protocol):
    """Something that has a model, and the model's name."""

    name: str


N = TypeVar("N", bound=Named)


def named(method: Callable[Concatenate[N, P], T]) -> Callable[Concatenate[N, P], T]:
    """A method whose errors name the model that gives no probabilities."""

    @wraps(method)
    def call(owner: N, /, *args: P.args, **options: P.kwargs) -> T:
        try:
            return method(owner, *args, **options)
        except NoProbabilities as error:
            raise NoProbabilities(f"the model {owner.name}") from error

    return call


@torch.no_grad()
def score(model: Model[S], memory: Memory, targets: Tensor, *, attention: bool = False) -> list[Hypothesis]:
    """Forced decoding: log-probabilities of given outputs, [N, T] tokens ending with the end symbol, then padding."""
    with eval_mode(model):
        return _score(model, memory, targets, attention)


# --- steps ---


@dataclass(frozen=True)
class Rules:
    """What may come next, for the open sentences."""

    longest: Tensor  # [n]
    lowest: int  # at most the smallest of them
    last: int  # at least the largest: the step at which every search ends
    shortest: int
    prefix: Tensor | None  # [n, P]
    banned: Tensor
    eos: int
    pad: int
    words: KnownWords | None = None

    @classmethod
    def make(
        cls,
        model: Model[S],
        memory: Memory,
        limits: Limits,
        prefix: Tensor | None,
        ban: Sequence[int],
        words: KnownWords | None = None,
        beams: int = 1,
    ) -> Rules:
        longest = limits.longest(lengths_of(memory), model.max_length)
        if prefix is not None:
            if prefix.ndim != 2 or len(prefix) != memory.size or prefix.is_floating_point():
                raise ValueError(
                    f"prefix must be token numbers [{memory.size}, P], got {prefix.dtype} {list(prefix.shape)}"
                )
            wrong = sorted({*prefix.flatten().tolist()} & {model.bos_id, model.eos_id, *ban} - {model.pad_id})
            if wrong:
                raise ValueError(f"prefix holds {wrong}, which are banned, the start or the end symbol")
            prefix = prefix.to(longest.device)
            longest = longest.maximum((prefix != model.pad_id).sum(-1))
        if model.eos_id in ban:
            raise ValueError(f"the end symbol, {model.eos_id}, cannot be banned")
        banned = torch.tensor(sorted({model.pad_id, model.bos_id, *ban} - {model.eos_id}), device=longest.device)
        steps = longest.tolist()
        if words is not None:
            words.start(beams)
        bounds = min(steps, default=0), max(steps, default=0)
        return cls(longest, *bounds, limits.minimum, prefix, banned, model.eos_id, model.pad_id, words)

    def keep(self, sentences: Tensor) -> Rules:
        prefix = None if self.prefix is None else self.prefix[sentences]
        return replace(self, longest=self.longest[sentences], prefix=prefix)

    def apply(self, log_p: Tensor, t: int) -> Tensor:
        """−inf for what may not be token t; log_p is [n, k, V], and is changed."""
        log_p.index_fill_(-1, self.banned, -math.inf)
        if t < self.shortest:
            log_p[..., self.eos] = -math.inf
        token = None if self.prefix is None or t >= self.prefix.shape[1] else self.prefix[:, t]
        forced = None if token is None else token != self.pad
        allowed = log_p if self.words is None else self.words.apply(log_p, forced)
        if t >= self.lowest:  # also where there is no room for the rest of a word
            self._only(self.eos, self.longest <= t, log_p, allowed)
        if token is not None and forced is not None:
            self._only(token[forced], forced, log_p, allowed)
        return allowed

    def follow(self, rows: Tensor, tokens: Tensor) -> None:
        """Continue the search with these rows, each of which has received a token."""
        if self.words is not None:
            self.words.follow(rows.flatten(), tokens.flatten())

    @staticmethod
    def _only(token: Tensor | int, where: Tensor, log_p: Tensor, allowed: Tensor) -> None:
        """Into ``allowed``, for some of the sentences: this token alone, whatever else is allowed."""
        rows = log_p[where]
        at = torch.as_tensor(token, device=rows.device).view(-1, 1, 1).expand(*rows.shape[:2], 1)
        allowed[where] = torch.full_like(rows, -math.inf).scatter(-1, at, rows.gather(-1, at))


def next_log_probs(model: Model[S], tokens: Tensor, state: S) -> tuple[Tensor, S]:
    """Log-probabilities of the next token, [n · k, V], in float32 at least."""
    logits, state = model.step(tokens, state)
    return logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32)), state


def refuse(bad: Tensor) -> None:
    """Raises if one of these is true: an open hypothesis whose next token has no probabilities."""
    if bad.any():
        raise NoProbabilities


def lengths_of(memory: Memory) -> Tensor:
    """[N]; a memory that was encoded with a mask of the caller's has none."""
    if memory.lengths is None:
        raise ValueError("decoding needs sources with lengths, not with a mask of their own")
    return memory.lengths


def rows_of(sentences: Tensor, k: int) -> Tensor:
    """All rows of these sentences."""
    return (sentences[:, None] * k + torch.arange(k, device=sentences.device)).flatten()


def spread(x: Tensor, open_: Tensor, size: int, fill: float) -> Tensor:
    """[n, k] of the open sentences → [N, k] of all."""
    if len(open_) == size:
        return x
    whole = x.new_full((size, *x.shape[1:]), fill)
    whole[open_] = x
    return whole


@contextmanager
def eval_mode(model: Any) -> Iterator[None]:
    """Without dropout, and afterwards as it was."""
    training = bool(getattr(model, "training", False))
    if training:
        model.eval()
    try:
        yield
    finally:
        if training:
            model.train()


# --- forced decoding ---


def _score(model: Model[S], memory: Memory, targets: Tensor, attention: bool) -> list[Hypothesis]:
    start = torch.full_like(targets[:, :1], model.bos_id)
    out = model.decode(torch.cat((start, targets[:, :-1]), 1), memory, attention=attention)
    features, weights = out if isinstance(out, tuple) else (out, None)
    logits = model.logits(features)
    log_p = logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))
    log_p = log_p.gather(-1, targets[..., None])[..., 0].cpu()
    refuse(log_p.isnan() & (targets != model.pad_id).cpu())
    tokens, lengths = targets.cpu(), (targets != model.pad_id).sum(-1).tolist()
    sources = lengths_of(memory).tolist()
    return [
        Hypothesis(
            tokens[i, :n],
            log_p[i, :n].sum().item(),
            log_p[i, :n],
            None if weights is None else weights[i, :, :, :n, : sources[i]].cpu(),
        )
        for i, n in enumerate(lengths)
    ]


def with_attention(
    model: Model[S], memory: Memory, found: list[list[Hypothesis]], attention: bool
) -> list[list[Hypothesis]]:
    """Give hypotheses their attention weights by reading them again, all positions at once."""
    if not attention or not found:
        return found
    device = lengths_of(memory).device
    items = torch.tensor([i for i, row in enumerate(found) for _ in row], device=device)
    tokens = pad_sequence([h.tokens for row in found for h in row], True, model.pad_id)
    again = iter(_score(model, memory.select(items), tokens.to(device), True))
    return [[replace(h, attention=next(again).attention) for h in row] for row in found]
