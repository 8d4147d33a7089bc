"""Guided alignment: one head of the cross-attention learns the word links that a statistical aligner found.

    loss = −Σ_t Σ_s A_ts log α_ts        A_ts: 1 / (source subwords linked to target subword t) for those, 0 for others

over the target subwords that have a link (Chen et al. 2016, https://arxiv.org/abs/1607.01628, and Garg et al. 2019,
https://arxiv.org/abs/1909.02074). Row t is the one where y_t is the decoder's input, as ``word_weights`` of
:mod:`regard.align` reads it with ``shift``; a recurrent decoder attends before it reads, so there it is the row where
y_t is predicted.

Shapes: N pairs, T target and S source subwords, as in :mod:`regard.data.batches`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from regard.align.statistical import align, words_of
from regard.align.symmetrization import Method
from regard.common.ragged import Integers, Ragged
from regard.data import Batch, Corpus
from regard.files.tensors import read_tensors, write_tensors
from regard.files.whole import Damaged
from regard.models.folder import Align
from regard.tasks.base.settings import Training
from regard.text.subwords import PAD, Subwords
from regard.train import Progress
from regard.train.settings import Values

FORMAT = 1  # of the kept links: another number where the aligner finds others


@dataclass(frozen=True)
class Guide:
    """Which head is guided, how much, whether its row is that of the word read, and how its links are symmetrized."""

    weight: float
    layer: int
    head: int
    shift: bool
    links: Method

    @classmethod
    def of(cls, training: Training, model: Values) -> Guide | None:
        """Of the settings [training] and [model]; None if nothing is guided."""
        if not training.guided:
            return None
        recurrent = model["kind"] == "rnn"
        layers, heads = 1 if recurrent else model["decoder_layers"], model["heads"]
        layer = layers - 1 if training.guided_layer is None else training.guided_layer
        for name, value, count in (("layer", layer, layers), ("head", training.guided_head, heads)):
            if not 0 <= value < count:
                raise ValueError(f"[training]: guided_{name} must be below {count}, the model's {name}s, got {value}")
        return cls(training.guided, layer, training.guided_head, not recurrent, training.guided_links)

    def table(self) -> Align:
        """[align] of config.toml."""
        return {"layer": self.layer, "head": self.head, "shift": self.shift}


def guided_loss(log_weights: Tensor, linked: Tensor) -> Tensor:
    """The loss above, summed over the batch: log α [passes · N, T, S] and links [N, T, S], the mean over the passes."""
    passes = len(log_weights) // len(linked)
    each = log_weights.float().view(passes, *linked.shape)
    rows = each.masked_fill(~linked, 0.0).sum(-1)  # masked, since log α is −inf at padding
    return -(rows / linked.sum(-1).clamp(min=1)).sum() / passes


class WordLinks:
    """The links of a corpus's pairs between chunks, and from them those of a batch between subwords."""

    def __init__(self, corpus: Corpus, links: Ragged, *, shift: bool) -> None:
        self.corpus, self.links, self.shift = corpus, links, shift
        assert isinstance(corpus.subwords, Subwords)
        self._sizes = corpus.subwords.sizes
        ends = np.concatenate([[0], np.cumsum(self._sizes[corpus.table.values])])
        self._chunk_sizes = np.diff(ends[corpus.table.offsets])  # bytes

    def of(self, batch: Batch) -> Tensor:
        """A > 0, as booleans [N, T, S]."""
        rows = batch.rows.numpy()
        out = np.zeros((len(rows), batch.target_in.shape[1], batch.source.shape[1]), bool)
        if (batch.target_out != PAD).any():  # else this rank has nothing to do in this batch
            found = self.links.take(rows)
            pair = np.repeat(np.arange(len(rows)), found.lengths)
            s, width = self._spans(0, rows, batch.source, batch.source_lengths, pair, found.values >> 16)
            t, height = self._spans(1, rows, batch.target_out, batch.target_lengths, pair, found.values & 0xFFFF)
            # every subword of the one word with every one of the other
            many = width * height
            which = np.repeat(np.arange(len(many)), many)
            k = np.arange(len(which)) - np.repeat(np.cumsum(many) - many, many)
            out[pair[which], t[which] + k // width[which] + self.shift, s[which] + k % width[which]] = True
        return torch.from_numpy(out)

    def _spans(
        self, side: int, rows: Integers, tokens: Tensor, lengths: Tensor, pair: Integers, word: Integers
    ) -> tuple[Integers, Integers]:
        """Where the subwords of these words begin in their lines, and how many they are, however they were cut.

        A word has the same bytes however it is cut: so its subwords are found by counting bytes.
        """
        own = (lengths - 1).numpy()  # without </s>
        flat = tokens.numpy()[np.arange(tokens.shape[1]) < own[:, None]]
        chunks = self.corpus.sides[side].take(rows)
        ends = np.cumsum(self._chunk_sizes[chunks.values])
        last = np.searchsorted(np.cumsum(self._sizes[flat]), ends) + 1  # subwords up to the end of each chunk
        first = np.concatenate([[0], last[:-1]])
        at = chunks.offsets[pair] + word
        return first[at] - (np.cumsum(own) - own)[pair], (last - first)[at]


def word_links(corpus: Corpus, guide: Guide, cache: str | None, device: torch.device, report: Progress) -> WordLinks:
    """Aligned now, or as kept in the ``cache`` folder for the same corpus."""
    path = None if cache is None else Path(cache) / f"links-{_fingerprint(corpus, guide.links)}.safetensors"
    found = None if path is None else _read(path)
    if found is None:
        source, target, vocabulary = words_of(corpus)
        found = align(source, target, vocabulary, method=guide.links, device=device, say=report.say)
        if path is not None:
            tensors = {name: torch.from_numpy(values) for name, values in found._asdict().items()}
            write_tensors(path, tensors, {"format": FORMAT})
    report.say(f"{len(found.values):,} word links guide head {guide.head} of decoder layer {guide.layer}")
    return WordLinks(corpus, found, shift=guide.shift)


def _fingerprint(corpus: Corpus, method: str) -> str:
    digest = hashlib.blake2b(f"links {FORMAT} {method} {corpus.subwords.fingerprint}".encode(), digest_size=16)
    for part in (*corpus.sides, corpus.table):
        for values in part:
            digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()


def _read(path: Path) -> Ragged | None:
    """What is kept, or None: a damaged file is made again."""
    try:
        tensors, about = read_tensors(path)
        return Ragged(tensors["values"].numpy(), tensors["offsets"].numpy()) if about["format"] == FORMAT else None
    except (FileNotFoundError, Damaged, KeyError):
        return None
