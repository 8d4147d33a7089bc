"""Translation: train an encoder-decoder on pairs of lines, from files to a model folder.

    regard train --source train.en --target train.fr \\
        --valid-source val.en --valid-target val.fr --out model/

Run again after it was killed, the same command resumes from the last checkpoint. Under
``torchrun --nproc-per-node N`` it trains on N processes.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from regard.common.module import Module
from regard.data import Batch, Corpus
from regard.decode.engine import Seq2Seq
from regard.tasks.base import run
from regard.tasks.base.card import CardText
from regard.tasks.base.pairs import PairTask, PairWork, autocast, measured, without_padding
from regard.tasks.base.settings import Data, Fitted, Settings, Training
from regard.tasks.translation.guidance import Guide, WordLinks, guided_loss, word_links
from regard.tasks.translation.heads import best_head
from regard.tasks.translation.start import resume_settings, search_tables, start_model
from regard.text.subwords import PAD
from regard.text.wordpiece import Cutter
from regard.train import Progress, Ranks, Task, sequence_loss
from regard.train.settings import Values

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
        model: Seq2Seq,
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
            guided = None if self.guide is None else (self.guide.layer, self.guide.head)
            out = self.features(source, target_in, source_lengths=lengths, guided=guided)
            features, log_weights = out if isinstance(out, tuple) else (out, None)
            rows, targets = features.flatten(0, 1), target_out.flatten()
            if rows.device.type == "cpu":  # on a GPU counting them would be waited for
                rows, targets = without_padding(rows, targets, passes)
            rdrop = self.rdrop if passes > 1 else None
            sums = sequence_loss(
                rows, self.model.output_weight, targets, pad_id=PAD, smoothing=self.smoothing, rdrop=rdrop
            )
        if self.guide is None or log_weights is None or linked is None:
            return sums
        links_loss = guided_loss(log_weights, linked)
        return torch.stack((sums[0] + self.guide.weight * links_loss, sums[1], links_loss.detach()))


class TranslationTask(PairTask[Seq2Seq]):
    """The task, as :func:`regard.train.fit` wants it."""

    settings: Training

    def __init__(
        self,
        model: Seq2Seq,
        corpus: Corpus,
        valid: Corpus | None,
        fitted: Fitted,
        device: torch.device,
        bleu: bool,
        links: WordLinks | None = None,
    ) -> None:
        super().__init__(model, corpus, valid, fitted, device)
        s, self.links = self.settings, links
        self.measured = s.bleu_sentences if bleu else 0
        guide = None if links is None else Guide.of(s, fitted.model)
        self.sums = ("loss", "nll") if guide is None else ("loss", "nll", "guided")
        self.objective = TranslationObjective(
            model, smoothing=s.smoothing, rdrop=s.rdrop, guide=guide, dtype=self.dtype, compile=s.compile
        )

    def inputs(self, batch: Batch) -> list[Tensor]:
        return super().inputs(batch) + ([] if self.links is None else [self.links.of(batch)])

    def plain(self, model: Seq2Seq) -> nn.Module:
        return TranslationObjective(model, smoothing=0.0, rdrop=0.0, dtype=self.dtype)

    def measures(self, model: Seq2Seq) -> dict[str, float]:
        if not self.measured:
            return {}
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF

        outputs, references = self.greedy_outputs(model)
        bleu = BLEU(tokenize=self.settings.bleu_tokenize, force=True).corpus_score(outputs, [references]).score
        return {"bleu": bleu, "chrf": CHRF().corpus_score(outputs, [references]).score}


def check_tokenizer(name: str) -> None:
    """Refuses an unknown tokenizer before training, and not at the first validation."""
    from sacrebleu.metrics.bleu import BLEU

    if name not in BLEU.TOKENIZERS:
        known = ", ".join(sorted(BLEU.TOKENIZERS))
        raise ValueError(f"[training]: bleu_tokenize must be one of {known}, got {name!r}")


def check_positions(model: Seq2Seq, *corpora: Corpus) -> None:
    """Refuses lines with more subwords than the model has positions before training, and not at the first of them."""
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

    def fit_settings(self, settings: Settings, pairs: int, on_gpu: bool, kept: Values | None) -> Fitted:
        if name := settings.training.get("start"):
            settings = resume_settings(settings, start_model(name, self.name), pairs)
        return super().fit_settings(settings, pairs, on_gpu, kept)

    def learn(self, fitted: Fitted, report: Progress) -> Cutter:
        name = fitted.training.start
        return super().learn(fitted, report) if name is None else start_model(name, self.name).subwords

    def model(self, fitted: Fitted, subwords: Cutter) -> nn.Module:
        model = super().model(fitted, subwords)
        if name := fitted.training.start:
            model.load_state_dict(start_model(name, self.name).model.state_dict())
        return model

    def task(
        self, model: nn.Module, fitted: Fitted, subwords: Cutter, ranks: Ranks, report: Progress
    ) -> TranslationTask:
        assert isinstance(model, Seq2Seq)
        guide = Guide.of(fitted.training, fitted.model)
        corpus, valid = self.corpora(fitted, subwords, report)
        check_positions(model, corpus, *([] if valid is None else [valid]))
        bleu = measured(fitted.training.bleu, "sacrebleu", valid, report)
        if bleu:
            check_tokenizer(fitted.training.bleu_tokenize)
        links = None if guide is None else word_links(corpus, guide, fitted.data.cache, ranks.device, report)
        return TranslationTask(model, corpus, valid, fitted, ranks.device, bleu, links)

    def inspect(self, model: nn.Module, task: Task, report: Progress) -> Values:
        """[align], where neither a guide nor the model that training started from has one."""
        assert isinstance(model, Seq2Seq) and isinstance(task, TranslationTask)
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

    def config(self, tables: Values) -> Values:
        """With [align] where a head was guided: that is the one to read alignments from."""
        training = Training.from_table(tables["training"])
        guide = Guide.of(training, tables["model"])
        before = {} if training.start is None else search_tables(start_model(training.start, self.name))
        return {**super().config(tables), **before, **({} if guide is None else {"align": guide.table()})}

    def card(self, tables: Values) -> CardText:
        return self.words.start_from(tables["training"].get("start"), "Training")


WORK = _Translation()
train = partial(run.train, WORK)
