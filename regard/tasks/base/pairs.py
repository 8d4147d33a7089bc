"""What tasks that turn one text into another share: pairs of texts in, batches of subwords out, validation by loss."""

from __future__ import annotations

import importlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, Generic, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

import regard.decode as decode
from regard.data import Batch, Batches, Corpus, Limits, batches, texts
from regard.models import RNNSeq2Seq, Transformer
from regard.tasks.base.corpora import survey
from regard.tasks.base.run import Work
from regard.tasks.base.settings import Fitted, PairTraining, Settings
from regard.text.subwords import EOS, PAD, Subwords
from regard.text.wordpiece import Cutter
from regard.train import Position, Progress, Ranks, Step, Task
from regard.train.settings import Values

S = TypeVar("S", bound=Settings)
M = TypeVar("M", bound=Transformer | RNNSeq2Seq)
UNWATCHED = "no validation data, and none held out: training neither validates nor stops early (see --held-out)"
UPDATE, STEP = 3, 3  # forward passes that an update is worth, and a step of decoding, a few subwords at a time


class PairWork(Work[S]):
    """A task whose data are pairs of texts and whose subwords are learned on both sides together."""

    def survey(self, settings: S) -> Values:
        data = settings.data
        readers, valid = data.split.training, data.split.validation
        pairs, text = survey(readers, data.bad)
        if not pairs:
            raise ValueError(f"the corpus is empty: no pairs in {', '.join(r.name for r in readers)}")
        valid_pairs, valid_text = survey(valid, data.bad)
        if valid and not valid_pairs:
            raise ValueError(f"the validation set is empty: no pairs in {', '.join(r.name for r in valid)}")
        return {"pairs": pairs, "valid_pairs": valid_pairs, "fingerprint": f"{text[:16]}-{valid_text[:16]}"}

    def data_facts(self, task: Task) -> Values:
        assert isinstance(task, PairTask)
        return {"used_pairs": len(task.corpus)}  # the rest are too long or too uneven

    def learn(self, fitted: Fitted, report: Progress) -> Cutter:
        cutting = fitted.cutting
        if cutting.path is not None:
            return Subwords.load(cutting.path)
        report.say(f"learning {cutting.vocab_size:,} subwords")
        lines = texts(fitted.data.split.training, bad=fitted.data.bad)
        return Subwords.learn([lines], cutting.vocab_size, lowercase=cutting.lowercase)

    def corpora(self, fitted: Fitted, subwords: Cutter, report: Progress) -> tuple[Corpus, Corpus | None]:
        """The pairs to train on, and to validate on, in subwords."""
        data = fitted.data
        build = partial(Corpus.build, subwords=subwords, bad=data.bad, cache=data.cache)
        corpus = build(data.split.training, limits=Limits(max_tokens=data.max_tokens, max_ratio=data.max_ratio))
        readers = data.split.validation
        valid = build(readers, limits=Limits(max_tokens=data.max_tokens)) if readers else None
        if data.split.summary:
            report.say(data.split.summary)
        for some in [corpus] + ([valid] if valid else []):
            for line in [*map(str, some.reports), *copies(some)]:
                report.say(line)
        return corpus, valid


def copies(corpus: Corpus) -> list[str]:
    """Warnings about files whose pairs mostly have the same text on both sides: one file may have been given twice."""
    source, target = corpus.sides
    same = np.zeros(len(corpus), bool)
    if len(rows := np.flatnonzero((source.lengths == target.lengths) & (source.lengths > 0))):
        equal = source.take(rows).values == target.take(rows).values
        same[rows] = np.logical_and.reduceat(equal, source.take(rows).offsets[:-1])
    counts = [(int(same[part.start : part.stop].sum()), part.stop - part.start) for part in corpus.parts]
    return [
        f"warning: {report.name}: {some:,} of {all:,} pairs have the same text on both sides; is one file given twice?"
        for report, (some, all) in zip(corpus.reports, counts, strict=True)
        if 2 * some > all
    ]


class PairTask(ABC, Generic[M]):
    """The task, as :func:`regard.train.fit` wants it: a subclass has the objective, and what else it measures."""

    sums: Sequence[str]
    objective: nn.Module
    static = True
    limits = decode.Limits()  # of what is decoded in validation
    measured = 0  # validation pairs that are decoded
    alike = False  # is a word cut the same way in all of a pair, under BPE-dropout?

    def __init__(
        self, model: M, corpus: Corpus, valid: Corpus | None, fitted: Fitted, device: torch.device
    ) -> None:  # fmt: skip
        self.model, self.corpus, self.valid, self.device = model, corpus, valid, device
        self.settings: PairTraining = fitted.training
        self.cutting = fitted.cutting
        self.dtype = torch.bfloat16 if half(self.settings.precision, device) else None
        self.blocks = [*model.encoder, *model.decoder] if isinstance(model, Transformer) else []

    @abstractmethod
    def plain(self, model: M) -> nn.Module:
        """The objective of this model without regularisation; the second of its sums is Σ −log p."""

    def measures(self, model: M) -> dict[str, float]:
        """Further validation measures."""
        return {}

    def pace(self, name: str) -> float:
        return 1.0

    @property
    def validation_cost(self) -> float:
        """Subwords that pass through the model in a validation, divided by those of an update.

        Decoding counts as if no output ended before its limit: an untrained model's does not.
        """
        if self.valid is None:
            return 0.0
        s, pairs, cap = self.settings, len(self.valid), self.limits.maximum
        source, target = subwords_of(self.valid)
        longest = 2 * source + self.limits.extra * pairs if cap is None else cap * pairs
        passed = source + target + min(1.0, self.measured / pairs) * (source + STEP * longest)
        update: int = UPDATE * (2 if s.rdrop else 1) * min(s.tokens, sum(subwords_of(self.corpus)))
        return passed / update

    def inputs(self, batch: Batch) -> list[Tensor]:
        """The objective's input from a batch: ``tensors``, and perhaps more."""
        return tensors(batch)

    def steps(self, position: Position, ranks: Ranks) -> Iterator[Step]:
        on_gpu = ranks.device.type == "cuda"
        for start, epoch in self._epochs(position, ranks):
            position = start
            for k in range(position.batch, len(epoch)):
                position = position.after()
                some = self.inputs(epoch[k])
                if on_gpu:
                    full = self._room // ((some[0].shape[1] + some[2].shape[1]) * ranks.world)
                    eos = self.corpus.subwords.eos_id
                    some = [t.pin_memory() for t in fill_rows(some, full, eos)]
                yield Step(some, epoch[k].tokens, position)

    @property
    def _room(self) -> int:
        return int(self.settings.tokens // self.settings.accumulate)

    def _epochs(self, position: Position, ranks: Ranks) -> Iterator[tuple[Position, Batches]]:
        """Epoch after epoch, from a given position.

        With BPE-dropout, sampling an epoch takes seconds, so the next one is sampled while this one is read.
        """
        epoch = self._epoch(position, ranks)
        with ThreadPoolExecutor(1, thread_name_prefix="regard-epoch") as thread:
            while True:
                following = replace(position, batch=len(epoch)).next_epoch()
                wanted = following.begun < self.settings.updates * self.settings.accumulate
                drawn = thread.submit(self._epoch, following, ranks) if wanted else None
                yield position, epoch
                epoch = drawn.result() if drawn else self._epoch(following, ranks)
                position = following

    def _epoch(self, position: Position, ranks: Ranks) -> Batches:
        s = self.settings
        plain = position.begun / s.accumulate >= (1 - self.cutting.plain) * s.updates
        return batches(
            self.corpus,
            tokens=self._room,
            seed=s.seed,
            epoch=position.epoch,
            dropout=0.0 if plain else self.cutting.dropout,
            alike=self.alike,
            rank=ranks.rank,
            world=ranks.world,
            multiple=s.multiple,
        )

    def validate(self, model: nn.Module) -> dict[str, float]:
        if self.valid is None:
            return {}
        own = cast("M", model)  # the task's model, or an unsharded copy
        objective = self.plain(own)
        training = model.training
        model.eval()
        try:
            with torch.no_grad():
                loss = self._valid_loss(objective)
                return {"valid_loss": loss, "perplexity": math.exp(min(loss, 50.0)), **self.measures(own)}
        finally:
            model.train(training)

    def _valid_loss(self, objective: nn.Module) -> float:
        assert self.valid is not None
        total, tokens = torch.zeros((), dtype=torch.float64, device=self.device), 0
        for batch in batches(self.valid, tokens=self.settings.tokens, shuffle=False, multiple=self.settings.multiple):
            total += objective(*(t.to(self.device) for t in tensors(batch)))[1]
            tokens += batch.tokens
        return float(total) / tokens

    def greedy_outputs(self, model: M) -> tuple[list[str], list[str]]:
        """The greedy outputs for the ``measured`` validation sources, and their references."""
        assert self.valid is not None
        wanted = min(len(self.valid), self.measured)
        rows = np.unique(np.linspace(0, len(self.valid) - 1, wanted).astype(np.int64))
        found = {int(row): "" for row in rows}
        decoder: decode.Model[Any] = model
        for batch in batches(self.valid, tokens=self.settings.tokens, shuffle=False):
            some = [i for i, row in enumerate(batch.rows.tolist()) if row in found]
            if not some:
                continue
            memory = model.encode(
                batch.source[some].to(self.device), lengths=batch.source_lengths[some].to(self.device)
            )
            for i, hypothesis in zip(some, decode.greedy(decoder, memory, limits=self.limits), strict=True):
                found[int(batch.rows[i])] = self.valid.subwords.decode(hypothesis.tokens.tolist())
        return [found[int(row)] for row in rows], [self.valid.text(int(row))[1] for row in rows]


def subwords_of(corpus: Corpus) -> tuple[int, int]:
    """Of all sources and of all targets, each with its </s>."""
    source, target = (int(side.sum()) + len(corpus) for side in corpus.lengths)
    return source, target


def measured(wanted: bool, package: str, valid: Corpus | None, report: Progress) -> bool:
    """Whether there is validation data, and the package that measures on it is installed."""
    if valid is None:
        report.say(UNWATCHED)
        return False
    if not wanted:
        return False
    try:
        importlib.import_module(package)
    except ModuleNotFoundError:
        report.say(f"{package} is not installed: validation is by loss alone")
        return False
    return True


def autocast(device: torch.device, dtype: torch.dtype | None) -> torch.autocast:
    """Computes in this type where PyTorch considers it safe; None computes as usual."""
    return torch.autocast(device.type, dtype, enabled=dtype is not None)


def half(precision: str, device: torch.device) -> bool:
    """Whether a run of this setting computes in bfloat16: "auto" does on a GPU."""
    return precision == "bfloat16" or (precision == "auto" and device.type == "cuda")


def without_padding(rows: Tensor, targets: Tensor, passes: int) -> tuple[Tensor, Tensor]:
    """Features [passes · M, E] and targets [M], but for those of padding."""
    kept = (targets != PAD).nonzero().flatten()
    if len(kept) == len(targets):
        return rows, targets
    return rows.unflatten(0, (passes, len(targets))).index_select(1, kept).flatten(0, 1), targets[kept]


def tensors(batch: Batch) -> list[Tensor]:
    """The objective's input from a batch."""
    return [batch.source, batch.source_lengths, batch.target_in, batch.target_out]


def fill_rows(tensors: Sequence[Tensor], rows: int, eos_id: int = EOS) -> list[Tensor]:
    """Up to so many rows, with sentences of nothing but </s> that no loss counts: then few shapes occur.

    What comes after the four is 0 there.
    """
    more = rows - len(tensors[0])
    if more <= 0:
        return list(tensors)
    source, lengths, target_in, target_out, *rest = (torch.cat((t, t[:1].expand(more, *t.shape[1:]))) for t in tensors)
    source[-more:], lengths[-more:], target_out[-more:] = PAD, 1, PAD
    source[-more:, 0] = eos_id
    for t in rest:
        t[-more:] = 0
    return [source, lengths, target_in, target_out, *rest]
