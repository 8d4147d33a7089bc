"""Translation: train an encoder-decoder on pairs of lines, from files to a model folder.

    regard train --source train.en --target train.fr \\
        --valid-source val.en --valid-target val.fr --out model/

Started again after it was killed, the same command goes on where the last checkpoint stands. Under
``torchrun --nproc-per-node N`` it trains on N processes.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from regard.data import Corpus
from regard.tasks import _command, _run
from regard.tasks._pairs import PairTask, PairWork, autocast, measured, without_padding
from regard.tasks._pairs import filled as _filled
from regard.tasks._pairs import tensors as _tensors
from regard.tasks._settings import Data, Fitted, Settings
from regard.text import PAD
from regard.train import Progress, Ranks, sequence_loss

__all__ = [
    "FLAGS",
    "WORK",
    "Data",
    "Objective",
    "Settings",
    "Translation",
    "_filled",
    "_tensors",
    "main",
    "parse",
    "train",
]


class Objective(nn.Module):
    """The loss of a batch: label-smoothed cross-entropy, with R-Drop over two passes at once."""

    def __init__(
        self,
        model: Any,
        *,
        smoothing: float,
        rdrop: float,
        dtype: torch.dtype | None = None,
        compile: bool = False,
    ) -> None:
        super().__init__()
        if getattr(model, "output_bias", None) is not None:
            raise ValueError("[model]: output_bias is for models that come from elsewhere; training does without it")
        self.model, self.smoothing, self.rdrop, self.dtype = model, smoothing, rdrop, dtype
        self.features = torch.compile(model.features, dynamic=True) if compile else model.features

    def forward(self, source: Tensor, lengths: Tensor, target_in: Tensor, target_out: Tensor) -> Tensor:
        """Loss and negative log-likelihood, summed over the targets: [2]."""
        passes = 2 if self.rdrop and self.training else 1
        if passes > 1:
            source, lengths, target_in = (torch.cat((x, x)) for x in (source, lengths, target_in))
        with autocast(source.device, self.dtype):
            features = self.features(source, target_in, source_lengths=lengths)
            rows, targets = features.flatten(0, 1), target_out.flatten()
            if rows.device.type == "cpu":  # on a GPU counting them would be waited for
                rows, targets = without_padding(rows, targets, passes)
            rdrop = self.rdrop if passes > 1 else None
            return sequence_loss(
                rows, self.model.output_weight, targets, pad_id=PAD, smoothing=self.smoothing, rdrop=rdrop
            )


class Translation(PairTask):
    """The task, as :func:`regard.train.fit` wants it."""

    sums = ("loss", "nll")

    def __init__(
        self, model: Any, corpus: Corpus, valid: Corpus | None, fitted: Fitted, device: torch.device, bleu: bool
    ) -> None:
        super().__init__(model, corpus, valid, fitted, device)
        s, self.bleu = fitted.training, bleu
        self.objective = Objective(model, smoothing=s.smoothing, rdrop=s.rdrop, dtype=self.dtype, compile=s.compile)

    def plain(self, model: Any) -> nn.Module:
        return Objective(model, smoothing=0.0, rdrop=0.0, dtype=self.dtype)

    def measures(self, model: Any) -> dict[str, float]:
        if not self.bleu:
            return {}
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF

        outputs, references = self.decoded(model, self.settings.bleu_sentences)
        bleu = BLEU(tokenize=self.settings.bleu_tokenize, force=True).corpus_score(outputs, [references]).score
        return {"bleu": bleu, "chrf": CHRF().corpus_score(outputs, [references]).score}


class _Translation(PairWork[Settings]):
    name = "translation"
    about = "Train a translation model from pairs of lines."
    settings = Settings
    files = (
        ("source", "source lines, perhaps gzipped"),
        ("target", "target lines, perhaps gzipped"),
        ("valid_source", "valid source lines, perhaps gzipped"),
        ("valid_target", "valid target lines, perhaps gzipped"),
    )
    examples = """\
  regard train --source train.en --target train.fr --valid-source val.en --valid-target val.fr --out model/
  regard train --config recipe.toml --out model/ --updates 20000 --seed 2
  regard train ... --out rnn/ --kind rnn --score additive
  regard train ... --out model/ --set model.self_score=relative --set training.rdrop=5
  torchrun --nproc-per-node 4 -m regard train ... --out model/"""

    def task(self, model: Any, fitted: Fitted, subwords: Any, ranks: Ranks, report: Progress) -> Translation:
        corpus, valid = self.corpora(fitted, subwords, report)
        bleu = measured(fitted.training.bleu, "sacrebleu", valid, report)
        return Translation(model, corpus, valid, fitted, ranks.device, bleu)


WORK = _Translation()
FLAGS = _command.flags(WORK)
parse, train, main = partial(_command.parse, WORK), partial(_run.train, WORK), partial(_command.run, WORK)

if __name__ == "__main__":
    sys.exit(main())
