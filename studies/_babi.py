"""A trained model reads bAbI's stories: what it answers, what it attends to, what happens when facts are taken away.

Shapes: N questions of a batch, S subwords of a story, F facts, L layers, H heads.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

sys.path.insert(0, str(Path(__file__).resolve().parent / "babi"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from stories import Question

import regard
from regard.models.folder import make_model, model_table
from regard.models.folder import open as open_folder
from regard.text import BOS, EOS, PAD

BATCH = 64
MEASURES = ("weights", "norms", "gradient")
LOOKS = ("answer", "question")


class Batch(NamedTuple):
    """Questions in subwords. ``places``: of each question the subwords of each fact, and last those of the question."""

    source: Tensor  # [N, S]
    lengths: Tensor  # [N]
    target_in: Tensor  # [N, T]
    target_out: Tensor  # [N, T]
    places: list[list[list[int]]]


class Judged(NamedTuple):
    """Of each question: log p of the answer, and whether it is what the model itself would write."""

    log_prob: Tensor
    same: Tensor


class Reader:
    """A model and its subwords."""

    def __init__(self, model: Any, subwords: Any) -> None:
        self.model, self.subwords = model.eval(), subwords

    @classmethod
    def load(cls, folder: Path) -> Reader:
        found = open_folder(folder)
        return cls(found.model, found.subwords)

    def untrained(self, seed: int = 0) -> Reader:
        """The same model before it has learned anything."""
        torch.manual_seed(seed)
        return Reader(make_model(model_table(self.model)), self.subwords)

    def batch(self, questions: Sequence[Question]) -> Batch:
        texts = self.subwords.encode_batch([q.text for q in questions])
        sources = [torch.tensor([*text.ids, EOS]) for text in texts]
        answers = [self.subwords.encode(q.answer).ids for q in questions]
        places = [sentences(q.spans, text.offsets) for q, text in zip(questions, texts, strict=True)]

        def padded(rows: list[Tensor]) -> Tensor:
            return pad_sequence(rows, batch_first=True, padding_value=PAD)

        return Batch(
            padded(sources),
            torch.tensor([len(source) for source in sources]),
            padded([torch.tensor([BOS, *answer]) for answer in answers]),
            padded([torch.tensor([*answer, EOS]) for answer in answers]),
            places,
        )

    def read(self, batch: Batch, **masks: Any) -> Tensor:
        """Log-probabilities, [N, T, V]."""
        logits = self.model(batch.source, batch.target_in, source_lengths=batch.lengths, **masks)
        return torch.log_softmax(logits, -1)

    @torch.no_grad()
    def judge(self, questions: Sequence[Question], hidden: Sequence[set[int]] | None = None) -> Judged:
        """All at once, in batches of like lengths. ``hidden`` names facts that the answer's attention cannot see,
        though the encoder has read them; number F is the question."""
        order = sorted(range(len(questions)), key=lambda i: len(questions[i].text))
        log_prob, same = torch.zeros(len(questions)), torch.zeros(len(questions), dtype=torch.bool)
        for start in range(0, len(order), BATCH):
            some = order[start : start + BATCH]
            batch = self.batch([questions[i] for i in some])
            masks = {} if hidden is None else {"cross_mask": seen(batch, [hidden[i] for i in some])}
            found = judged(self.read(batch, **masks), batch.target_out)
            log_prob[some], same[some] = found.log_prob, found.same
        return Judged(log_prob, same)


def sentences(spans: Sequence[tuple[int, int]], offsets: Sequence[tuple[int, int]]) -> list[list[int]]:
    """The subwords of each sentence, with white space before it; the end symbol is of the last."""
    ends = [0, *(end for _, end in spans)]
    found = [[i for i, (start, _) in enumerate(offsets) if a <= start < b] for a, b in pairwise(ends)]
    found[-1].append(len(offsets))
    return found


def seen(batch: Batch, hidden: Sequence[set[int]]) -> Tensor:
    """What is neither padding nor of a hidden sentence, [N, 1, 1, S]."""
    mask = torch.arange(batch.source.shape[1]) < batch.lengths[:, None]
    for row, places, some in zip(mask, batch.places, hidden, strict=True):
        for sentence in some:
            row[places[sentence]] = False
    return mask[:, None, None]


def judged(log_p: Tensor, target_out: Tensor) -> Judged:
    """Greedy decoding writes an answer exactly if each of its symbols is the likeliest after those before it."""
    counts = target_out != PAD
    log_prob = (log_p.gather(-1, target_out[..., None])[..., 0] * counts).sum(-1)
    return Judged(log_prob, ((log_p.argmax(-1) == target_out) | ~counts).all(-1))


# --- attention ---


class Seen(NamedTuple):
    """Of one question, how much each fact gets of a row, [L, H, F], and the whole row, [L, H]; by look and measure."""

    question: Question
    right: bool
    size: list[int]  # subwords of each fact
    facts: dict[tuple[str, str], Tensor]
    total: dict[tuple[str, str], Tensor]


def watch(
    reader: Reader, questions: Sequence[Question], measures: Sequence[str] = MEASURES
) -> Iterator[tuple[regard.trace.Trace, list[Seen]]]:
    """Traces of the model reading the questions and their answers, and what was seen; a batch at a time.

    The look of the "answer" is cross-attention from the place that writes the answer's first subword; that of the
    "question" is the encoder's self-attention, the mean over the question's subwords. ``gradient`` is
    |α ∂ log p(answer) / ∂α|.
    """
    for start in range(0, len(questions), BATCH):
        some = questions[start : start + BATCH]
        batch = reader.batch(some)
        reader.model.zero_grad()
        with regard.record(reader.model, inputs=False, gradients=True) as trace:
            found = judged(reader.read(batch), batch.target_out)
        found.log_prob.sum().backward()
        yield (
            trace,
            [_seen(trace, i, q, bool(found.same[i]), batch.places[i], measures) for i, q in enumerate(some)],
        )


def _seen(
    trace: regard.trace.Trace,
    item: int,
    question: Question,
    right: bool,
    places: list[list[int]],
    measures: Sequence[str],
) -> Seen:
    facts, total = {}, {}
    rows = {"answer": ("cross", [0]), "question": ("self", places[-1])}
    for look, (kind, some) in rows.items():
        for measure in measures:
            of = getattr(trace, measure)
            layers = [of(i, rows=some, item=item, kind=kind).abs().mean(1) for i in range(trace.kinds[kind])]
            row = torch.stack(layers)  # [L, H, S]
            facts[look, measure] = by_fact(row, places[:-1])
            total[look, measure] = row.sum(-1)
    return Seen(question, right, [len(p) for p in places[:-1]], facts, total)


def by_fact(row: Tensor, places: Sequence[Sequence[int]]) -> Tensor:
    """[..., S] → [..., F], the sums over each fact's subwords."""
    return torch.stack([row[..., list(place)].sum(-1) for place in places], -1)


def gold_share(facts: Tensor, support: Sequence[int]) -> Tensor:
    """Of what goes to facts, the part that goes to those that support the answer: [..., F] → [...]."""
    whole = facts.sum(-1)
    return torch.where(whole > 0, facts[..., list(support)].sum(-1) / whole.clamp(min=1e-30), torch.nan)


def on_top(facts: Tensor, support: Sequence[int]) -> Tensor:
    """Whether the fact that gets most is a supporting one: [..., F] → [...]; ties count by their share."""
    most = facts == facts.amax(-1, keepdim=True)
    return most[..., list(support)].sum(-1) / most.sum(-1)
