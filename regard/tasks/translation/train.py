"""Translation: train an encoder-decoder on pairs of lines, from files to a model folder.

    regard train --source train.en --target train.fr \\
        --valid-source val.en --valid-target val.fr --out model/

Started again after it was killed, the same command goes on where the last checkpoint stands. Under
``torchrun --nproc-per-node N`` it trains on N processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from regard.common.module import Module
from regard.data import Batch, Corpus
from regard.tasks.base import run
from regard.tasks.base.card import model_card
from regard.tasks.base.pairs import PairTask, PairWork, autocast, measured, without_padding
from regard.tasks.base.settings import Data, Fitted, Settings
from regard.tasks.translation.guidance import Guide, WordLinks, guided_loss, word_links
from regard.tasks.translation.heads import best_head
from regard.tasks.translation.start import resume_settings, search_tables, start_model
from regard.text.subwords import PAD
from regard.text.wordpiece import Cutter
from regard.train import Outcome, Progress, Ranks, sequence_loss

__all__ = [
    "WORK",
    "Data",
    "Settings",
    "TranslationObjective",
    "TranslationTask",
    "train",
]


class TranslationObjective(Module):
    """The loss of a batch: label-smoothed cross-entropy, with R-Drop over two passes at once, and guided alignment."""

    def __init__(
        self,
        model: Any,
        *,
        smoothing: float,
        rdrop: float,
        guide: Guide | None = None,
        dtype: torch.dtype | None = None,
        compile: bool = False,
    ) -> None:
        super().__init__()
        if getattr(model, "output_bias", None) is not None:
            raise ValueError("[model]: output_bias is for models that come from elsewhere; training does without it")
        self.model, self.smoothing, self.rdrop, self.guide, self.dtype = model, smoothing, rdrop, guide, dtype
        self.features = torch.compile(model.features, dynamic=True) if compile else model.features

    def forward(
        self, source: Tensor, lengths: Tensor, target_in: Tensor, target_out: Tensor, linked: Tensor | None = None
    ) -> Tensor:
        """Loss and negative log-likelihood, summed over the targets: [2]; with a guide also its loss: [3].

        ``linked`` [N, T, S] is then needed: which source subwords belong to each row of the target.
        """
        passes = 2 if self.rdrop and self.training else 1
        if passes > 1:
            source, lengths, target_in = (torch.cat((x, x)) for x in (source, lengths, target_in))
        with autocast(source.device, self.dtype):
            options = {} if self.guide is None else {"guided": (self.guide.layer, self.guide.head)}
            features = self.features(source, target_in, source_lengths=lengths, **options)
            log_weights = None
            if self.guide is not None:
                features, log_weights = features
            rows, targets = features.flatten(0, 1), target_out.flatten()
            if rows.device.type == "cpu":  # on a GPU counting them would be waited for
                rows, targets = without_padding(rows, targets, passes)
            rdrop = self.rdrop if passes > 1 else None
            sums = sequence_loss(
                rows, self.model.output_weight, targets, pad_id=PAD, smoothing=self.smoothing, rdrop=rdrop
            )
        if self.guide is None or log_weights is None or linked is None:
            return sums
        guided = guided_loss(log_weights, linked)
        return torch.stack((sums[0] + self.guide.weight * guided, sums[1], guided.detach()))


class TranslationTask(PairTask):
    """The task, as :func:`regard.train.fit` wants it."""

    def __init__(
        self,
        model: Any,
        corpus: Corpus,
        valid: Corpus | None,
        fitted: Fitted,
        device: torch.device,
        bleu: bool,
        links: WordLinks | None = None,
    ) -> None:
        super().__init__(model, corpus, valid, fitted, device)
        s, self.links = fitted.training, links
        self.measured = s.bleu_sentences if bleu else 0
        guide = None if links is None else Guide.of(s, fitted.model)
        self.sums = ("loss", "nll") if guide is None else ("loss", "nll", "guided")
        options: dict[str, Any] = {"dtype": self.dtype, "compile": s.compile, "guide": guide}
        self.objective = TranslationObjective(model, smoothing=s.smoothing, rdrop=s.rdrop, **options)

    def taken(self, batch: Batch) -> list[Tensor]:
        return super().taken(batch) + ([] if self.links is None else [self.links.of(batch)])

    def plain(self, model: Any) -> nn.Module:
        return TranslationObjective(model, smoothing=0.0, rdrop=0.0, dtype=self.dtype)

    def measures(self, model: Any) -> dict[str, float]:
        if not self.measured:
            return {}
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF

        outputs, references = self.decoded(model)
        bleu = BLEU(tokenize=self.settings.bleu_tokenize, force=True).corpus_score(outputs, [references]).score
        return {"bleu": bleu, "chrf": CHRF().corpus_score(outputs, [references]).score}


def check_tokenizer(name: str) -> None:
    """Before training, and not when it is first validated."""
    from sacrebleu.metrics.bleu import BLEU

    if name not in BLEU.TOKENIZERS:
        known = ", ".join(sorted(BLEU.TOKENIZERS))
        raise ValueError(f"[training]: bleu_tokenize must be one of {known}, got {name!r}")


def check_positions(model: Any, *corpora: Corpus) -> None:
    """Before training, and not at the first line that has more subwords than the model has positions."""
    longest = max(int(lengths.max()) for corpus in corpora for lengths in corpus.lengths)
    if model.max_length is not None and longest >= model.max_length:
        raise ValueError(
            f"[model]: max_length is {model.max_length}, and a line has {longest} subwords and an end; "
            f"leave such lines out: --set data.max_tokens={model.max_length - 1}"
        )


class _Translation(PairWork[Settings]):
    name = "translation"
    about = "Train a translation model from pairs of lines."
    settings = Settings
    laptop_quality = (
        "expect the gist of sentences similar to the training data, and errors in many long ones: with 8,000 captions "
        "it had BLEU 42 on other captions"
    )
    files = (
        ("source", "source lines, or both sides in a .tsv or .jsonl; any file may be gzipped"),
        ("target", "target lines"),
        ("valid_source", "source lines for validation, or both sides"),
        ("valid_target", "target lines for validation"),
    )
    examples = """\
  regard train --source train.en --target train.fr --valid-source val.en --valid-target val.fr --out model/
  regard train --preset laptop --source pairs.tsv --out model/
  regard train --config recipe.toml --out model/ --updates 20000 --seed 2
  regard train ... --out rnn/ --kind rnn --score additive
  regard train ... --out model/ --set model.self_score=relative --set training.rdrop=5
  regard train --start model/ --source our.en --target our.fr --out ours/      # fine-tunes it on other pairs
  torchrun --nproc-per-node 4 -m regard train ... --out model/"""

    def fitted(self, settings: Settings, pairs: int, on_gpu: bool, kept: Mapping[str, Any] | None) -> Fitted:
        if name := settings.training.get("start"):
            settings = resume_settings(settings, start_model(name, self.name), pairs)
        return super().fitted(settings, pairs, on_gpu, kept)

    def learn(self, fitted: Fitted, report: Progress) -> Cutter:
        name = fitted.training.start
        return super().learn(fitted, report) if name is None else start_model(name, self.name).subwords

    def model(self, fitted: Fitted, subwords: Any) -> Any:
        model = super().model(fitted, subwords)
        if name := fitted.training.start:
            model.load_state_dict(start_model(name, self.name).model.state_dict())
        return model

    def task(self, model: Any, fitted: Fitted, subwords: Any, ranks: Ranks, report: Progress) -> TranslationTask:
        guide = Guide.of(fitted.training, fitted.model)
        corpus, valid = self.corpora(fitted, subwords, report)
        check_positions(model, corpus, *([] if valid is None else [valid]))
        bleu = measured(fitted.training.bleu, "sacrebleu", valid, report)
        if bleu:
            check_tokenizer(fitted.training.bleu_tokenize)
        links = None if guide is None else word_links(corpus, guide, fitted.data.cache, ranks.device, report)
        return TranslationTask(model, corpus, valid, fitted, ranks.device, bleu, links)

    def looked(self, model: Any, task: Any, report: Progress) -> dict[str, Any]:
        """[align], where neither a guide nor the model that was begun with has one."""
        start = task.settings.start
        known = task.links is not None or (start is not None and "align" in start_model(start, self.name).settings)
        if known or not (found := best_head(model, task.corpus)):
            return {}
        where = f"head {found.table['head']}" if "head" in found.table else "the mean of its heads"
        report.say(
            f"word alignments are read from decoder layer {found.table['layer']}, {where}: "
            f"they agree with {found.agreement:.0%} of the links found by counting"
        )
        return {"align": found.table}

    def finished(self, tables: Mapping[str, Any]) -> dict[str, Any]:
        """With [align] where a head was guided: that is the one to read alignments from."""
        training = self.settings.training_table.from_table(tables["training"])
        guide = Guide.of(training, tables["model"])
        before = {} if training.start is None else search_tables(start_model(training.start, self.name))
        return {**super().finished(tables), **before, **({} if guide is None else {"align": guide.table()})}

    def card(self, tables: Mapping[str, Any], outcome: Outcome, **about: Any) -> str:
        words = self.words
        if start := tables["training"].get("start"):
            origin = f"Training started with the weights of `{start}`. "
            words = words._replace(origin=origin, licensed="these texts and weights")
        return model_card(tables, outcome, words=words, **about)


WORK = _Translation()
train = partial(run.train, WORK)
