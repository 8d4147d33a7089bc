"""Summarization: train a Transformer that writes and copies, on documents with summaries, to a model folder.

    regard train --task summarization --train train.jsonl --valid valid.jsonl --out model/

JSON lines have the texts under ``document`` and ``summary``; ``--set 'data.keys=["dialogue", "summary"]'`` names other
keys. From scratch, or with ``--set model.pretrained=minilm`` with an encoder that has read much before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from regard.common.module import Module
from regard.data import Corpus, Reader
from regard.data.documents import MARK, Documents
from regard.decode import Limits
from regard.models import Transformer
from regard.models.folder import make_model
from regard.models.pointer import PointerTransformer
from regard.tasks.base import run
from regard.tasks.base.card import LOSS, CardText
from regard.tasks.base.defaults import Tables, few_updates, short_schedule
from regard.tasks.base.pairs import PairTask, PairWork, autocast, measured
from regard.tasks.base.pretrained import encoder_table, load_encoder, take_over
from regard.tasks.base.settings import Fitted, PairData, PairTraining
from regard.tasks.base.settings import Settings as PairSettings
from regard.tasks.summarization.mixture import mixture_loss
from regard.text.subwords import PAD
from regard.text.wordpiece import Cutter, WordPiece, load_subwords
from regard.train import Progress, Ranks, Task
from regard.train.settings import Values

__all__ = ["WORK", "Data", "Settings", "Summarization", "SummaryObjective", "Training", "train"]


@dataclass(frozen=True, kw_only=True)
class Data(PairData):
    """Where the documents are, and :class:`regard.tasks.base.settings.PairData`.

    ``train`` and ``valid`` are files of JSON lines, with the texts under ``keys``, or of TSV, by a name that ends in
    .tsv, in ``columns``. A list of texts is a document of as many lines; a list of summaries gives as many pairs.
    ``corpora`` are more training files, each a table {path, keys, columns, weight}.
    """

    train: str | None = None
    valid: str | None = None
    keys: Sequence[str] = ("document", "summary")
    columns: Sequence[int] = (0, 1)
    corpora: Sequence[Values] = ()
    max_tokens: int = 1024

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.keys) != 2 or not all(isinstance(key, str) for key in self.keys):
            raise ValueError(f"keys must be two names, of the document and of the summary, got {self.keys!r}")
        if len(self.columns) != 2:
            raise ValueError(f"columns must be two numbers, of the document and of the summary, got {self.columns!r}")

    def training(self) -> list[Reader]:
        tables: list[Values] = [] if self.train is None else [{"path": self.train}]
        tables += self.corpora
        if not tables:
            raise ValueError("no training data: give --train, a file of JSON lines or TSV")
        return [self._reader(table) for table in tables]

    def validation(self) -> list[Reader]:
        return [] if self.valid is None else [self._reader({"path": self.valid})]

    def _reader(self, table: Values) -> Reader:
        given = {"keys": self.keys, "columns": self.columns, **table}
        try:
            return Documents(**given | {name: tuple(given[name]) for name in ("keys", "columns")})
        except TypeError as error:
            raise ValueError(f"a corpus takes path, keys, columns and weight, got {dict(table)!r}") from error


@dataclass(frozen=True, kw_only=True)
class Training(PairTraining):
    """[training] of summarization: that of pairs, and

    ``coverage``: the weight of Σ_j min(a_tj, Σ_{t'<t} a_t'j), which penalises attending twice to one position.
    ``told``: for a model with ``told_length``, the share of training summaries whose length is an input. ``rouge`` is
    measured by greedy decoding of at most ``rouge_documents`` validation documents. With a pretrained encoder:
    ``pretrained_lr``, its peak learning rate (None: ``lr``); ``freeze``: token embeddings are not trained.
    """

    coverage: float = 0.0
    told: float = 0.5
    pretrained_lr: float | None = None
    freeze: bool = False
    rouge: bool = True
    rouge_documents: int = 200

    def __post_init__(self) -> None:
        super().__post_init__()
        self.whole("rouge_documents", 1)
        self.number("coverage")
        self.number("told")
        if self.pretrained_lr is not None:
            self.number("pretrained_lr")

    def to_table(self) -> dict[str, Any]:
        """Without settings that have no effect, so that a run of a version that lacks them can be resumed."""
        table = super().to_table()
        return table if self.freeze else {key: value for key, value in table.items() if key != "freeze"}


@dataclass(frozen=True, kw_only=True)
class Settings(PairSettings):
    """The data, and any other settings; those left out are fitted to the corpus."""

    data_table = Data
    training_table = Training
    kinds = ("pointer",)

    @staticmethod
    def by_size(pairs: int) -> Tables:
        """A small model, much regularised, for few documents; a larger one for many."""
        few, tiny = pairs < 100_000, pairs < 5_000
        size = {"dim": 256, "ffn_dim": 1024, "heads": 4} if few else {"dim": 512, "ffn_dim": 2048, "heads": 8}
        layers = {"encoder_layers": 4 if few else 6, "decoder_layers": 4 if few else 6}
        return {
            "subwords": {"vocab_size": 4000 if tiny else 8000 if few else 32000, "dropout": 0.1 if few else 0.0},
            "pointer": {**size, **layers, "dropout": 0.3 if few else 0.1},
            "training": {
                "updates": 4000 if tiny else 8000 if few else 50_000,
                "tokens": 8000 if tiny else 24000 if few else 48000,
                "lr": 2e-3 if few else 1e-3,
                "warmup": 1000 if tiny else 2000 if few else 4000,
                "rdrop": 2.0 if few else 0.0,
            },
        }

    @staticmethod
    def laptop(pairs: int) -> Tables:
        """Some 24 trillion operations of training."""
        small = {"dim": 128, "ffn_dim": 512, "heads": 4, "encoder_layers": 2, "decoder_layers": 2, "dropout": 0.1}
        training = {"lr": 2e-3, "tokens": 4000, "rdrop": 0.0, "rouge_documents": 50}
        return {
            "subwords": {"vocab_size": 4000, "dropout": 0.0},
            "pointer": small,
            "training": {**short_schedule(few_updates(pairs, 1200)), **training},
        }


FRESH = ("decoder", "copy_", "gate", "follow", "coverage", "told")  # what no pretrained encoder has
SMALL = 1e-9


def encoder_settings(encoder: Transformer) -> Values:
    """[model] with this encoder and a pre-norm decoder.

    The softmax shares the encoder's token embeddings. Its logits are multiplied by 1 / (their mean length), so that
    they start as large as those of a new model, whose embeddings have length 1.
    """
    length = float(encoder.embedding.weight.detach().norm(dim=1).mean())
    own = {"decoder_layers": 4, "decoder_norm": "pre", "attention_dropout": 0.0}  # fused attention has none
    scale = round(1 / max(length, SMALL), 1)
    return {**encoder_table(encoder), **own, "windows": encoder.config.positions == "learned", "output_scale": scale}


def fine_tuning(pairs: int, given: Values) -> Values:
    """[training], where ``given`` does not say otherwise: a decoder is learned quickly beside an encoder that changes
    slowly, as by Liu and Lapata (2019, https://arxiv.org/abs/1908.08345), in half the updates of one from scratch."""
    updates = given.get("updates", Settings.by_size(pairs)["training"]["updates"] // 2)
    own = {"lr": 1e-3, "pretrained_lr": 1e-4, "schedule": "cosine", "updates": updates, "warmup": updates // 10}
    return {**own, **given}


class SummaryObjective(Module):
    """The loss of a batch: label-smoothed cross-entropy of the mixture, R-Drop over two passes at once, coverage."""

    def __init__(
        self,
        model: PointerTransformer,
        *,
        smoothing: float,
        rdrop: float,
        coverage: float = 0.0,
        told: float = 0.0,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.model, self.smoothing, self.rdrop, self.dtype = model, smoothing, rdrop, dtype
        self.coverage, self.told = coverage, told

    def forward(self, source: Tensor, lengths: Tensor, target_in: Tensor, target_out: Tensor) -> Tensor:
        """Loss, negative log-likelihood and coverage loss, summed over the targets: [3]."""
        passes = 2 if self.rdrop and self.training else 1
        if passes > 1:
            source, lengths, target_in = (torch.cat((x, x)) for x in (source, lengths, target_in))
        with autocast(source.device, self.dtype):
            memory = self.model.encode(source, lengths=lengths)
            pointed = self.model.point(target_in, memory.with_lengths(self._sample_lengths(target_out, passes)))
            loss, nll = mixture_loss(
                pointed,
                self.model.output_weight,
                source,
                target_out,
                copy=self.model.config.copy,
                smoothing=self.smoothing,
                rdrop=self.rdrop if passes > 1 else None,
            )
        covered = coverage_loss(pointed.weights, target_out, passes)
        return torch.stack((loss + self.coverage * covered if self.coverage else loss, nll, covered.detach()))

    def _sample_lengths(self, target_out: Tensor, passes: int) -> Tensor | None:
        """The lengths of some summaries, sampled again each time; 0 for those without a length."""
        if not (self.model.config.told_length and self.training):
            return None
        told = torch.rand(len(target_out), device=target_out.device) < self.told
        return ((target_out != PAD).sum(-1) * told).repeat(passes)


def coverage_loss(weights: Tensor, target_out: Tensor, passes: int) -> Tensor:
    """Σ_t Σ_j min(a_tj, Σ_{t'<t} a_t'j) over targets other than padding, the mean of the passes."""
    before = weights.cumsum(1) - weights
    each = torch.minimum(weights, before).sum(-1)
    return (each * (target_out != PAD).repeat(passes, 1)).sum() / passes


class Summarization(PairTask[PointerTransformer]):
    """The task, as :func:`regard.train.fit` wants it."""

    sums = ("loss", "nll", "coverage")
    alike = True  # a copied name must have the same subwords as in the source

    settings: Training

    def __init__(
        self,
        model: PointerTransformer,
        corpus: Corpus,
        valid: Corpus | None,
        fitted: Fitted,
        device: torch.device,
        rouge: bool,
    ) -> None:
        super().__init__(model, corpus, valid, fitted, device)
        s = self.settings
        self.measured = s.rouge_documents if rouge else 0
        self.limits = Limits(maximum=int(corpus.lengths[1].max()))
        self.objective = SummaryObjective(
            model, smoothing=s.smoothing, rdrop=s.rdrop, coverage=s.coverage, told=s.told, dtype=self.dtype
        )

    def pace(self, name: str) -> float:
        """The pretrained part has its own learning rate; its embeddings a smaller one, by their length."""
        s = self.settings
        if s.pretrained_lr is None or name.startswith(FRESH):
            return 1.0
        pace = s.pretrained_lr / s.lr if s.lr else 1.0
        return float(pace / self.model.config.output_scale if name == "embedding.weight" else pace)

    def plain(self, model: PointerTransformer) -> nn.Module:
        return SummaryObjective(model, smoothing=0.0, rdrop=0.0, dtype=self.dtype)

    def measures(self, model: PointerTransformer) -> dict[str, float]:
        if not self.measured:
            return {}
        from regard.evaluate.rouge import rouge

        outputs, references = self.greedy_outputs(model)
        return rouge(outputs, [[text] for text in references])


class _Summarization(PairWork[Settings]):
    name = "summarization"
    about = "Train a model that summarizes, from documents with summaries."
    settings = Settings
    files = (
        ("train", "documents with summaries: JSON lines or .tsv, perhaps gzipped"),
        ("valid", "the same, for validation"),
    )
    scores: ClassVar[Mapping[str, str]] = {"pointer": "copy_score"}
    score_help = "the score of the attention that copies"
    words = CardText(
        "A model that summarizes",
        "Summarize with `regard summarize --model FOLDER`.",
        f"{LOSS}; ROUGE, where given, is of greedy decoding.",
        """\
It summarizes documents of the kind and length it was trained on. It may leave out what matters, attribute
words to the wrong person or invent things, in fluent language: `regard summarize --show` shows which words were copied,
and from where. It reproduces the bias of its data.""",
    )
    examples = """\
  regard train --task summarization --train train.jsonl --valid valid.jsonl --out model/
  regard train --task summarization --train train.tsv --out model/ --score general
  regard train --task summarization --train d.jsonl --set 'data.keys=["dialogue", "summary"]' --out model/
  regard train --task summarization --config recipe.toml --out model/ --set model.coverage=true
  regard train --task summarization --train train.jsonl --out model/ --set model.pretrained=minilm"""

    def fit_settings(self, settings: Settings, pairs: int, on_gpu: bool, kept: Values | None) -> Fitted:
        if name := settings.model.get("pretrained"):
            encoder, subwords = load_encoder(name)
            cutting = {
                "vocab_size": len(subwords),
                "lowercase": subwords.lowercase,
                "dropout": 0.0,
                **settings.subwords,
            }
            if isinstance(subwords, WordPiece) and cutting["dropout"]:
                raise ValueError(f"subwords.dropout: {name} has WordPiece, for which there is none; expected 0")
            model = {**encoder_settings(encoder), **settings.model}
            training = fine_tuning(pairs, {**settings.short_run(pairs), **settings.training})
            settings = replace(settings, subwords=cutting, model=model, training=training)
        return Fitted.of(settings, pairs, on_gpu, kept)

    def learn(self, fitted: Fitted, report: Progress) -> Cutter:
        name = fitted.model.get("pretrained")
        subwords = load_encoder(name)[1] if name else super().learn(fitted, report)
        if subwords.pad_id != PAD:
            raise ValueError(f"{name}: expected the padding to be token {PAD}, got {subwords.pad_id}")
        return subwords.with_token(MARK) if isinstance(subwords, WordPiece) else subwords

    def read(self, path: Path) -> Cutter:
        return load_subwords(path)

    def model(self, fitted: Fitted, subwords: Cutter) -> PointerTransformer:
        ids = {name: getattr(subwords, name) for name in ("pad_id", "bos_id", "eos_id")}
        model: PointerTransformer = make_model({**fitted.model, "vocab_size": len(subwords), **ids})
        if name := fitted.model.get("pretrained"):
            take_over(model, load_encoder(name)[0])
        if fitted.training.freeze:
            model.embedding.weight.requires_grad_(False)
        return model

    def task(self, model: nn.Module, fitted: Fitted, subwords: Cutter, ranks: Ranks, report: Progress) -> Summarization:
        assert isinstance(model, PointerTransformer)
        corpus, valid = self.corpora(fitted, subwords, report)
        rouge = measured(fitted.training.rouge, "rouge_score", valid, report)
        return Summarization(model, corpus, valid, fitted, ranks.device, rouge)

    def data_facts(self, task: Task) -> Values:
        assert isinstance(task, Summarization)
        return {
            **super().data_facts(task),
            "longest_document": int(task.corpus.lengths[0].max()),
        }  # subwords of a document

    def card(self, tables: Values) -> CardText:
        return self.words.start_from(tables["model"].get("pretrained"))


WORK = _Summarization()
train = partial(run.train, WORK)
