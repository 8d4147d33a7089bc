"""Pairs held out of the training data, to validate on where no others are given.

Which ones depends on the text alone: not on the seed of training, nor on the order of the pairs. No sentence is on both
sides of the split, whatever its spaces and capitals; so pairs are chosen whose sentences come nowhere else. Where there
are not enough, what shares a sentence with a chosen one is in neither part.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

import numpy as np

from regard.common.mixing import mix
from regard.common.ragged import Integers
from regard.data.readers import Bad, PairRow, Reader

MOST, SHARE, FEWEST = 1000, 20, 10  # held out: one in 20 up to 1,000; where these are fewer than 10, none
_DRAWN = 0x68656C64  # what the hash is for


@dataclass(frozen=True)
class Split:
    """Readers of what is trained on and of what is validated on, and how that came about."""

    training: list[Reader]
    validation: list[Reader]
    told: str = ""


@dataclass(frozen=True)
class Portion:
    """Some of the good rows of a reader, and the bad ones in one of its portions."""

    whole: Reader
    rest: str  # of its name
    weight: float
    bad: bool
    digest: str  # of which rows they are: a portion is known by its repr
    chosen: Integers = field(repr=False, compare=False)

    @property
    def name(self) -> str:
        return f"{self.whole.name}{self.rest}"

    @property
    def paths(self) -> tuple[Path, ...]:
        return self.whole.paths

    def rows(self) -> Iterator[PairRow]:
        chosen = iter(self.chosen.data)
        for row in self.whole.rows():
            if isinstance(row, Bad):
                if self.bad:
                    yield row
            elif next(chosen, False):
                yield row


def hold_out(readers: Sequence[Reader], count: int | None = None) -> Split:
    """So many pairs, or by default one in 20 up to 1,000, to validate on; the others to train on."""
    keys = [_keys(reader) for reader in readers]
    pairs = np.concatenate(keys) if keys else np.zeros((0, 2), np.uint64)
    if count is not None and count >= max(1, len(pairs)):
        raise ValueError(f"held_out: expected fewer than the {len(pairs):,} pairs there are, got {count:,}")
    valid, gone = choose(pairs, default(len(pairs)) if count is None else count)
    if valid.sum() < (FEWEST if count is None else 1):
        return Split(list(readers), [])
    told = f"held out for validation: {valid.sum():,} of {len(pairs):,} pairs"
    if gone.any():
        told += f"; {gone.sum():,} more share a sentence with one of them and are not used"
    cuts = np.cumsum([0, *map(len, keys)])
    parts = [(reader, slice(a, b)) for reader, a, b in zip(readers, cuts[:-1], cuts[1:], strict=True)]
    training: list[Reader] = [_portion(reader, ~(valid | gone)[cut], "", reader.weight) for reader, cut in parts]
    held: list[Reader] = [_portion(reader, valid[cut], ", held out", 1.0) for reader, cut in parts if valid[cut].any()]
    return Split(training, held, told)


def default(count: int) -> int:
    """How many of so many are held out where nobody says."""
    wanted = min(MOST, count // SHARE)
    return wanted if wanted >= FEWEST else 0


def choose(pairs: Integers, count: int) -> tuple[Integers, Integers]:
    """Of pairs of sentences [N, 2]: which are held out, and which are in neither part; so many of each at the most.

    >>> valid, gone = choose(np.array([[1, 2], [1, 3], [4, 5], [4, 5]], np.uint64), 1)
    >>> int(valid.sum()), int(gone.sum())
    (1, 1)
    """
    _, sentence, times = np.unique(pairs, return_inverse=True, return_counts=True)
    sentence = sentence.reshape(pairs.shape)
    where, ends = np.argsort(sentence.ravel(), kind="stable") // 2, np.cumsum([0, *times])
    order = np.lexsort((mix(mix(pairs[:, 0], pairs[:, 1]), _DRAWN), times[sentence].sum(1)))  # the least shared first
    valid, gone = np.zeros(len(pairs), bool), np.zeros(len(pairs), bool)
    wanted = left = count
    for i in order.tolist():
        if gone[i]:
            continue
        same = np.unique(np.concatenate([where[ends[s] : ends[s + 1]] for s in sentence[i]]))
        fresh = same[(same != i) & ~gone[same]]
        if not wanted or len(fresh) > left:
            break
        valid[i], gone[fresh], wanted, left = True, True, wanted - 1, left - len(fresh)
    return valid, gone


def whole_groups(groups: Sequence[str], count: int) -> Integers:
    """Of items that belong to a text each, about so many, [N]: all of a text or none; half as many more at the most.

    >>> [int(whole_groups(["a", "a", "b", "b", "c"], count).sum()) for count in (0, 1, 2)]
    [0, 1, 2]
    """
    keys = np.array([key(text) for text in groups], np.uint64)
    texts, own, sizes = np.unique(keys, return_inverse=True, return_counts=True)
    taken, total = np.zeros(len(texts), bool), 0
    for i in np.argsort(mix(texts, _DRAWN), kind="stable").tolist():
        if total < count and total + sizes[i] <= count + count // 2:
            taken[i], total = True, total + int(sizes[i])
    return np.asarray(taken[own])


def _keys(reader: Reader) -> Integers:
    """Of the sentences of its good rows, [N, 2]."""
    flat = array("Q")
    for row in reader.rows():
        if not isinstance(row, Bad):
            flat.extend(map(key, row))
    return np.array(flat, np.uint64).reshape(-1, 2)


def _portion(whole: Reader, chosen: Integers, rest: str, weight: float) -> Portion:
    digest = blake2b(np.packbits(chosen).tobytes(), digest_size=8).hexdigest()
    return Portion(whole, rest, weight, not rest, digest, chosen)


def key(text: str) -> int:
    """64 bits of a sentence, whatever its spaces and capitals."""
    return int.from_bytes(blake2b(" ".join(text.split()).casefold().encode(), digest_size=8).digest(), "big")
