"""Decoding over a step(): greedy, beam, sampling, and the score of a given output. Knows no architecture.

A hypothesis ends with the end symbol, which counts in its score and its length. Limits count the tokens before it.

Shapes: N sentences (n still open), k beams, V vocabulary, t tokens so far; row s · k + b is beam b of sentence s.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

__all__ = ["Hypothesis", "Limits", "Model", "State", "beam", "greedy", "sample", "score"]


class State(Protocol):
    """A model in the middle of n · k hypotheses."""

    def reorder(self, items: Tensor, sentences: Tensor | None = None) -> None:
        """Go on with these rows, each of its own sentence; ``sentences`` names the kept ones if some are dropped."""


class Model(Protocol):
    """What decoding needs of a model. ``memory`` is whatever its encoder made; it has a ``size`` and ``lengths``."""

    pad_id: int
    bos_id: int
    eos_id: int
    max_length: int | None  # positions it knows; None: any number

    def start(self, memory: Any, beams: int = 1) -> Any:
        """The state before the first token, k hypotheses per sentence."""

    def step(self, tokens: Tensor, state: Any) -> Any:
        """Read one token per row, [n · k]: the next one's logits, [n · k, V], and the state."""

    def decode(self, target_in: Tensor, memory: Any, *, attention: bool = False) -> Any:
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

    def longest(self, model: Model, memory: Any) -> Tensor:
        """The most tokens of each sentence, [N]."""
        lengths: Tensor = memory.lengths
        cap = 2**31 if self.maximum is None else self.maximum
        if model.max_length is not None:
            cap = min(cap, model.max_length - 1)
        if cap < self.minimum:
            raise ValueError(f"Limits: minimum={self.minimum}, but the model has {model.max_length} positions")
        if self.ratio is None and self.maximum is not None:
            return torch.full_like(lengths, cap)
        ratio = 2.0 if self.ratio is None else self.ratio
        return ((lengths * ratio).ceil().long() + self.extra).clamp(min=self.minimum).clamp(max=cap)


@dataclass(frozen=True)
class Hypothesis:
    """One output: tokens [T], end symbol included, their log-probabilities [T], and what it is ranked by.

    ``attention``, if asked for, is [layers, heads, T, S]: row t are the weights with which token t was predicted.
    """

    tokens: Tensor
    score: float
    log_probs: Tensor
    attention: Tensor | None = None


# --- the searches ---


@torch.no_grad()
def greedy(
    model: Model,
    memory: Any,
    *,
    limits: Limits = Limits(),  # noqa: B008
    prefix: Tensor | None = None,
    ban: Sequence[int] = (),
    attention: bool = False,
) -> list[Hypothesis]:
    """The likeliest token at each step. The score is the sum of log-probabilities.

    Args:
        model, memory: see :class:`Model`; ``model.encode(source)`` makes a memory.
        limits: how short and how long.
        prefix: [N, P] tokens that the output starts with, filled up with ``model.pad_id``.
        ban: tokens never to produce, besides padding and start symbol.
        attention: also return cross-attention weights (one more pass over the finished output).
    """
    with _evaluating(model):
        rules = _Rules.make(model, memory, limits, prefix, ban)
        found = _walk(model, memory, rules, 1, lambda log_p, _: log_p.argmax(-1))
        return [row[0] for row in _attended(model, memory, found, attention)]


@torch.no_grad()
def sample(
    model: Model,
    memory: Any,
    *,
    samples: int = 1,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    seed: int | None = None,
    limits: Limits = Limits(),  # noqa: B008
    prefix: Tensor | None = None,
    ban: Sequence[int] = (),
    attention: bool = False,
) -> list[list[Hypothesis]]:
    """Draw ``samples`` outputs per sentence from the model; the same seed draws the same on every device.

    The distribution is sharpened by ``temperature``, cut to the ``top_k`` likeliest tokens and to the fewest that hold
    ``top_p`` of it (Holtzman et al. 2020, https://arxiv.org/abs/1904.09751). Log-probabilities are the model's own.
    """
    if samples < 1 or not temperature > 0 or not 0 < top_p <= 1 or (top_k is not None and top_k < 1):
        raise ValueError(
            "sample needs samples ≥ 1, temperature > 0, 0 < top_p ≤ 1 and top_k ≥ 1 or None, got "
            f"samples={samples}, temperature={temperature}, top_p={top_p}, top_k={top_k}"
        )
    generator = torch.Generator()
    generator.seed() if seed is None else generator.manual_seed(seed)

    def pick(log_p: Tensor, open_: Tensor) -> Tensor:
        u = torch.rand(memory.size, samples, 1, generator=generator, dtype=torch.float64).to(log_p.device)
        return _draw(_narrow(log_p / temperature, top_k, top_p), u[open_].flatten(0, 1))

    with _evaluating(model):
        rules = _Rules.make(model, memory, limits, prefix, ban)
        return _attended(model, memory, _walk(model, memory, rules, samples, pick), attention)


@torch.no_grad()
def beam(
    model: Model,
    memory: Any,
    *,
    beams: int = 5,
    best: int = 1,
    alpha: float = 1.0,
    exact: bool = False,
    limits: Limits = Limits(),  # noqa: B008
    prefix: Tensor | None = None,
    ban: Sequence[int] = (),
    attention: bool = False,
) -> list[list[Hypothesis]]:
    """The ``best`` of the hypotheses found with ``beams`` of them open at a time, best first.

    They are ranked by Σ log p / lengthᵅ. A sentence is done when no open hypothesis can become better than the ``best``
    that have ended, at whatever length; unless ``exact``, also when ``beams`` have ended and no open one is better at
    its present length. With one beam that is the greedy search. The other arguments are those of :func:`greedy`.
    """
    if beams < 1 or not 1 <= best <= beams or alpha < 0:
        raise ValueError(f"beam needs 1 ≤ best ≤ beams and alpha ≥ 0, got {beams=}, {best=}, {alpha=}")
    with _evaluating(model):
        rules = _Rules.make(model, memory, limits, prefix, ban)
        search = _Beam(model, memory, rules, beams, best, alpha, exact)
        return _attended(model, memory, search.run(), attention)


@torch.no_grad()
def score(model: Model, memory: Any, targets: Tensor, *, attention: bool = False) -> list[Hypothesis]:
    """Forced decoding: log-probabilities of given outputs, [N, T] tokens ending with the end symbol, then padding."""
    with _evaluating(model):
        return _score(model, memory, targets, attention)


# --- what all share ---


@dataclass(frozen=True)
class _Rules:
    """What may come next, for the open sentences."""

    longest: Tensor  # [n]
    lowest: int  # at most the smallest of them
    shortest: int
    prefix: Tensor | None  # [n, P]
    banned: Tensor
    eos: int
    pad: int

    @classmethod
    def make(cls, model: Model, memory: Any, limits: Limits, prefix: Tensor | None, ban: Sequence[int]) -> _Rules:
        longest = limits.longest(model, memory)
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
        lowest = min(longest.tolist(), default=0)
        return cls(longest, lowest, limits.minimum, prefix, banned, model.eos_id, model.pad_id)

    def keep(self, sentences: Tensor) -> _Rules:
        prefix = None if self.prefix is None else self.prefix[sentences]
        return replace(self, longest=self.longest[sentences], prefix=prefix)

    def apply(self, log_p: Tensor, t: int) -> Tensor:
        """−inf for what may not be token t; log_p is [n, k, V], changed in place."""
        log_p.index_fill_(-1, self.banned, -math.inf)
        if t < self.shortest:
            log_p[..., self.eos] = -math.inf
        if t >= self.lowest:
            full = self.longest <= t
            log_p[full, :, : self.eos] = -math.inf
            log_p[full, :, self.eos + 1 :] = -math.inf
        if self.prefix is not None and t < self.prefix.shape[1]:
            self._force(log_p, self.prefix[:, t])
        return log_p

    def _force(self, log_p: Tensor, token: Tensor) -> None:
        forced = (token != self.pad).nonzero().flatten()
        at = token[forced][:, None, None].expand(-1, log_p.shape[1], 1)
        only = torch.full_like(log_p[forced], -math.inf)
        log_p[forced] = only.scatter(-1, at, log_p[forced].gather(-1, at))


def _next(model: Model, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
    """Log-probabilities of the next token, [n · k, V], in float32 at least."""
    logits, state = model.step(tokens, state)
    return logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32)), state


def _walk(
    model: Model, memory: Any, rules: _Rules, k: int, pick: Callable[[Tensor, Tensor], Tensor]
) -> list[list[Hypothesis]]:
    """k hypotheses per sentence, each growing by itself until all of its sentence have ended."""
    device = rules.longest.device
    state, open_ = model.start(memory, k), torch.arange(memory.size, device=device)
    tokens = torch.full((memory.size, k), model.bos_id, device=device)
    ended = torch.zeros(memory.size, k, dtype=torch.bool, device=device)
    words: list[Tensor] = []
    values: list[Tensor] = []
    while len(open_):
        log_p, state = _next(model, tokens.flatten(), state)
        log_p = rules.apply(log_p.unflatten(0, (-1, k)), len(words))
        flat = log_p.flatten(0, 1)
        drawn = pick(flat, open_)
        got = flat.gather(-1, drawn[:, None]).view(-1, k)
        tokens = drawn.view(-1, k).masked_fill(ended, rules.pad)
        words.append(_spread(tokens, open_, memory.size, rules.pad))
        values.append(_spread(got.masked_fill(ended, 0.0), open_, memory.size, 0.0))
        ended |= tokens == rules.eos
        done = ended.all(-1)
        if done.any():
            left = (~done).nonzero().flatten()
            rules, open_, tokens, ended = rules.keep(left), open_[left], tokens[left], ended[left]
            if len(left):
                state.reorder(_rows(left, k), left)
    return _collect(words, values, memory.size, k, rules.pad)


def _rows(sentences: Tensor, k: int) -> Tensor:
    """All rows of these sentences."""
    return (sentences[:, None] * k + torch.arange(k, device=sentences.device)).flatten()


def _spread(x: Tensor, open_: Tensor, size: int, fill: float) -> Tensor:
    """[n, k] of the open sentences → [N, k] of all."""
    if len(open_) == size:
        return x
    whole = x.new_full((size, *x.shape[1:]), fill)
    whole[open_] = x
    return whole


def _collect(words: list[Tensor], values: list[Tensor], size: int, k: int, pad: int) -> list[list[Hypothesis]]:
    if not words:
        return []
    tokens, log_p = torch.stack(words, -1).cpu(), torch.stack(values, -1).cpu()
    lengths, totals = (tokens != pad).sum(-1).tolist(), log_p.sum(-1).tolist()
    return [
        [
            Hypothesis(tokens[s, b, : lengths[s][b]], totals[s][b], log_p[s, b, : lengths[s][b]])
            for b in range(k)
        ]
        for s in range(size)
    ]  # fmt: skip


def _score(model: Model, memory: Any, targets: Tensor, attention: bool) -> list[Hypothesis]:
    start = torch.full_like(targets[:, :1], model.bos_id)
    out = model.decode(torch.cat((start, targets[:, :-1]), 1), memory, attention=attention)
    features, weights = out if attention else (out, None)
    logits = model.logits(features)
    log_p = logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))
    log_p = log_p.gather(-1, targets[..., None])[..., 0].cpu()
    tokens, lengths = targets.cpu(), (targets != model.pad_id).sum(-1).tolist()
    sources = memory.lengths.tolist()
    return [
        Hypothesis(
            tokens[i, :n],
            log_p[i, :n].sum().item(),
            log_p[i, :n],
            None if weights is None else weights[i, :, :, :n, : sources[i]].cpu(),
        )
        for i, n in enumerate(lengths)
    ]


def _attended(model: Model, memory: Any, found: list[list[Hypothesis]], attention: bool) -> list[list[Hypothesis]]:
    """Give hypotheses their attention weights by reading them again, all positions at once."""
    if not attention or not found:
        return found
    device = memory.lengths.device
    items = torch.tensor([i for i, row in enumerate(found) for _ in row], device=device)
    tokens = torch.nn.utils.rnn.pad_sequence([h.tokens for row in found for h in row], True, model.pad_id)
    again = iter(_score(model, memory.select(items), tokens.to(device), True))
    return [[replace(h, attention=next(again).attention) for h in row] for row in found]


@contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    """Without dropout, and afterwards as it was."""
    training = bool(getattr(model, "training", False))
    if training:
        model.eval()
    try:
        yield
    finally:
        if training:
            model.train()


# --- sampling ---


def _narrow(logits: Tensor, top_k: int | None, top_p: float) -> Tensor:
    """Probabilities of the tokens left by top-k and then top-p, [n, V]; not normalised."""
    if top_k is not None and top_k < logits.shape[-1]:
        least = logits.topk(top_k, -1).values[:, -1:]
        logits = logits.masked_fill(logits < least, -math.inf)
    p = logits.softmax(-1, dtype=torch.float64)
    if top_p < 1:
        ordered, index = p.sort(-1, descending=True)
        before = ordered.cumsum(-1) - ordered  # what likelier tokens hold
        p = p.scatter(-1, index, ordered.masked_fill(before >= top_p, 0.0))
    return p


def _draw(p: Tensor, u: Tensor) -> Tensor:
    """The token at which the cumulated probabilities [n, V] pass a uniform number u [n, 1] of their sum."""
    sums = p.cumsum(-1)
    total = sums[:, -1:]
    below = torch.minimum(u * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(sums, below, right=True)[:, 0]


# --- beam search ---


class _Beam:
    """Beam search over the open sentences; what has ended is kept as places in the history of steps."""

    def __init__(
        self, model: Model, memory: Any, rules: _Rules, k: int, best: int, alpha: float, exact: bool
    ) -> None:  # fmt: skip
        self.model, self.memory, self.rules = model, memory, rules
        self.k, self.best, self.alpha, self.exact = k, best, alpha, exact
        size, device = memory.size, rules.longest.device
        self.open = torch.arange(size, device=device)
        self.sums = torch.full((size, k), -math.inf, device=device)  # Σ log p of the open hypotheses, [n, k]
        self.sums[:, 0] = 0.0  # all start alike: only one may have offspring
        self.words: list[Tensor] = []  # per step, [N, k]: token, its log p, and the beam that it follows
        self.values: list[Tensor] = []
        self.parents: list[Tensor] = []
        # the k best that have ended, of all sentences: score, and where in the history the end symbol's parent stands
        self.ended = torch.full((size, k), -math.inf, device=device)
        self.ended_step = torch.zeros(size, k, dtype=torch.int64, device=device)
        self.ended_beam = torch.zeros(size, k, dtype=torch.int64, device=device)
        self.ended_value = torch.zeros(size, k, device=device)

    def run(self) -> list[list[Hypothesis]]:
        state = self.model.start(self.memory, self.k)
        tokens = torch.full((self.memory.size * self.k,), self.model.bos_id, device=self.open.device)
        while len(self.open):
            log_p, state = _next(self.model, tokens, state)
            log_p = self.rules.apply(log_p.unflatten(0, (-1, self.k)), len(self.words))
            tokens, parents = self._extend(log_p)
            left = self._left()
            if left is not None:
                self.open, self.sums, self.rules = self.open[left], self.sums[left], self.rules.keep(left)
                tokens, parents = tokens[left], parents[left]
            if len(self.open):
                self._follow(state, parents, left)
                tokens = tokens.flatten()
        return self._results()

    def _extend(self, log_p: Tensor) -> tuple[Tensor, Tensor]:
        """Choose the next k hypotheses of each sentence among all continuations, and note those that end."""
        k, t = self.k, len(self.words)
        value, token = _top(log_p, min(2 * k, log_p.shape[-1]))  # [n, k, m]
        sums, at = (self.sums.to(value.dtype)[..., None] + value).flatten(1).topk(min(2 * k, k * value.shape[-1]), -1)
        parent, token, value = at // value.shape[-1], token.flatten(1).gather(1, at), value.flatten(1).gather(1, at)
        ends = token == self.rules.eos
        self._end(sums[:, :k].masked_fill(~ends[:, :k], -math.inf), parent[:, :k], value[:, :k], t)
        # the first k that do not end: of 2k continuations at most k do
        sums = sums.masked_fill(ends, -math.inf)
        self.sums, on = sums.topk(k, -1) if sums.shape[-1] >= k else _fill(sums, k)
        token, value, parent = (x.gather(1, on) for x in (token, value, parent))
        size = self.memory.size
        self.words.append(_spread(token, self.open, size, self.rules.pad))
        self.values.append(_spread(value, self.open, size, 0.0))
        self.parents.append(_spread(parent, self.open, size, 0))
        return token, parent

    def _end(self, sums: Tensor, parent: Tensor, value: Tensor, t: int) -> None:
        """Merge hypotheses whose token t is the end symbol (−inf: none) into the k best ended ones."""
        if sums.device.type == "cpu" and not (sums > -math.inf).any():
            return  # on a GPU looking costs more than merging nothing
        whole = len(self.open) == self.memory.size
        old = [x if whole else x[self.open] for x in (self.ended, self.ended_step, self.ended_beam, self.ended_value)]
        new = [sums / (t + 1) ** self.alpha, torch.full_like(parent, t), parent, value]
        scores, at = torch.cat((old[0].to(sums.dtype), new[0]), 1).topk(self.k, -1)
        merged = [scores] + [torch.cat(pair, 1).gather(1, at) for pair in zip(old[1:], new[1:], strict=True)]
        for name, x in zip(("ended", "ended_step", "ended_beam", "ended_value"), merged, strict=True):
            if whole:
                setattr(self, name, x)
            else:
                getattr(self, name)[self.open] = x.to(getattr(self, name).dtype)

    def _left(self) -> Tensor | None:
        """The sentences that go on, or None for all."""
        ended = self.ended if len(self.open) == self.memory.size else self.ended[self.open]
        worst, top = ended[:, self.best - 1], self.sums[:, 0]
        highest = top / (self.rules.longest + 1) ** self.alpha  # Σ log p ≤ 0 only falls
        done = (worst >= highest) | (top == -math.inf)
        if not self.exact:
            done |= (ended[:, -1] > -math.inf) & (worst >= top / len(self.words) ** self.alpha)
        return (~done).nonzero().flatten() if done.any() else None

    def _follow(self, state: Any, parents: Tensor, left: Tensor | None) -> None:
        """Bring the model's state to the chosen hypotheses."""
        n = len(parents)
        first = torch.arange(n, device=parents.device) if left is None else left
        items = (first[:, None] * self.k + parents).flatten()
        if left is not None:
            state.reorder(items, left)
        elif items.device.type != "cpu" or not torch.equal(items, torch.arange(n * self.k)):
            state.reorder(items)

    def _results(self) -> list[list[Hypothesis]]:
        """Walk the history back from the ends, all at once."""
        if not self.words:
            return []
        size, best = self.memory.size, self.best
        words, values, parents = (torch.stack(x).cpu() for x in (self.words, self.values, self.parents))
        ended, step, at, value = (
            x[:, :best].cpu() for x in (self.ended, self.ended_step, self.ended_beam, self.ended_value)
        )
        tokens = torch.full((size, best, len(words)), self.rules.pad)
        log_p = torch.zeros(size, best, len(words), dtype=values.dtype)
        tokens.scatter_(-1, step[..., None], self.rules.eos)
        log_p.scatter_(-1, step[..., None], value.to(log_p.dtype)[..., None])
        for t in range(len(words) - 1, -1, -1):
            inside = t < step
            tokens[..., t] = torch.where(inside, words[t].gather(1, at), tokens[..., t])
            log_p[..., t] = torch.where(inside, values[t].gather(1, at), log_p[..., t])
            at = torch.where(inside, parents[t].gather(1, at), at)
        scores, lengths = ended.tolist(), (step + 1).tolist()
        return [
            [
                Hypothesis(tokens[s, b, : lengths[s][b]], scores[s][b], log_p[s, b, : lengths[s][b]])
                for b in range(best)
                if scores[s][b] > -math.inf
            ]
            for s in range(size)
        ]


def _fill(sums: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Fewer continuations than beams (a tiny vocabulary): the rest are dead."""
    values, at = sums.topk(sums.shape[-1], -1)
    more = k - sums.shape[-1]
    pad = torch.nn.functional.pad
    return pad(values, (0, more), value=-math.inf), pad(at, (0, more))


def _top(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """``x.topk(k)`` over a long last dim: with it folded into 64 rows, the k largest lie in the k columns of largest
    maxima.
    """
    rows = 64
    width = x.shape[-1] // rows
    if x.device.type != "cpu" or width < 4 * k:
        return x.topk(k, -1)  # type: ignore[return-value]
    body, rest = x[..., : rows * width].unflatten(-1, (rows, width)), x[..., rows * width :]
    columns = body.amax(-2).topk(k, -1).indices  # [..., k]
    members = body.gather(-1, columns[..., None, :].expand(*columns.shape[:-1], rows, k)).flatten(-2)
    index = (torch.arange(rows)[:, None] * width + columns[..., None, :]).flatten(-2)
    last = torch.arange(rows * width, x.shape[-1]).expand(rest.shape)
    values, at = torch.cat((members, rest), -1).topk(k, -1)
    return values, torch.cat((index, last), -1).gather(-1, at)
