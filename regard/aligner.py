"""Word alignment by counting, from pairs of texts alone: IBM model 2 with a diagonal prior, as fast_align has it.

Each target word f_j, j = 1 … m, is made by one source word e_i, i = 1 … n, or by none (Dyer, Chahuneau and Smith 2013,
https://aclanthology.org/N13-1073):

    p(f_j, a_j = i) = δ(a_j = i) t(f_j | e_i)        δ(none) = p₀,   δ(i) = (1 − p₀) exp(−λ |i/n − j/m|) / Z_j

t and the tension λ are learned by EM, t with a Dirichlet prior α:  t(f|e) = exp(ψ(c_ef + α) − ψ(Σ_f' (c_ef' + α))).
Two directions are made one by :func:`regard.align.symmetrize`.

Everything is a table of numbers in PyTorch, on a GPU if there is one. Pairs of the same n stand together, so that the
cells of R target words are [R, 1 + n], the first column that of no word; expected counts are added up as whole numbers
of 2⁻³², which gives the same sums in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.align import Links, Method, symmetrize
from regard.bpe import Integers, Ragged
from regard.data import Corpus

__all__ = ["Model", "align", "align_words", "best", "learn", "links_of", "words_of"]

Say = Callable[[str], None]

NONE, ALPHA, TENSION = 0.08, 0.01, 4.0  # p₀, α, and λ at the start
TENSIONS = (0.1, 6.0)  # short sentences alone would drive λ on and on, and then nothing may cross (fast_align: 14)
CELLS = 1 << 27  # at most so many are learned from: some 200,000 pairs of 25 words
BLOCK = {"cpu": 1 << 20, "cuda": 1 << 24}  # cells at a time
ONE = float(1 << 32)  # a count of 1
SAMPLE = 1 << 13  # target words that λ is fitted on


class Model(NamedTuple):
    """What was learned: t(f|e) of every e and f that were seen in one pair, and λ.

    ``keys`` are e · V + f in ascending order, with V the ``vocabulary``; e = 0 is no word.
    """

    keys: Tensor
    t: Tensor
    tension: float
    vocabulary: int

    def look_up(self, keys: Tensor) -> Tensor:
        """t of any cells; of what was never seen together, less than of anything that was."""
        if not len(self.keys):
            return torch.full(keys.shape, 1e-9, device=keys.device)
        at = torch.searchsorted(self.keys, keys).clamp_(max=len(self.keys) - 1)
        return torch.where(self.keys[at] == keys, self.t[at], 1e-9)


class _Block(NamedTuple):
    """R target words of P pairs, all of which have n source words."""

    source: Tensor  # [P, 1 + n], the first column 0
    target: Tensor  # [R]
    pair: Tensor  # [R], which of the P
    at: Tensor  # [R], j / m
    places: Integers  # [R], where these words stand among all target words

    def keys(self, vocabulary: int) -> Tensor:
        """[R, 1 + n]."""
        return self.source[self.pair] * vocabulary + self.target[:, None]

    def apart(self) -> Tensor:
        """|i/n − j/m|, [R, n]."""
        return _apart(self.at, self.source.shape[1] - 1)

    def prior(self, tension: float) -> Tensor:
        """δ, [R, 1 + n]."""
        some = (-tension * self.apart()).softmax(-1) * (1 - NONE)
        return torch.nn.functional.pad(some, (1, 0), value=NONE)


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

    If the pairs have more than so many ``cells``, source words times target words, some of them are left out, evenly.
    """
    blocks = list(_blocks(source, target, _sampled(source, target, cells), torch.device(device)))
    keys, where = _table(blocks, vocabulary)
    t, tension = torch.ones(len(keys), device=device), TENSION
    of_source = torch.div(keys, vocabulary, rounding_mode="floor")
    sample = _sample(blocks)
    for iteration in range(iterations if blocks else 0):
        counts, apart, some, surprise = _expected(blocks, where, t, tension)
        if say:
            words = sum(len(block.target) for block in blocks)
            # in the first turn t is not normalised
            known = f", {surprise / words / np.log(2):.2f} bits a word" if iteration else ""
            say(f"word alignment: {iteration + 1} of {iterations}, {words:,} words{known}, tension {tension:.2f}")
        t = _maximised(counts, of_source, vocabulary)
        tension = _tension(sample, apart / max(some, 1e-9), tension)
    return Model(keys, t, tension, vocabulary)


def _expected(
    blocks: Sequence[_Block], where: Sequence[Tensor], t: Tensor, tension: float
) -> tuple[Tensor, float, float, float]:
    """Counts of every entry, Σ p |i/n − j/m|, Σ p over words that are made by one, and −Σ log p(f)."""
    counts = torch.zeros(len(t), dtype=torch.int64, device=t.device)
    sums = torch.zeros(3, dtype=torch.float64, device=t.device)
    for block, at in zip(blocks, where, strict=True):
        joint = block.prior(tension) * t.index_select(0, at.flatten()).view(at.shape)
        total = joint.sum(-1, keepdim=True)
        p = joint / total
        counts.index_add_(0, at.flatten(), (p * ONE).round_().long().flatten())
        made, total = p[:, 1:].double(), total.double()
        sums += torch.stack(((made * block.apart()).sum(), made.sum(), -total.log().sum()))
    apart, some, surprise = sums.tolist()
    return counts, apart, some, surprise


def _maximised(counts: Tensor, of_source: Tensor, vocabulary: int) -> Tensor:
    smoothed = counts.double() / ONE + ALPHA
    # in the order of the keys, so that sums are the same each time
    first = torch.searchsorted(of_source, torch.arange(vocabulary + 1, device=counts.device))
    ends = torch.cat((smoothed.new_zeros(1), smoothed.cumsum(0)))[first]
    total = (ends[1:] - ends[:-1]).clamp(min=ALPHA)
    return (smoothed.digamma() - total.digamma()[of_source]).exp().float()


def _sample(blocks: Sequence[_Block]) -> list[tuple[Tensor, int]]:
    """Some target words, evenly: their j/m, with n. On the CPU, since they are few."""
    step = max(1, sum(len(block.target) for block in blocks) // SAMPLE)
    return [(block.at[::step].double().cpu(), block.source.shape[1] - 1) for block in blocks]


def _tension(sample: Sequence[tuple[Tensor, int]], apart: float, tension: float) -> float:
    """The λ under which |i/n − j/m| is expected to be ``apart``, by Newton's method."""
    for _ in range(8):
        words, mean, spread = 0, 0.0, 0.0
        for at, n in sample:
            distance = _apart(at, n)
            p = (-tension * distance).softmax(-1)
            each = (p * distance).sum(-1)
            words, mean = words + len(at), mean + float(each.sum())
            spread += float(((p * distance.square()).sum(-1) - each.square()).sum())
        if spread <= 0:
            return tension  # sentences of one word say nothing
        tension = min(max(tension + (mean - apart * words) / spread, TENSIONS[0]), TENSIONS[1])
    return tension


def _apart(at: Tensor, n: int) -> Tensor:
    return (torch.arange(1, n + 1, device=at.device, dtype=at.dtype) / max(n, 1) - at[:, None]).abs()


# --- the best alignment ---


def best(model: Model, source: Ragged, target: Ragged) -> Integers:
    """For each target word of all rows, one after another, the source word that it is of, from 0; −1 for none."""
    found = np.full(len(target.values), -1, np.int32)
    for block in _blocks(source, target, np.arange(source.rows), model.keys.device):
        joint = block.prior(model.tension) * model.look_up(block.keys(model.vocabulary))
        found[block.places] = joint.argmax(-1).cpu().numpy() - 1
    return found


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
    ways = []
    for name, one, other in (("forward", source, target), ("backward", target, source)):
        tell = None if say is None else (lambda text, name=name: say(f"{text} ({name})"))
        model = learn(one, other, vocabulary, iterations=iterations, cells=cells, device=device, say=tell)
        ways.append(best(model, one, other))
        del model
    if torch.device(device).type == "cuda":
        torch.cuda.empty_cache()
    if say:
        say(f"word alignment: joining both directions of {source.rows:,} pairs")
    return _joined(source, target, ways[0], ways[1], method)


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
    """All pairs, or every so many of them."""
    total = int((source.lengths.astype(np.int64) * target.lengths).sum())
    if total <= cells:
        return np.arange(source.rows)
    return np.unique(np.linspace(0, source.rows - 1, max(1, source.rows * cells // total)).astype(np.int64))


def _blocks(source: Ragged, target: Ragged, rows: Integers, device: torch.device) -> Iterator[_Block]:
    """These pairs by the length of their sources, so many cells at a time; empty ones are left out."""
    n, m = source.lengths[rows], target.lengths[rows]
    kept = (n > 0) & (m > 0)
    rows, n, m = rows[kept], n[kept], m[kept]
    order = np.argsort(n, kind="stable")
    room = BLOCK.get(device.type, BLOCK["cpu"])
    # a new block where n changes, or where the cells of this n fill one more
    cells = np.cumsum(((n + 1) * m)[order])
    begins = np.flatnonzero((np.diff(n[order], prepend=-1) != 0) | (np.diff(cells // room, prepend=-1) != 0))
    for some in np.split(order, begins[1:]) if len(order) else []:
        yield _block(source, target, rows[some], device)


def _block(source: Ragged, target: Ragged, rows: Integers, device: torch.device) -> _Block:
    e, f = source.take(rows), target.take(rows)
    m = f.lengths
    within = np.arange(len(f.values)) - np.repeat(f.offsets[:-1], m)
    words = e.values.astype(np.int64).reshape(len(rows), -1)
    return _Block(
        torch.from_numpy(np.pad(words, ((0, 0), (1, 0)))).to(device),
        torch.from_numpy(f.values.astype(np.int64)).to(device),
        torch.from_numpy(np.repeat(np.arange(len(rows)), m)).to(device),
        torch.from_numpy(((within + 1) / np.repeat(m, m)).astype(np.float32)).to(device),
        within + np.repeat(target.offsets[rows], m),
    )


def _table(blocks: Sequence[_Block], vocabulary: int) -> tuple[Tensor, list[Tensor]]:
    """All entries, ascending, and where the cells of each block stand among them, in 32 bits."""
    parts = [block.keys(vocabulary).unique(return_inverse=True) for block in blocks]
    parts = [(keys, at.to(torch.int32)) for keys, at in parts]
    keys = torch.cat([keys for keys, _ in parts]).unique() if parts else torch.zeros(0, dtype=torch.int64)
    own = (torch.searchsorted(keys, some).to(torch.int32) for some, _ in parts)
    return keys, [there.index_select(0, at.flatten()).view(at.shape) for there, (_, at) in zip(own, parts, strict=True)]
