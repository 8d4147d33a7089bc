"""Word alignment by counting, from pairs of texts alone: IBM model 2 with a diagonal prior, both directions at once.

Each target word f_j, j = 1 … m, is made by one source word e_i, i = 1 … n, or by none, as fast_align has it (Dyer,
Chahuneau and Smith 2013, https://aclanthology.org/N13-1073):

    p(f_j, a_j = i) = δ(a_j = i) t(f_j | e_i)        δ(none) = p₀,   δ(i) = (1 − p₀) exp(−λ |i/n − j/m|) / Z_j

and each source word likewise by a target word. t and the tension λ are learned by EM, t with a Dirichlet prior α:
t(f|e) = exp(ψ(c_ef + α) − ψ(Σ_f' (c_ef' + α))). From the second turn on the two directions count what they agree on,
the product of their posteriors (Liang, Taskar and Klein 2006, https://aclanthology.org/N06-1014); what is left of a
word is of none. At the end each tells its own best links, and :func:`regard.align.symmetrize` makes one of both.

Everything is a table of numbers in PyTorch, on a GPU if there is one. Pairs of the same n and m stand together, so that
the cells of P pairs are [P, m, n]; expected counts are added up as whole numbers of 2⁻³², which gives the same sums in
any order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.align.link import Links
from regard.align.symmetrization import Method, symmetrize
from regard.common.ragged import Integers, Ragged
from regard.data import Corpus

__all__ = ["Model", "align", "align_words", "best", "learn", "links_of", "words_of"]

Say = Callable[[str], None]

NONE, ALPHA, TENSION = 0.08, 0.01, 4.0  # p₀, α, and λ at the start
TENSIONS = (0.1, 6.0)  # short sentences alone would drive λ on and on, and then nothing may cross (fast_align: 14)
LEAST = 1e-12  # of t: what was never seen together
ALONE = 1  # turns before the directions agree
CELLS = 1 << 27  # at most so many are learned from: some 200,000 pairs of 25 words
BLOCK = {"cpu": 1 << 20, "cuda": 1 << 24}  # cells at a time
ONE = float(1 << 32)  # a count of 1
SAMPLE = 1 << 12  # target words that λ is fitted on


class Model(NamedTuple):
    """What was learned: t of every e and f that were seen in one pair, of words of none, and λ.

    ``keys`` are e · V + f in ascending order, with V the ``vocabulary``. The others are pairs, for f given e and for e
    given f: ``t`` by key, ``none`` by word.
    """

    keys: Tensor
    t: tuple[Tensor, Tensor]
    none: tuple[Tensor, Tensor]
    tension: float
    vocabulary: int

    def look_up(self, keys: Tensor) -> list[Tensor]:
        """t of any cells, in both directions."""
        if not len(self.keys):
            return [torch.full(keys.shape, LEAST, device=keys.device)] * 2
        at = torch.searchsorted(self.keys, keys).clamp_(max=len(self.keys) - 1)
        known = self.keys[at] == keys
        return [torch.where(known, t[at], LEAST) for t in self.t]


class _Block(NamedTuple):
    """P pairs of n source words and m target words."""

    source: Tensor  # [P, n]
    target: Tensor  # [P, m]
    rows: Integers  # [P]

    def keys(self, vocabulary: int) -> Tensor:
        """[P, m, n]."""
        return self.source[:, None, :] * vocabulary + self.target[:, :, None]

    def apart(self) -> Tensor:
        """|i/n − j/m|, [m, n]."""
        (m, n), device = (self.target.shape[1], self.source.shape[1]), self.source.device
        i, j = torch.arange(1, n + 1, device=device) / n, torch.arange(1, m + 1, device=device) / m
        return (i - j[:, None]).abs()


class _Posteriors(NamedTuple):
    """Of one direction: p of every cell [P, m, n] and of none, [P, m] or [P, n], and p(f) of what is made."""

    some: Tensor
    none: Tensor
    total: Tensor


def _posteriors(block: _Block, t: Sequence[Tensor], none: Sequence[Tensor], tension: float) -> list[_Posteriors]:
    """Of a target word over the source, and of a source word over the target."""
    found = []
    for dim, words in ((2, block.target), (1, block.source)):
        prior = (1 - NONE) * (-tension * block.apart()).softmax(dim - 1)
        some, left = prior * t[2 - dim], NONE * none[2 - dim][words]
        total = some.sum(dim) + left
        found.append(_Posteriors(some / total.unsqueeze(dim), left / total, total))
    return found


# --- learning ---


def learn(
    source: Ragged,
    target: Ragged,
    vocabulary: int,
    *,
    iterations: int = 5,
    cells: int = CELLS,
    device: torch.device | str = "cpu",
    say: Say | None = None,
) -> Model:
    """t and λ from rows of words, numbered from 1 to ``vocabulary`` − 1 on both sides.

    If the pairs have more than so many ``cells``, source words times target words, some of the longer are left out.
    """
    rows = _sampled(source, target, cells)
    blocks = list(_blocks(source, target, rows, torch.device(device)))
    keys, where = _table(blocks, vocabulary, torch.device(device))
    one, every = torch.ones(len(keys), device=device), torch.ones(vocabulary, device=device)
    model = Model(keys, (one, one), (every, every), TENSION, vocabulary)
    distances = _distances(source, target, rows)
    words = sum(block.target.numel() for block in blocks)
    for iteration in range(iterations if blocks else 0):
        counts, none, apart, surprise = _expected(model, blocks, where, agree=iteration >= ALONE)
        if say:
            # in the first turn t is not normalised
            known = f", {surprise / words / np.log(2):.2f} bits each" if iteration else ""
            say(f"word alignment: {iteration + 1} of {iterations}, {words:,} words{known}, tension {model.tension:.2f}")
        t, left = _maximised(keys, counts, none, vocabulary)
        model = Model(keys, t, left, _tension(distances, apart, model.tension), vocabulary)
    return model


Counts = tuple[Tensor, Tensor]


def _expected(
    model: Model, blocks: Sequence[_Block], where: Sequence[Tensor], *, agree: bool
) -> tuple[Counts, Counts, float, float]:
    """Counts of entries and of words of none, in both directions; the mean |i/n − j/m| of links; −Σ log p(f)."""
    counts, none = ([torch.zeros_like(x, dtype=torch.int64) for x in pair] for pair in (model.t, model.none))
    sums = torch.zeros(3, dtype=torch.float64, device=model.keys.device)
    for block, at in zip(blocks, where, strict=True):
        cells = at.flatten()
        t = [x.index_select(0, cells).view(at.shape) for x in model.t]
        both = _posteriors(block, t, model.none, model.tension)
        some, left = [way.some for way in both], [way.none for way in both]
        if agree:
            some = [some[0] * some[1]]
            left = [(1 - some[0].sum(dim)).clamp(0, 1) for dim in (2, 1)]
        for to, p in zip(counts, some, strict=False):
            to.index_add_(0, cells, _whole(p))
        for to, p, words in zip(none, left, (block.target, block.source), strict=True):
            to.index_add_(0, words.flatten(), _whole(p))
        p = some[0].double()
        sums += torch.stack(((p * block.apart()).sum(), p.sum(), -both[0].total.double().log().sum()))
    apart, linked, surprise = sums.tolist()
    return (counts[0], counts[0 if agree else 1]), (none[0], none[1]), apart / max(linked, 1e-9), surprise


def _whole(p: Tensor) -> Tensor:
    return (p * ONE).round().long().flatten()


def _maximised(keys: Tensor, counts: Counts, none: Counts, vocabulary: int) -> tuple[Counts, Counts]:
    """t, and t of none, in both directions."""
    e = torch.div(keys, vocabulary, rounding_mode="floor")
    f = keys - e * vocabulary
    t, left = [], []
    for count, alone, given, made in ((counts[0], none[0], e, f), (counts[1], none[1], f, e)):
        total = torch.zeros(vocabulary, dtype=torch.int64, device=keys.device).index_add_(0, given, count)
        entries = torch.bincount(given, minlength=vocabulary)
        smoothed = (total.double() / ONE + ALPHA * entries).clamp(min=ALPHA)
        t.append(_smoothed(count, smoothed[given]))
        kinds = len(made.unique())
        left.append(_smoothed(alone, alone.sum().double() / ONE + ALPHA * kinds))
    return (t[0], t[1]), (left[0], left[1])


def _smoothed(count: Tensor, total: Tensor) -> Tensor:
    """exp(ψ(c + α) − ψ(total))."""
    return ((count.double() / ONE + ALPHA).digamma() - total.digamma()).exp().float().clamp(min=LEAST)


def _distances(source: Ragged, target: Ragged, rows: Integers) -> Tensor:
    """|i/n − j/m| of some target words, evenly, and ∞ where i > n: [words, longest n]."""
    n, m = source.lengths[rows], target.lengths[rows]
    rows, n, m = (x[(n > 0) & (m > 0)] for x in (rows, n, m))
    ends = np.cumsum(m)
    word = np.unique(np.linspace(0, max(ends[-1] - 1, 0), SAMPLE).astype(np.int64)) if len(ends) else ends
    pair = np.searchsorted(ends, word, side="right")
    at = torch.from_numpy((word - (ends - m)[pair] + 1) / m[pair])
    i = torch.arange(1, int(n[pair].max(initial=0)) + 1, dtype=torch.float64)
    own = torch.from_numpy(n[pair])[:, None]
    return (i / own - at[:, None]).abs().masked_fill(i > own, torch.inf)


def _tension(distances: Tensor, apart: float, tension: float) -> float:
    """The λ under which a distance is expected to be ``apart``, by Newton's method."""
    known = distances.masked_fill(distances.isinf(), 0.0)
    for _ in range(8):
        p = (-tension * distances).softmax(-1)
        mean = (p * known).sum(-1)
        spread = float(((p * known.square()).sum(-1) - mean.square()).sum())
        if spread <= 0:
            return tension  # sentences of one word say nothing
        tension += float((mean - apart).sum()) / spread
        tension = min(max(tension, TENSIONS[0]), TENSIONS[1])
    return tension


# --- the best alignment ---


def best(model: Model, source: Ragged, target: Ragged) -> tuple[Integers, Integers]:
    """For each target word of all rows, one after another, the source word that it is of, from 0; −1 for none.

    And for each source word the target word.
    """
    found = tuple(np.full(len(side.values), -1, np.int32) for side in (target, source))
    for block in _blocks(source, target, np.arange(source.rows), model.keys.device):
        both = _posteriors(block, model.look_up(block.keys(model.vocabulary)), model.none, model.tension)
        for out, way, side, dim in zip(found, both, (target, source), (2, 1), strict=True):
            p, which = way.some.max(dim)
            words = torch.where(p > way.none, which, -1).to(torch.int32).cpu().numpy()
            out[side.offsets[block.rows][:, None] + np.arange(words.shape[1])] = words
    return found[0], found[1]


def align(
    source: Ragged,
    target: Ragged,
    vocabulary: int,
    *,
    method: Method = "grow-diag-final-and",
    iterations: int = 5,
    cells: int = CELLS,
    device: torch.device | str = "cpu",
    say: Say | None = None,
) -> Ragged:
    """Links of each pair by both directions: source word · 2¹⁶ + target word, words counted from 0."""
    if source.rows != target.rows:
        raise ValueError(f"expected as many sources as targets, got {source.rows} and {target.rows}")
    longest = int(max(source.lengths.max(initial=0), target.lengths.max(initial=0)))
    if longest > 1 << 15:
        raise ValueError(f"expected at most {1 << 15:,} words a line, got {longest:,}; leave out such pairs")
    model = learn(source, target, vocabulary, iterations=iterations, cells=cells, device=device, say=say)
    forward, backward = best(model, source, target)
    del model
    if torch.device(device).type == "cuda":
        torch.cuda.empty_cache()
    if say:
        say(f"word alignment: joining both directions of {source.rows:,} pairs")
    return _joined(source, target, forward, backward, method)


def _joined(source: Ragged, target: Ragged, forward: Integers, backward: Integers, method: Method) -> Ragged:
    """Both directions made one, pair by pair."""
    rows: list[Sequence[int]] = []
    for row in range(source.rows):
        a = forward[target.offsets[row] : target.offsets[row + 1]].tolist()
        b = backward[source.offsets[row] : source.offsets[row + 1]].tolist()
        one = [(i, j) for j, i in enumerate(a) if i >= 0]
        other = [(i, j) for i, j in enumerate(b) if j >= 0]
        rows.append(sorted((i << 16) + j for i, j in symmetrize(one, other, method)))
    return Ragged.of(rows, np.int32)


# --- from texts ---


def words_of(corpus: Corpus) -> tuple[Ragged, Ragged, int]:
    """Both sides of a corpus in words, its chunks without capitals and outer space, and one more than there are."""
    numbers: dict[str, int] = {}
    texts = (corpus.subwords.decode(tokens).strip().lower() for tokens in corpus.table.lists())
    of = np.array([numbers.setdefault(text, len(numbers) + 1) for text in texts], np.int32)
    source, target = (Ragged(of[side.values], side.offsets) for side in corpus.sides)
    return source, target, len(numbers) + 1


def align_words(
    pairs: Iterable[tuple[Sequence[str], Sequence[str]]],
    *,
    method: Method = "grow-diag-final-and",
    device: torch.device | str = "cpu",
    say: Say | None = None,
) -> list[Links]:
    """Links of each pair of sentences, given as words; capitals make no difference.

    >>> texts = [("the cat", "le chat"), ("the dog", "le chien"), ("a cat", "un chat"), ("a dog", "un chien")]
    >>> sorted(align_words((a.split(), b.split()) for a, b in texts)[1])
    [(0, 0), (1, 1)]
    """
    numbers: dict[str, int] = {}
    lines: tuple[list[list[int]], list[list[int]]] = ([], [])
    for pair in pairs:
        for line, words in zip(lines, pair, strict=True):
            line.append([numbers.setdefault(word.lower(), len(numbers) + 1) for word in words])
    source, target = (Ragged.of(side, np.int64) for side in lines)
    return links_of(align(source, target, len(numbers) + 1, method=method, device=device, say=say))


def links_of(found: Ragged) -> list[Links]:
    """What :func:`align` found, as sets of (source word, target word)."""
    return [frozenset((int(x) >> 16, int(x) & 0xFFFF) for x in row) for row in found.lists()]


# --- blocks of cells, and the table of their entries ---


def _sampled(source: Ragged, target: Ragged, cells: int) -> Integers:
    """All pairs; or, of each with k cells, a share of min(1, c/k), evenly: short ones tell more for what they cost."""
    own = np.maximum(source.lengths.astype(np.int64) * target.lengths, 1)
    if own.sum() <= cells:
        return np.arange(source.rows)
    low, high = 0.0, float(own.max())
    for _ in range(50):
        c = (low + high) / 2
        low, high = (c, high) if np.minimum(own, c).sum() <= cells else (low, c)
    return np.flatnonzero(np.diff(np.floor(np.cumsum(np.minimum(1.0, low / own)) + 1e-9), prepend=0))


def _blocks(source: Ragged, target: Ragged, rows: Integers, device: torch.device) -> Iterator[_Block]:
    """These pairs by the lengths of both sides, so many cells at a time; empty ones are left out."""
    n, m = source.lengths[rows], target.lengths[rows]
    rows, n, m = (x[(n > 0) & (m > 0)] for x in (rows, n, m))
    order = np.lexsort((m, n))
    rows, n, m = rows[order], n[order], m[order]
    # a new block where a length changes, or where one more is full
    changes = (np.diff(n, prepend=-1) != 0) | (np.diff(m, prepend=-1) != 0)
    full = np.diff(np.cumsum(n * m) // BLOCK.get(device.type, BLOCK["cpu"]), prepend=-1) != 0
    for some in np.split(rows, np.flatnonzero(changes | full)[1:]) if len(rows) else []:
        sides = (torch.from_numpy(side.take(some).values.astype(np.int64)) for side in (source, target))
        e, f = (side.view(len(some), -1).to(device) for side in sides)
        yield _Block(e, f, some)


def _table(blocks: Sequence[_Block], vocabulary: int, device: torch.device) -> tuple[Tensor, list[Tensor]]:
    """All entries, ascending, and where the cells of each block stand among them, in 32 bits."""
    keys = torch.zeros(0, dtype=torch.int64, device=device)
    waiting, count = [keys], 0
    for block in blocks:
        waiting.append(block.keys(vocabulary).unique())
        count += len(waiting[-1])
        if count > max(1 << 24, len(keys)):
            keys = torch.cat((keys, *waiting)).unique()
            waiting, count = [], 0
    keys = torch.cat((keys, *waiting)).unique()
    return keys, [torch.searchsorted(keys, block.keys(vocabulary), out_int32=True) for block in blocks]
