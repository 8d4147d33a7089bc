"""Searches in which every hypothesis grows by itself: greedy, and sampling.

Shapes: N sentences (n still open), k hypotheses of each, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from regard.decode._common import (
    Hypothesis,
    Limits,
    Model,
    Rules,
    S,
    eval_mode,
    next_log_probs,
    refuse,
    rows_of,
    spread,
    with_attention,
)
from regard.decode._words import KnownWords

if TYPE_CHECKING:
    from regard.models import Memory


@torch.no_grad()
def greedy(
    model: Model[S],
    memory: Memory,
    *,
    limits: Limits = Limits(),  # noqa: B008
    prefix: Tensor | None = None,
    ban: Sequence[int] = (),
    words: KnownWords | None = None,
    attention: bool = False,
) -> list[Hypothesis]:
    """The most likely token at each step. The score is the sum of log-probabilities.

    Args:
        model, memory: see :class:`Model`; ``model.encode(source)`` makes a memory.
        limits: how short and how long.
        prefix: [N, P] tokens that the output starts with, filled up with ``model.pad_id``.
        ban: tokens never to produce, besides padding and start symbol.
        words: the words that may be written; they must include those of the prefix.
        attention: also return cross-attention weights (one more pass over the finished output).
    """
    with eval_mode(model):
        rules = Rules.make(model, memory, limits, prefix, ban, words)
        found = _walk(model, memory, rules, 1, lambda log_p, _: log_p.argmax(-1))
        return [row[0] for row in with_attention(model, memory, found, attention)]


@torch.no_grad()
def sample(
    model: Model[S],
    memory: Memory,
    *,
    samples: int = 1,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    seed: int | None = None,
    limits: Limits = Limits(),  # noqa: B008
    prefix: Tensor | None = None,
    ban: Sequence[int] = (),
    words: KnownWords | None = None,
    attention: bool = False,
) -> list[list[Hypothesis]]:
    """Draw ``samples`` outputs per sentence from the model; the same seed draws the same on every device.

    The distribution is sharpened by ``temperature``, cut to the ``top_k`` most likely tokens and to the fewest with
    total probability ``top_p`` (Holtzman et al. 2020, https://arxiv.org/abs/1904.09751). Log-probabilities are the
    model's own.
    """
    if samples < 1 or not 0 < temperature < math.inf or not 0 < top_p <= 1 or (top_k is not None and top_k < 1):
        raise ValueError(
            "sample needs samples ≥ 1, a finite temperature > 0, 0 < top_p ≤ 1 and top_k ≥ 1 or None, got "
            f"samples={samples}, temperature={temperature}, top_p={top_p}, top_k={top_k}"
        )
    generator = torch.Generator()
    generator.seed() if seed is None else generator.manual_seed(seed)

    def pick(log_p: Tensor, open_: Tensor) -> Tensor:
        u = torch.rand(memory.size, samples, 1, generator=generator, dtype=torch.float64).to(log_p.device)
        return draw(narrow(log_p, temperature, top_k, top_p), u[open_].flatten(0, 1))

    with eval_mode(model):
        rules = Rules.make(model, memory, limits, prefix, ban, words, samples)
        return with_attention(model, memory, _walk(model, memory, rules, samples, pick), attention)


def _walk(
    model: Model[S], memory: Memory, rules: Rules, k: int, pick: Callable[[Tensor, Tensor], Tensor]
) -> list[list[Hypothesis]]:
    """k hypotheses per sentence, each growing by itself until all of its sentence have ended."""
    device = rules.longest.device
    state, open_ = model.start(memory, k), torch.arange(memory.size, device=device)
    tokens = torch.full((memory.size, k), model.bos_id, device=device)
    ended = torch.zeros(memory.size, k, dtype=torch.bool, device=device)
    written: list[Tensor] = []
    values: list[Tensor] = []
    for t in range(rules.last + 1):
        if not len(open_):
            break
        log_p, state = next_log_probs(model, tokens.flatten(), state)
        log_p = rules.apply(log_p.unflatten(0, (-1, k)), t)
        refuse(~(log_p.amax(-1) > -math.inf) & ~ended)  # NaN is the largest
        flat = log_p.flatten(0, 1)
        drawn = pick(flat, open_)
        got = flat.gather(-1, drawn[:, None]).view(-1, k)
        tokens = drawn.view(-1, k).masked_fill(ended, rules.pad)
        written.append(spread(tokens, open_, memory.size, rules.pad))
        values.append(spread(got.masked_fill(ended, 0.0), open_, memory.size, 0.0))
        ended |= tokens == rules.eos
        done, rows = ended.all(-1), None
        if done.any():
            left = (~done).nonzero().flatten()
            rules, open_, tokens, ended = rules.keep(left), open_[left], tokens[left], ended[left]
            rows = rows_of(left, k)
            if len(left):
                state.reorder(rows, left)
        rules.follow(torch.arange(tokens.numel()) if rows is None else rows, tokens)
    return _collect(written, values, memory.size, k, rules.pad)


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


def narrow(logits: Tensor, temperature: float, top_k: int | None, top_p: float) -> Tensor:
    """Probabilities at a temperature of the tokens left by top-k and then top-p, [n, V]; not normalised."""
    if top_k is not None and top_k < logits.shape[-1]:
        least = logits.topk(top_k, -1).values[:, -1:]
        logits = logits.masked_fill(logits < least, -math.inf)
    # less the largest: divided by however little it stays 0
    p = ((logits.double() - logits.amax(-1, keepdim=True)) / temperature).softmax(-1)
    if top_p < 1:
        ordered, index = p.sort(-1, descending=True)
        before = ordered.cumsum(-1) - ordered  # what likelier tokens hold
        p = p.scatter(-1, index, ordered.masked_fill(before >= top_p, 0.0))
    return p


def draw(p: Tensor, u: Tensor) -> Tensor:
    """The token at which the cumulated probabilities [n, V] pass a uniform number u [n, 1] of their sum."""
    sums = p.cumsum(-1)
    total = sums[:, -1:]
    below = torch.minimum(u * total, torch.nextafter(total, torch.zeros_like(total)))
    # NaN passes nowhere: of a row that has ended any token is drawn, and not used
    return torch.searchsorted(sums, below, right=True)[:, 0].clamp(max=p.shape[-1] - 1)
