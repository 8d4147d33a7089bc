"""Question answering: train a reader that marks the answer to a question in a context, from files to a model folder.

    regard train --task qa --questions train.json --valid-questions dev.json --out model/
    regard answer --model model/ --context file.txt "Who wrote it?"

From scratch, or with ``--set model.pretrained=minilm`` from a pretrained encoder.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.common.module import Module
from regard.common.ragged import Integers
from regard.data import Report
from regard.data.batches import bucket_places
from regard.data.heldout import FEWEST, default, whole_groups
from regard.data.questions import Question, read_questions
from regard.evaluate.squad import quality
from regard.models import Reader
from regard.models.folder import make_model
from regard.tasks.base import run
from regard.tasks.base.card import CardText
from regard.tasks.base.defaults import Tables, few_updates, short_schedule
from regard.tasks.base.pairs import UNWATCHED, UPDATE, autocast, half
from regard.tasks.base.pretrained import encoder_table, load_encoder
from regard.tasks.base.settings import MOST_TOKENS, Fitted, check_held_out, check_vocabulary
from regard.tasks.base.settings import Settings as AnySettings
from regard.tasks.qa.questions import Lessons, QuestionRows, texts_of
from regard.tasks.qa.spans import LONGEST, STRIDE, WINDOW, WindowSize, pad_tokens, read
from regard.text.subwords import Subwords
from regard.text.wordpiece import Cutter, load_subwords
from regard.train import Position, Progress, Ranks, Step, Table
from regard.train import Settings as LoopSettings
from regard.train.settings import Values

__all__ = ["WORK", "Data", "QAObjective", "Reading", "Settings", "train"]

NOTHING = -100  # the target of a row that no loss counts


@dataclass(frozen=True, kw_only=True)
class Data(Table):
    """[data]: files of questions (see :mod:`regard.data.questions`), one or several, for training and validation.

    A context is read in windows of ``window`` tokens, question included, ``stride`` tokens apart; a predicted answer
    has at most ``longest`` tokens. ``bad`` lines are refused ("raise") or skipped ("skip"). Without validation files,
    ``held_out`` of the questions are held out, all questions of a context together (None: about one in 20, at most
    1,000; 0: none).
    """

    questions: str | Sequence[str] = ()
    valid_questions: str | Sequence[str] = ()
    bad: str = "raise"
    window: int = WINDOW
    stride: int = STRIDE
    longest: int = LONGEST
    held_out: int | None = None

    def __post_init__(self) -> None:
        if self.bad not in ("raise", "skip"):
            raise ValueError(f"bad must be raise or skip, got {self.bad!r}")
        WindowSize.of(self.window, self.stride, None)
        if isinstance(self.longest, bool) or not isinstance(self.longest, int) or self.longest < 1:
            raise ValueError(f"longest must be a whole number of at least 1, got {self.longest!r}")
        check_held_out(self.held_out)
        if self.held_out and self.files(valid=True):
            raise ValueError(f"held_out is {self.held_out:,}, and validation data are given: give one of them")

    def files(self, valid: bool = False) -> list[str]:
        given = self.valid_questions if valid else self.questions
        return [given] if isinstance(given, str) else list(given)

    def load(self, valid: bool = False) -> tuple[list[Question], list[Report]]:
        """Questions for training or validation: those of the files, or the held-out ones."""
        if self.files(valid=True) or self.held_out == 0:
            return self._read(valid)
        found, reports = self._read()
        count = default(len(found)) if self.held_out is None else self.held_out
        held = whole_groups([q.context for q in found], count)
        if self.held_out is None and held.sum() < FEWEST:
            held[:] = False
        some = [q for q, out in zip(found, held.tolist(), strict=True) if out is valid]
        if not valid:
            return some, reports
        told = Report("held out to validate on", len(found), len(some))
        return some, [told] if some else []

    def _read(self, valid: bool = False) -> tuple[list[Question], list[Report]]:
        reports = [Report(path) for path in self.files(valid)]
        found = [q for r in reports for q in read_questions(r.name, bad=self.bad, report=r)]  # type: ignore[arg-type]
        return found, reports


@dataclass(frozen=True, kw_only=True)
class QASubwordSettings(Table):
    """[subwords]: ``vocab_size`` of them learned on the training text, or those of a tokenizer.json at ``path``.

    A pretrained encoder brings its own.
    """

    vocab_size: int = 8000
    path: str | None = None
    lowercase: bool = True

    def __post_init__(self) -> None:
        check_vocabulary(self.vocab_size)


@dataclass(frozen=True, kw_only=True)
class Training(LoopSettings):
    """[training]: the loop's settings, and

    ``tokens``: of an update, padding included, N (Q + S), on all ranks together; lengths are padded to a ``multiple``;
    ``negatives``: adds this share of questions, each paired with a nearby context that does not answer it, so that the
    model learns to recognise a window without the answer; ``rdrop``, the weight of R-Drop (0: off); ``freeze``: token
    embeddings are not trained. EM and F1 are measured on at most ``measured`` validation questions. ``select``: the
    criterion for the best weights and for early stopping, "loss" or "f1".
    """

    tokens: int = 8000
    multiple: int = 1
    negatives: float = 0.1
    rdrop: float = 0.0
    freeze: bool = False
    measured: int = 1000
    select: str = "loss"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.whole("tokens", 1, MOST_TOKENS)
        self.whole("multiple", 1, MOST_TOKENS)
        self.whole("measured", 1)
        self.number("rdrop")
        self.number("negatives")
        self.one_of("select", ("loss", "f1"))


@dataclass(frozen=True, kw_only=True)
class Settings(AnySettings):
    """The data, and any other settings; those left out are fitted to the corpus."""

    data_table = Data
    subwords_table = QASubwordSettings
    training_table = Training
    kinds = ("reader",)

    @staticmethod
    def by_size(pairs: int) -> Tables:
        small = pairs < 50_000
        return {
            "subwords": {"vocab_size": 8000 if small else 16000},
            "reader": {
                "dim": 128 if small else 256,
                "ffn_dim": 256 if small else 1024,
                "heads": 4 if small else 8,
                "encoder_layers": 2 if small else 4,
                "model_layers": 2 if small else 4,
                "dropout": 0.2 if small else 0.1,
                "self_score": "rotary",
                "positions": "none",
            },
            "training": {"updates": 6000 if small else 30_000, "lr": 1e-3, "warmup": 500, "schedule": "cosine"},
        }

    @staticmethod
    def laptop(pairs: int) -> Tables:
        """Some 24 trillion operations of training."""
        return {
            "subwords": {"vocab_size": 4000},
            "reader": {"dim": 128, "ffn_dim": 256, "heads": 4, "encoder_layers": 2, "model_layers": 2, "dropout": 0.1},
            "training": {**short_schedule(few_updates(pairs, 1300)), "tokens": 4000, "measured": 200},
        }


class QAObjective(Module):
    """−log P(start) − log P(end), summed over a batch; with R-Drop (Liang et al. 2021,
    https://arxiv.org/abs/2106.14448) over two passes at once, and what their distributions differ by."""

    def __init__(self, model: Reader, *, rdrop: float = 0.0, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.model, self.rdrop, self.dtype = model, rdrop, dtype

    def forward(self, question: Tensor, context: Tensor, places: Tensor) -> Tensor:
        """[N, Q], [N, S] and the places of start and end, [N, 2] → loss and negative log-likelihood: [2]."""
        passes = 2 if self.rdrop and self.training else 1
        with autocast(question.device, self.dtype):
            logits = self.model(question.repeat(passes, 1), context.repeat(passes, 1))
        log_p = logits.log_softmax(-1)  # [passes · N, 2, 1 + S]
        nll = F.nll_loss(log_p.flatten(0, 1), places.repeat(passes, 1).flatten(), ignore_index=NOTHING, reduction="sum")
        nll = nll / passes
        if passes == 1:
            return torch.stack((nll, nll))
        a, b = log_p.chunk(2)
        apart = (a.exp() - b.exp()) * (a - b).masked_fill(a.isinf(), 0.0)  # KL both ways
        counted = (places[:, :1, None] != NOTHING).to(apart.dtype)
        return torch.stack((nll + 0.25 * self.rdrop * (apart * counted).sum(), nll))


class Reading:
    """The task, as :func:`regard.train.fit` wants it."""

    sums = ("loss", "nll")
    static = True

    def __init__(
        self, model: Reader, asked: QuestionRows, valid: QuestionRows | None, fitted: Fitted, device: torch.device
    ) -> None:
        self.model, self.asked, self.valid, self.device = model, asked, valid, device
        self.data: Data = fitted.data
        self.settings: Training = fitted.training
        self.dtype = torch.bfloat16 if half(self.settings.precision, device) else None
        self.objective = QAObjective(model, rdrop=self.settings.rdrop, dtype=self.dtype)
        self.blocks = [*model.encoder.encoder, *([] if model.flow is None else model.flow.layers)]

    def pace(self, name: str) -> float:
        return 1.0

    @property
    def validation_cost(self) -> float:
        """Tokens that pass through the model in a validation, divided by those of an update."""
        if self.valid is None:
            return 0.0
        s = self.settings
        given, read = (sum(int(side.sum()) for side in x.lessons().lengths(1)) for x in (self.asked, self.valid))
        share: float = min(1.0, s.measured / len(self.valid.given))
        update: int = UPDATE * (2 if s.rdrop else 1) * min(s.tokens, given)
        return (1 + share) * read / update

    def steps(self, position: Position, ranks: Ranks) -> Iterator[Step]:
        s, on_gpu = self.settings, ranks.device.type == "cuda"
        room = s.tokens // s.accumulate
        while True:
            lessons = self.asked.epoch(s.seed, position.epoch, s.negatives)
            epoch = bucket_places(*lessons.lengths(s.multiple), tokens=room, seed=s.seed, epoch=position.epoch)
            for k in range(position.batch, len(epoch)):
                position = position.after()
                tensors = self._tensors(lessons, epoch[k], ranks)
                if on_gpu:
                    full = room // ((tensors[0].shape[1] + tensors[1].shape[1]) * ranks.world)
                    tensors = [t.pin_memory() for t in fill_batch(tensors, full)]
                yield Step(tensors, len(epoch[k]), position)
            position = position.next_epoch()

    def _tensors(self, lessons: Lessons, whole: Integers, ranks: Ranks | None = None) -> list[Tensor]:
        """Question, context and places of these lessons, this rank's of them, padded to the width of all."""
        widths = [int(side[whole].max()) for side in lessons.lengths(self.settings.multiple)]
        own = whole if ranks is None else whole[ranks.rank :: ranks.world]
        idle = not len(own)  # fewer lessons than ranks: take part, and count nothing
        own = whole[:1] if idle else own
        two = zip(pad_tokens(self.model, *lessons.tokens(own)), widths, strict=True)
        tokens = [F.pad(t, (0, width - t.shape[1]), value=self.model.pad_id) for t, width in two]
        places = torch.from_numpy(lessons.places[own])
        return [*tokens, torch.full_like(places, NOTHING) if idle else places]

    def validate(self, model: nn.Module) -> dict[str, float]:
        if self.valid is None:
            return {}
        training = model.training
        model.eval()
        try:
            with torch.no_grad():
                reader = cast("Reader", model)  # the task's, or an unsharded copy
                loss, found = self._loss(QAObjective(reader, dtype=self.dtype)), self._measures(reader)
        finally:
            model.train(training)
        return {"valid_loss": loss if self.settings.select == "loss" else 1 - found["f1"] / 100, "nll": loss, **found}

    def _loss(self, objective: QAObjective) -> float:
        assert self.valid is not None
        total, lessons = torch.zeros((), dtype=torch.float64, device=self.device), self.valid.lessons()
        lengths = lessons.lengths(self.settings.multiple)
        room = max(self.settings.tokens, int((lengths[0] + lengths[1]).max()))
        for some in bucket_places(*lengths, tokens=room, shuffle=False):
            total += objective(*(t.to(self.device) for t in self._tensors(lessons, some)))[1]
        return float(total) / len(lessons.rows)

    def _measures(self, model: Reader) -> dict[str, float]:
        """EM and F1, on questions spread over the validation set."""
        assert self.valid is not None
        count = len(self.valid.contexts)
        rows = np.unique(np.linspace(0, count - 1, min(count, self.settings.measured)).astype(int)).tolist()
        pairs = [(self.valid.questions[row], self.valid.contexts[row]) for row in rows]
        with autocast(self.device, self.dtype):
            found = read(model, pairs, self.valid.room, longest=self.data.longest, multiple=self.settings.multiple)
        answers = texts_of(self.valid, rows, found)
        marks = quality(answers, [self.valid.given[row].answers for row in rows])
        return {"em": marks.exact, "f1": marks.f1}


def fill_batch(tensors: Sequence[Tensor], rows: int) -> list[Tensor]:
    """Up to so many rows, with copies of the first that no loss counts: then few shapes occur."""
    more = rows - len(tensors[0])
    if more <= 0:
        return list(tensors)
    question, context, places = (torch.cat((t, t[:1].expand(more, *t.shape[1:]))) for t in tensors)
    places[-more:] = NOTHING
    return [question, context, places]


class _Answering(run.Work[Settings]):
    name = "qa"
    about = "Train a reader that marks the answer to a question in a context."
    settings = Settings
    scores: ClassVar[Mapping[str, str]] = {"reader": "cross_score"}
    score_help = "the similarity of question and context"
    unasked = frozenset({"decoder_layers"})
    words = CardText(
        "A question answering model",
        'Ask with `regard answer --model FOLDER --context FILE "question"`.',
        """\
`nll` is −log P(start) − log P(end) in nats; EM and F1 are SQuAD's, in per cent. `valid_loss` decided which weights to
keep.""",
        """\
It marks a passage of the given context, right or wrong, and has no other knowledge. It was trained on texts and
questions of one kind. {always}It reproduces the bias of its data.""",
        unit="questions",
        seen="windows",
    )
    files = (
        ("questions", "questions: SQuAD's .json, or .jsonl, .tsv; may be gzipped"),
        ("valid_questions", "the same, for validation"),
    )
    examples = """\
  regard train --task qa --questions train.json --valid-questions dev.json --out model/
  regard train --task qa --questions train.jsonl --out model/ --score additive
  regard train --task qa --questions train.json --out model/ --set model.pretrained=minilm --lr 1e-4"""

    def survey(self, settings: Settings) -> Values:
        counts, prints = [], []
        for valid in (False, True):
            questions, _ = settings.data.load(valid)
            files = settings.data.files(valid)
            if not valid and not files:
                raise ValueError("no training data: give --questions")
            if files and not questions:
                raise ValueError(f"there are no questions in {', '.join(files)}")
            digest = hashlib.blake2b(digest_size=16)
            for q in questions:
                digest.update(f"{q.context}\t{q.question}\t{q.spans}\n".encode())
            counts.append((len(questions), sum(not q.spans for q in questions)))
            prints.append(digest.hexdigest()[:16])
        (pairs, none), (valid_pairs, _) = counts
        return {"pairs": pairs, "valid_pairs": valid_pairs, "unanswerable": none, "fingerprint": "-".join(prints)}

    def fit_settings(self, settings: Settings, pairs: int, on_gpu: bool, kept: Values | None) -> Fitted:
        if name := settings.model.get("pretrained"):
            encoder, _ = load_encoder(name)
            fused = {"joint": True, "attention_dropout": 0.0}  # fused attention has none
            model = {**encoder_table(encoder), **fused, **settings.model}
            training = {**fine_tuning(pairs), **settings.short_run(pairs), **settings.training}
            settings = replace(settings, model=model, training=training)
        return Fitted.of(settings, pairs, on_gpu, kept)

    def learn(self, fitted: Fitted, report: Progress) -> Cutter:
        if name := fitted.model.get("pretrained"):
            return load_encoder(name)[1]
        if fitted.cutting.path is not None:
            return load_subwords(fitted.cutting.path)
        report.say(f"learning {fitted.cutting.vocab_size:,} subwords")
        questions, _ = fitted.data.load()
        texts = dict.fromkeys(text for q in questions for text in (q.context, q.question))
        return Subwords.learn([texts], fitted.cutting.vocab_size, lowercase=fitted.cutting.lowercase)

    def read(self, path: Path) -> Cutter:
        return load_subwords(path)

    def model(self, fitted: Fitted, subwords: Cutter) -> Reader:
        ids = {name: getattr(subwords, name) for name in ("pad_id", "bos_id", "eos_id") if hasattr(subwords, name)}
        model: Reader = make_model({**fitted.model, "vocab_size": len(subwords), **ids})
        if name := fitted.model.get("pretrained"):
            model.encoder.load_state_dict(load_encoder(name)[0].state_dict())
        if fitted.training.freeze:
            model.encoder.embedding.weight.requires_grad_(False)
        return model

    def task(self, model: nn.Module, fitted: Fitted, subwords: Cutter, ranks: Ranks, report: Progress) -> Reading:
        assert isinstance(model, Reader)
        room = WindowSize.of(fitted.data.window, fitted.data.stride, model.config.max_length)
        sides = []
        for valid in (False, True):
            questions, reports = fitted.data.load(valid)
            sides.append(QuestionRows.of(questions, subwords, room, reports) if questions else None)
            for part in reports:
                report.say(str(part))
        if sides[1] is None:
            report.say(UNWATCHED)
        assert sides[0] is not None
        return Reading(model, sides[0], sides[1], fitted, ranks.device)

    def card(self, tables: Values) -> CardText:
        none = tables["data"]["unanswerable"]
        always = "" if none else "It was trained without unanswerable questions, and always answers. "
        return self.words._replace(
            limits=self.words.limits.format(always=always),
            among=f", {none:,} of them without an answer",
            origin="It was trained from scratch. ",
        ).start_from(tables["model"].get("pretrained"))


def fine_tuning(pairs: int) -> Values:
    """Settings for a pretrained encoder: low learning rates, about five epochs."""
    updates = min(20_000, max(100, pairs // 9))  # of some 45 questions
    gentle = {"lr": 1e-4, "schedule": "cosine", "weight_decay": 0.01, "average": 4}
    return {**gentle, "updates": updates, "warmup": updates // 10, "tokens": 10_000}


WORK = _Answering()
train = partial(run.train, WORK)
