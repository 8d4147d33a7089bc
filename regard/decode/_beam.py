"""Beam search, batched, without a loop over hypotheses.

Shapes: N sentences (n still open), k beams, V vocabulary, t tokens so far; row s · k + b is beam b of sentence s.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Generic

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
    spread,
    with_attention,
)
from regard.decode._words import KnownWords

if TYPE_CHECKING:
    from regard.models import Memory


@torch.no_grad()
def beam(
    model: Model[S],
    memory: Memory,
    *,
    beams: int = 5,
    best: int = 1,
    alpha: float = 1.0,
    exact: bool = False,
    limits: Limits = Limits(),  # noqa: B008
    prefix: Tensor | None = None,
    ban: Sequence[int] = (),
    words: KnownWords | None = None,
    attention: bool = False,
) -> list[list[Hypothesis]]:
    """The ``best`` of the hypotheses found with ``beams`` of them open at a time, best first.

    They are ranked by Σ log p / lengthᵅ. A sentence is done when no open hypothesis can become better than the ``best``
    that have ended, at whatever length; unless ``exact``, also when ``beams`` have ended and no open one is better at
    its present length. With one beam that is the greedy search. The other arguments are those of :func:`greedy`.
    """
    if beams < 1 or not 1 <= best <= beams or alpha < 0:
        raise ValueError(f"beam needs 1 ≤ best ≤ beams and alpha ≥ 0, got {beams=}, {best=}, {alpha=}")
    with eval_mode(model):
        rules = Rules.make(model, memory, limits, prefix, ban, words, beams)
        search = _Beam(model, memory, rules, beams, best, alpha, exact)
        return with_attention(model, memory, search.run(), attention)


class _Beam(Generic[S]):
    """Beam search over the open sentences; what has ended is kept as places in the history of steps."""

    def __init__(
        self, model: Model[S], memory: Memory, rules: Rules, k: int, best: int, alpha: float, exact: bool
    ) -> None:  # fmt: skip
        self.model, self.memory, self.rules = model, memory, rules
        self.k, self.best, self.alpha, self.exact = k, best, alpha, exact
        size, device = memory.size, rules.longest.device
        self.open = torch.arange(size, device=device)
        self.sums = torch.full((size, k), -math.inf, device=device)  # Σ log p of the open hypotheses, [n, k]
        self.sums[:, 0] = 0.0  # all hypotheses start equal: only one may be continued
        self.written: list[Tensor] = []  # per step, [N, k]: token, its log p, and the beam that it follows
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
        for t in range(self.rules.last + 1):
            if not len(self.open):
                break
            log_p, state = next_log_probs(self.model, tokens, state)
            log_p = self.rules.apply(log_p.unflatten(0, (-1, self.k)), t)
            tokens, parents = self._extend(log_p)
            left = self._unfinished()
            if left is not None:
                self.open, self.sums, self.rules = self.open[left], self.sums[left], self.rules.keep(left)
                tokens, parents = tokens[left], parents[left]
            if len(self.open):
                self._follow(state, parents, tokens, left)
                tokens = tokens.flatten()
        return self._results()

    def _extend(self, log_p: Tensor) -> tuple[Tensor, Tensor]:
        """Choose the next k hypotheses of each sentence among all continuations, and note those that end."""
        k, t = self.k, len(self.written)
        value, token = _top(log_p, min(2 * k, log_p.shape[-1]))  # [n, k, m]
        value = self._live(value)
        sums, at = (self.sums.to(value.dtype)[..., None] + value).flatten(1).topk(min(2 * k, k * value.shape[-1]), -1)
        parent, token, value = at // value.shape[-1], token.flatten(1).gather(1, at), value.flatten(1).gather(1, at)
        ends = token == self.rules.eos
        self._end(sums[:, :k].masked_fill(~ends[:, :k], -math.inf), parent[:, :k], value[:, :k], t)
        # the first k that do not end: of 2k continuations at most k do
        sums = sums.masked_fill(ends, -math.inf)
        self.sums, on = sums.topk(k, -1) if sums.shape[-1] >= k else _fill(sums, k)
        token, value, parent = (x.gather(1, on) for x in (token, value, parent))
        size = self.memory.size
        self.written.append(spread(token, self.open, size, self.rules.pad))
        self.values.append(spread(value, self.open, size, 0.0))
        self.parents.append(spread(parent, self.open, size, 0))
        return token, parent

    def _live(self, value: Tensor) -> Tensor:
        """Refuses NaN, which is the largest of its row, except in dead hypotheses, which are not continued."""
        odd = value[..., 0].isnan()
        if not odd.any():
            return value
        refuse(odd & (self.sums > -math.inf))
        return value.masked_fill(odd[..., None], -math.inf)

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

    def _unfinished(self) -> Tensor | None:
        """The sentences that go on, or None for all."""
        ended = self.ended if len(self.open) == self.memory.size else self.ended[self.open]
        worst, top = ended[:, self.best - 1], self.sums[:, 0]
        highest = top / (self.rules.longest + 1) ** self.alpha  # Σ log p ≤ 0 only falls
        done = (worst >= highest) | (top == -math.inf)
        if not self.exact:
            done |= (ended[:, -1] > -math.inf) & (worst >= top / len(self.written) ** self.alpha)
        return (~done).nonzero().flatten() if done.any() else None

    def _follow(self, state: S, parents: Tensor, tokens: Tensor, left: Tensor | None) -> None:
        """Bring the model's state, and the rules, to the chosen hypotheses."""
        n = len(parents)
        first = torch.arange(n, device=parents.device) if left is None else left
        items = (first[:, None] * self.k + parents).flatten()
        if left is not None:
            state.reorder(items, left)
        elif items.device.type != "cpu" or not torch.equal(items, torch.arange(n * self.k)):
            state.reorder(items)
        self.rules.follow(items, tokens)

    def _results(self) -> list[list[Hypothesis]]:
        """Walk the history back from the ends, all at once."""
        if not self.written:
            return []
        size, best = self.memory.size, self.best
        written, values, parents = (torch.stack(x).cpu() for x in (self.written, self.values, self.parents))
        ended, step, at, value = (
            x[:, :best].cpu() for x in (self.ended, self.ended_step, self.ended_beam, self.ended_value)
        )
        tokens = torch.full((size, best, len(written)), self.rules.pad)
        log_p = torch.zeros(size, best, len(written), dtype=values.dtype)
        tokens.scatter_(-1, step[..., None], self.rules.eos)
        log_p.scatter_(-1, step[..., None], value.to(log_p.dtype)[..., None])
        for t in range(len(written) - 1, -1, -1):
            inside = t < step
            tokens[..., t] = torch.where(inside, written[t].gather(1, at), tokens[..., t])
            log_p[..., t] = torch.where(inside, values[t].gather(1, at), log_p[..., t])
            at = torch.where(inside, parents[t].gather(1, at), at)
        refuse(ended[:, 0] == -math.inf)  # nothing has ended: not even the end symbol could come
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
    """``x.topk(k)`` over a long last dim: cut into equal runs, the k largest lie in the k runs of largest maxima."""
    size = x.shape[-1]
    run = next((r for r in (64, 80, 96, 50, 100, 128, 40, 125) if size % r == 0), 64)
    runs = size // run
    if x.device.type != "cpu" or runs < 4 * k:
        return x.topk(k, -1)  # type: ignore[return-value]
    body, rest = x[..., : runs * run].unflatten(-1, (runs, run)), x[..., runs * run :]
    best = body.amax(-1).topk(k, -1, sorted=False).indices  # [..., k]
    if size == runs * run and x.is_contiguous():
        row = torch.arange(best.numel() // k).view(*best.shape[:-1], 1) * runs
        members = body.flatten(0, -2).index_select(0, (row + best).flatten()).view(*best.shape[:-1], k * run)
    else:
        members = body.gather(-2, best[..., None].expand(*best.shape, run)).flatten(-2)
    # what is left over stands behind the chosen runs as if it were one more
    values, at = torch.cat((members, rest), -1).topk(k, -1)
    starts = torch.nn.functional.pad(best, (0, 1), value=runs) * run
    return values, starts.gather(-1, at // run) + at % run
