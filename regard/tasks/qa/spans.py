"""Reading with a model: contexts in windows, and answers as spans of tokens with probabilities.

A context longer than the model's input is split into overlapping windows. Each start belongs to the window with the
most context on both sides of it, so every span is scored once. With s and e a window's logits and position 0 "no
answer",

    score(i, j) = s_i + e_j − s_0 − e_0,    P(i, j) = e^score(i, j) / (1 + Σ e^score),    P(no answer) = 1 / (1 + Σ …)

the sum being over all spans of all windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.common.ragged import Integers
from regard.data.batches import bucket_places
from regard.decode import NoProbabilities
from regard.models import Reader

WINDOW, STRIDE, LONGEST = 384, 128, 30  # tokens read at once; between windows; of an answer
LEAST = 32  # of a window that are the context's


class AnswerSpan(NamedTuple):
    """Context tokens [start, end), and their probability."""

    start: int
    end: int
    probability: float


class Prediction(NamedTuple):
    """The prediction for a question: spans, the most likely first, and P(no answer)."""

    spans: list[AnswerSpan]
    no_answer: float


class ContextWindow(NamedTuple):
    """Tokens [start, end) of the context of question ``row``."""

    row: int
    start: int
    end: int


def windows(length: int, room: int, stride: int) -> list[tuple[int, int]]:
    """Where the windows of a context start and end: ``room`` tokens each, ``stride`` from one to the next.

    >>> windows(10, 6, 3)
    [(0, 6), (3, 9), (6, 10)]
    """
    if room < 1 or stride < 1:
        raise ValueError(f"expected room and stride of at least 1, got {room} and {stride}")
    found, start = [(0, min(room, length))], 0
    while found[-1][1] < length:
        start += min(stride, room)
        found.append((start, min(start + room, length)))
    return found


def owners(cuts: Sequence[tuple[int, int]], length: int) -> Integers:
    """For each token the number of the window that sees most on the side where it sees less; the earlier of equals.

    >>> owners([(0, 6), (3, 9), (6, 10)], 10).tolist()
    [0, 0, 0, 0, 0, 1, 1, 1, 2, 2]
    """
    best, owner = np.full(length, -1), np.zeros(length, np.int64)
    for number, (start, end) in enumerate(cuts):
        at = np.arange(start, end)
        # the ends of a context hide nothing
        left = at - start if start else np.full(len(at), length)
        right = end - 1 - at if end < length else np.full(len(at), length)
        sees = np.minimum(left, right)
        better = sees > best[start:end]
        best[start:end][better], owner[start:end][better] = sees[better], number
    return owner


class WindowSize(NamedTuple):
    """How a model reads: ``window`` tokens at once, bos, question, eos, context and eos; ``stride`` between windows."""

    window: int = WINDOW
    stride: int = STRIDE

    @classmethod
    def of(cls, window: int, stride: int, limit: int | None) -> WindowSize:
        """``limit``: of the model's positions, if it has one."""
        window = window if limit is None else min(window, limit)
        if window < LEAST + 4 or stride < 1:
            raise ValueError(f"window: expected at least {LEAST + 4} tokens, and a stride of 1; got {window}, {stride}")
        return cls(window, stride)

    @property
    def most(self) -> int:
        """Tokens that a question may have."""
        return self.window - 3 - LEAST

    def cuts(self, asked: int, length: int) -> list[tuple[int, int]]:
        """Windows of a context of ``length`` tokens for a question of ``asked``; they share at least half."""
        room = self.window - 3 - asked
        return windows(length, room, min(self.stride, max(1, room // 2)))


def pad_tokens(
    model: Reader, questions: Sequence[Sequence[int]], contexts: Sequence[Sequence[int]], multiple: int = 1
) -> tuple[Tensor, Tensor]:
    """bos … eos and … eos, as the reader wants them, each padded to a multiple."""
    asked = [[model.bos_id, *question, model.eos_id] for question in questions]
    told = [[*context, model.eos_id] for context in contexts]
    out = []
    for rows in (asked, told):
        width = -(-max(len(row) for row in rows) // multiple) * multiple
        table = np.full((len(rows), width), model.pad_id, np.int64)
        for i, row in enumerate(rows):
            table[i, : len(row)] = row
        out.append(torch.from_numpy(table))
    return out[0], out[1]


@torch.no_grad()
def read(
    model: Reader,
    pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
    room: WindowSize,
    *,
    longest: int = LONGEST,
    count: int = 1,
    batch_tokens: int = 8192,
    multiple: int = 1,
) -> list[Prediction]:
    """The predictions for (question, context) pairs of tokens: ``count`` spans each, of at most ``longest`` tokens."""
    pieces = [
        ContextWindow(row, *cut)
        for row, (question, context) in enumerate(pairs)
        for cut in room.cuts(len(question), len(context))
    ]
    logits: dict[int, NDArray[np.float64]] = {}
    asked = np.array([len(pairs[piece.row][0]) + 2 for piece in pieces], np.int64)
    told = np.array([piece.end - piece.start + 1 for piece in pieces], np.int64)
    tokens = max(batch_tokens, int((asked + told).max(initial=0)) + 2 * multiple)
    device = next(model.parameters()).device
    for batch in bucket_places(asked, told, tokens=tokens, shuffle=False) if pieces else []:
        some = [pieces[i] for i in batch]
        tensors = pad_tokens(
            model, [pairs[p.row][0] for p in some], [pairs[p.row][1][p.start : p.end] for p in some], multiple
        )
        out = model(*(t.to(device) for t in tensors)).float().cpu().double().numpy()
        for i, piece, row in zip(batch, some, out, strict=True):
            logits[i] = row[:, : 1 + piece.end - piece.start]
            if not np.isfinite(logits[i].max(-1)).all():  # NaN is the largest
                raise NoProbabilities
    by_row: dict[int, list[int]] = {}
    for i, piece in enumerate(pieces):
        by_row.setdefault(piece.row, []).append(i)
    return [
        _best([pieces[i] for i in by_row[row]], [logits[i] for i in by_row[row]], len(context), longest, count)
        for row, (_, context) in enumerate(pairs)
    ]


def _best(
    pieces: Sequence[ContextWindow], logits: Sequence[NDArray[np.float64]], length: int, longest: int, count: int
) -> Prediction:
    """Spans of all windows together; of each window no more than ``count`` are kept, however long the context."""
    owner = owners([(piece.start, piece.end) for piece in pieces], length)
    every, total = [], 0.0  # log of the sum, "no answer" being e⁰
    for number, (piece, (start, end)) in enumerate(zip(pieces, logits, strict=True)):
        size = piece.end - piece.start
        own = owner[piece.start : piece.end] == number
        wide = min(longest, size)
        tail = np.concatenate([end[1:], np.full(wide - 1, -np.inf)])
        ends = np.lib.stride_tricks.sliding_window_view(tail, wide)[:size]  # [size, wide]: e_i, e_{i+1}, …
        scores = start[1:, None] + ends - (start[0] + end[0])
        i, d = np.nonzero(np.isfinite(scores) & own[:, None])
        scores = scores[i, d]
        total = np.logaddexp(total, np.logaddexp.reduce(scores))
        best = np.argsort(-scores, kind="stable")[:count]
        every.append((scores[best], piece.start + i[best], piece.start + i[best] + d[best] + 1))
    scores, starts, ends = (np.concatenate(parts) for parts in zip(*every, strict=True))
    order = np.argsort(-scores, kind="stable")[:count]
    spans = [AnswerSpan(int(starts[k]), int(ends[k]), float(np.exp(scores[k] - total))) for k in order]
    return Prediction(spans, float(np.exp(-total)))
