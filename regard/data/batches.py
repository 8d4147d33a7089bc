"""Token-bucket batches of one epoch. They depend on seed and epoch alone, not on the starting point or the ranks.

Shapes: N pairs, S and T the padded lengths of sources and targets, </s> or <s> included.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import TypeVar, overload

import numpy as np
import torch
from torch import Tensor

from regard.common.mixing import line_keys, mix
from regard.common.ragged import Integers, Ragged
from regard.data.corpus import Corpus
from regard.text.subwords import EOS, PAD

Item = TypeVar("Item")
_ORDER, _SHARE, _SHUFFLE = 101, 102, 103  # the purpose of a hash, so that different draws are independent


@dataclass(frozen=True)
class Batch:
    """Some pairs, padded with <pad>.

    A target y₁ … yₙ gives ``target_in`` <s> y₁ … yₙ and ``target_out`` y₁ … yₙ </s>. ``pairs`` and ``tokens`` (those
    of ``target_out`` other than <pad>) count the whole batch over all ranks, so that summed losses divided by
    ``tokens`` add up over ranks.
    """

    source: Tensor  # [N, S], x₁ … xₘ </s>
    target_in: Tensor  # [N, T]
    target_out: Tensor  # [N, T]
    source_lengths: Tensor  # [N], with </s>
    target_lengths: Tensor  # [N], with <s> or </s>
    rows: Tensor  # [N], indices of the pairs in the corpus
    pairs: int
    tokens: int

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Batch:
        """The batch on another device."""
        tensors = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("pairs", "tokens")}
        return replace(self, **{name: t.to(device, non_blocking=non_blocking) for name, t in tensors.items()})


class Batches(Sequence[Batch]):
    """The batches of one epoch. ``batches[k]`` costs the same for every k, so resuming at any k is cheap."""

    def __init__(
        self,
        corpus: Corpus,
        cuts: list[Integers],
        rows: Integers,
        drawn: tuple[Ragged, Ragged] | None,
        *,
        rank: int,
        world: int,
        multiple: int,
    ) -> None:
        self._corpus, self._cuts, self._rows, self._drawn = corpus, cuts, rows, drawn
        self._rank, self._world, self._multiple = rank, world, multiple

    def __len__(self) -> int:
        return len(self._cuts)

    @overload
    def __getitem__(self, index: int) -> Batch: ...
    @overload
    def __getitem__(self, index: slice) -> Batches: ...
    def __getitem__(self, index: int | slice) -> Batch | Batches:
        if isinstance(index, slice):
            share = {"rank": self._rank, "world": self._world, "multiple": self._multiple}
            return Batches(self._corpus, self._cuts[index], self._rows, self._drawn, **share)
        whole = self._cuts[index]
        own = whole[self._rank :: self._world]
        idle = not len(own)
        if idle:  # fewer pairs than ranks: this rank computes one that does not count
            own = whole[:1]
        lengths = [self._lengths(side, whole) + 1 for side in (0, 1)]
        source, target = (self._take(side, own) for side in (0, 1))
        s, t = (_up(int(length.max()), self._multiple) for length in lengths)
        words = self._corpus.subwords
        target_out = _pad_rows(target, t, last=words.eos_id)
        return Batch(
            source=_pad_rows(source, s, last=words.eos_id),
            target_in=_pad_rows(target, t, first=words.bos_id),
            target_out=torch.full_like(target_out, PAD) if idle else target_out,
            source_lengths=torch.from_numpy(source.lengths + 1),
            target_lengths=torch.from_numpy(target.lengths + 1),
            rows=torch.from_numpy(self._rows[own]),
            pairs=len(whole),
            tokens=int(lengths[1].sum()),
        )

    def _take(self, side: int, places: Integers) -> Ragged:
        return self._drawn[side].take(places) if self._drawn else self._corpus.take(side, self._rows[places])

    def _lengths(self, side: int, places: Integers) -> Integers:
        if self._drawn:
            ends = self._drawn[side].offsets
            return np.asarray(ends[places + 1] - ends[places])
        return np.asarray(self._corpus.lengths[side][self._rows[places]], np.int64)


def batches(
    corpus: Corpus,
    *,
    tokens: int,
    seed: int = 0,
    epoch: int = 0,
    shuffle: bool = True,
    dropout: float = 0.0,
    alike: bool = False,
    rank: int = 0,
    world: int = 1,
    multiple: int = 1,
    bucket: int = 100,
) -> Batches:
    """One epoch in batches of at most ``tokens`` padded subwords, N (S + T), over all ranks together.

    The shuffled pairs are split into buckets of about ``bucket`` batches. Each bucket is sorted by length and cut into
    batches; then all batches are shuffled. S and T are rounded up to a ``multiple``. Rank r of ``world`` gets pairs r,
    r + world, … of each batch, so batches are the same for any ``world``. A part of the corpus with weight w
    contributes each pair ⌊w⌋ times, and a fraction w − ⌊w⌋ of its pairs, drawn anew each epoch, once more. ``dropout``
    is BPE-dropout; with ``alike`` all occurrences of a word in a pair have one segmentation. Without ``shuffle`` every
    pair comes once, in batches of similar lengths.

    >>> from regard.data import Pairs
    >>> from regard.text.subwords import Subwords
    >>> subwords = Subwords.learn([["a b c d e"] * 2], 270)
    >>> corpus = Corpus.build([Pairs([("a b c", "d e")] * 5)], subwords)
    >>> epoch = batches(corpus, tokens=16, seed=1)
    >>> sorted((tuple(batch.source.shape), tuple(batch.target_in.shape)) for batch in epoch)
    [((1, 4), (1, 3)), ((2, 4), (2, 3)), ((2, 4), (2, 3))]
    """
    if not 0 <= rank < world:
        raise ValueError(f"rank: expected 0 ≤ rank < world, got rank {rank} of {world}")
    if multiple < 1 or bucket < 1:
        raise ValueError(f"multiple and bucket: expected at least 1, got {multiple} and {bucket}")
    rows, copies = _epoch(corpus, seed, epoch) if shuffle else (np.arange(len(corpus)), np.zeros(len(corpus), np.int64))
    drawn = None
    if dropout:
        options = {"dropout": dropout, "seed": seed, "epoch": epoch, "alike": alike}
        drawn = (corpus.draw(0, rows, copies, **options), corpus.draw(1, rows, copies, **options))  # type: ignore[arg-type]
        lengths = [side.lengths for side in drawn]
    else:
        lengths = [corpus.lengths[side][rows] for side in (0, 1)]
    s, t = (_up(length.astype(np.int64) + 1, multiple) for length in lengths)
    if (s + t).max() > tokens:
        worst = int((s + t).argmax())
        raise ValueError(
            f"tokens: a batch of {tokens} cannot hold pair {rows[worst]}, which takes {s[worst]} + {t[worst]}; "
            "raise tokens, or leave out long pairs by Limits(max_tokens=…)"
        )
    cuts = bucket_places(s, t, tokens=tokens, seed=seed, epoch=epoch, shuffle=shuffle, bucket=bucket)
    return Batches(corpus, cuts, rows, drawn, rank=rank, world=world, multiple=multiple)


def bucket_places(
    s: Integers, t: Integers, *, tokens: int, seed: int = 0, epoch: int = 0, shuffle: bool = True, bucket: int = 100
) -> list[Integers]:
    """Indices 0 … n − 1, of lengths s and t, in batches with N (S + T) ≤ ``tokens``; see :func:`batches`."""
    size = max(1, int(bucket * tokens / (s + t).mean())) if shuffle else len(s)
    cuts = [cut for start in range(0, len(s), size) for cut in _cut(s, t, start, start + size, tokens)]
    if shuffle:
        order = np.argsort(line_keys(seed, epoch, _SHUFFLE, np.arange(len(cuts))), kind="stable")
        cuts = [cuts[i] for i in order]
    return cuts


def pad(rows: Sequence[Sequence[int]], *, multiple: int = 1) -> tuple[Tensor, Tensor]:
    """Sources to translate as a tensor [N, S], each followed by </s>, and their lengths [N], </s> included.

    >>> pad([[5, 6], [7]])
    (tensor([[5, 6, 2], [7, 2, 0]]), tensor([3, 2]))
    """
    ragged = Ragged.of(rows)
    lengths = ragged.lengths + 1
    return _pad_rows(ragged, _up(int(lengths.max(initial=1)), multiple), last=EOS), torch.from_numpy(lengths)


def prefetch(items: Iterable[Item], depth: int = 4) -> Iterator[Item]:
    """The same items, produced ahead in a thread; its exceptions are raised here."""
    ready: queue.Queue[tuple[bool, object]] = queue.Queue(depth)
    stop = threading.Event()

    def put(entry: tuple[bool, object]) -> bool:
        while not stop.is_set():
            try:
                ready.put(entry, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def work() -> None:
        try:
            for item in items:
                if not put((True, item)):
                    return
            put((False, None))
        except BaseException as error:
            put((False, error))

    thread = threading.Thread(target=work, daemon=True, name="regard-prefetch")
    thread.start()
    try:
        while True:
            more, item = ready.get()
            if more:
                yield item  # type: ignore[misc]
            elif isinstance(item, BaseException):
                raise item
            else:
                return
    finally:
        stop.set()
        thread.join()


def _epoch(corpus: Corpus, seed: int, epoch: int) -> tuple[Integers, Integers]:
    """The pairs of an epoch in random order, and for each the number of its copy."""
    rows, copies = [], []
    for part in corpus.parts:
        whole, count = int(part.weight), part.stop - part.start
        own = np.arange(part.start, part.stop)
        share = round((part.weight - whole) * count)
        drawn = np.argsort(line_keys(seed, epoch, _SHARE, own), kind="stable")[:share]
        rows += [own] * whole + [own[np.sort(drawn)]]
        copies += [np.full(count, copy) for copy in range(whole)] + [np.full(share, whole)]
    all_rows, all_copies = np.concatenate(rows), np.concatenate(copies)
    if not len(all_rows):
        raise ValueError("weights: an epoch would have no pairs; expected a weight above 0 for a part that has pairs")
    order = np.argsort(mix(line_keys(seed, epoch, _ORDER, all_rows), all_copies), kind="stable")
    return all_rows[order], all_copies[order]


def _cut(s: Integers, t: Integers, start: int, stop: int, tokens: int) -> Iterator[Integers]:
    """Indices [start, stop) sorted by length, in runs with N (S + T) ≤ tokens."""
    order = start + _by_length(s[start:stop], t[start:stop], tokens)
    first = widest_s = widest_t = 0
    for i, (a, b) in enumerate(zip(s[order].tolist(), t[order].tolist(), strict=True)):
        wide_s, wide_t = max(widest_s, a), max(widest_t, b)
        if (i - first + 1) * (wide_s + wide_t) > tokens:
            yield order[first:i]
            first, wide_s, wide_t = i, a, b
        widest_s, widest_t = wide_s, wide_t
    yield order[first:]


def _by_length(s: Integers, t: Integers, tokens: int) -> Integers:
    """An order in which neighbours are similar in S and T: strips of similar T, in which S alternately rises and falls.

    For b batches there are 2 √b strips, which wasted least on Multi30k: 92 % of 16,000 tokens are text, against 88 %
    when sorted by T alone.
    """
    strips = max(1, int(2 * (int((s + t).sum()) / tokens) ** 0.5))
    strip = np.empty(len(s), np.int64)
    strip[np.lexsort((s, t))] = np.arange(len(s)) * strips // len(s)
    return np.lexsort((t, np.where(strip % 2, -s, s), strip))


@overload
def _up(length: int, multiple: int) -> int: ...
@overload
def _up(length: Integers, multiple: int) -> Integers: ...
def _up(length: int | Integers, multiple: int) -> int | Integers:
    return -(-length // multiple) * multiple


def _pad_rows(rows: Ragged, width: int, *, first: int | None = None, last: int | None = None) -> Tensor:
    """[N, width]: rows padded at the end, with ``first`` before each or ``last`` after it."""
    out = np.full((rows.rows, width), PAD, np.int64)
    place = np.arange(width) - (first is not None)
    length = rows.lengths[:, None]
    out[(place >= 0) & (place < length)] = rows.values
    if first is not None:
        out[:, 0] = first
    if last is not None:
        out[place == length] = last
    return torch.from_numpy(out)
