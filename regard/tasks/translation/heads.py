"""Where a trained model's word alignments are read: the head that agrees best with links found by counting.

Which head looks at the word that is being translated, and whether it does so when the word is predicted or when it has
just been read, differs from model to model. The training pairs alone give approximate links to compare with
(:mod:`regard.align.statistical`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.align.attention import word_matrix
from regard.align.link import Links
from regard.align.statistical import align_words
from regard.data import Corpus
from regard.decode.engine import Seq2Seq
from regard.models.folder import Align
from regard.text.subwords import BOS, EOS, Encoded, Subwords

FEWEST = 1000  # pairs: of fewer, counting tells too little
MOST = 20_000  # pairs that are counted
PROBED = 200  # of them, at which the model looks
LONGEST = 100  # subwords of a side; longer pairs are left out


class AlignmentHead(NamedTuple):
    """[align] of config.toml, and the share of the links that agree with it."""

    table: Align
    agreement: float


@torch.no_grad()
def best_head(model: Seq2Seq, corpus: Corpus) -> AlignmentHead | None:
    """The layer, head (or the mean of all) and shift whose strongest weights are most often where the links are."""
    longest = min(LONGEST, (model.max_length or LONGEST + 1) - 1)  # with <s> or </s> it is one more
    rows = np.flatnonzero(np.maximum(*corpus.lengths) <= longest)
    if len(rows) < FEWEST or not isinstance(corpus.subwords, Subwords):
        return None
    texts = [corpus.text(int(rows[k])) for k in _spread(len(rows), MOST)]
    linked = align_words((s.split(), t.split()) for s, t in texts)
    hits, total = [], 0
    for k in _spread(len(texts), PROBED):
        source, target = corpus.subwords.encode_batch(texts[k])
        links = _cut(linked[k], source, target)
        if links:
            hits.append(_hits(model, source, target, links))
            total += len({j for _, j in links})
    return _table(torch.stack(hits).sum(0), total) if hits else None


def _spread(count: int, most: int) -> list[int]:
    """At most so many of the numbers below ``count``, evenly."""
    return [int(x) for x in np.linspace(0, count - 1, min(count, most))]


def _cut(links: Links, source: Encoded, target: Encoded) -> Links:
    """Those between words that have subwords: two words may share one, where their border is none to the subwords."""
    return frozenset((i, j) for i, j in links if i in source.words and j in target.words)


def _hits(model: Seq2Seq, source: Encoded, target: Encoded, links: Links) -> Tensor:
    """How many target words look most at one they are linked to, [shift, layers, heads + 1], the mean of heads last."""
    given = torch.tensor([[*source.ids, EOS]]), torch.tensor([[BOS, *target.ids]])
    weights = model.features(*given, attention=True)[1][0].float()  # [layers, heads, T, S]
    weights = torch.cat((weights, weights.mean(1, keepdim=True)), 1)
    i, j = torch.tensor(sorted(links)).T
    right = torch.zeros(max(target.words) + 1, max(source.words) + 1, dtype=torch.bool)
    right[j, i] = True
    found = []
    for shift in (0, 1):
        words = word_matrix(
            weights[..., shift : shift + len(target.ids), : len(source.ids)], source.words, target.words
        )
        found.append(right[torch.arange(len(right)), words.argmax(-1)].sum(-1))
    return torch.stack(found)


def _table(hits: Tensor, total: int) -> AlignmentHead:
    shift, layer, head = (int(x) for x in np.unravel_index(int(hits.argmax()), tuple(hits.shape)))
    table: Align = {"layer": layer, "shift": bool(shift)}
    if head < hits.shape[-1] - 1:
        table["head"] = head
    return AlignmentHead(table, float(hits.max()) / total)
