"""Held-out pairs of the training data, for validation when no validation data is given.

The choice depends on the text alone, not on the training seed or the order of the pairs. Ignoring spaces and case, no
sentence is in both parts. So pairs whose sentences occur nowhere else are preferred. If there are too few, pairs that
share a sentence with a held-out pair are in neither part.
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

MOST, SHARE, FEWEST = 1000, 20, 10  # one pair in 20 is held out, up to 1,000; if that is fewer than 10, none
_DRAWN = 0x68656C64  # the purpose of the hash


@dataclass(frozen=True)
class Split:
    """Readers of the training and of the validation data; ``summary`` describes the split."""

    training: list[Reader]
    validation: list[Reader]
    summary: str = ""


@dataclass(frozen=True)
class Portion:
    """Some of the good rows of a reader; one of its portions also has the bad rows."""

    whole: Reader
    rest: str  # suffix of its name
    weight: float
    bad: bool
    digest: str  # of the chosen rows: the cache identifies a reader by its repr
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
    """Hold out ``count`` pairs for validation, by default one in 20 up to 1,000."""
    keys = [_keys(reader) for reader in readers]
    pairs = np.concatenate(keys) if keys else np.zeros((0, 2), np.uint64)
    if count is not None and count >= max(1, len(pairs)):
        raise ValueError(f"held_out: expected fewer than the {len(pairs):,} pairs there are, got {count:,}")
    valid, gone = choose(pairs, default(len(pairs)) if count is None else count)
    if valid.sum() < (FEWEST if count is None else 1):
        return Split(list(readers), [])
    summary = f"held out for validation: {valid.sum():,} of {len(pairs):,} pairs"
    if gone.any():
        summary += f"; {gone.sum():,} more share a sentence with one of them and are not used"
    cuts = np.cumsum([0, *map(len, keys)])
    parts = [(reader, slice(a, b)) for reader, a, b in zip(readers, cuts[:-1], cuts[1:], strict=True)]
    training: list[Reader] = [_portion(reader, ~(valid | gone)[cut], "", reader.weight) for reader, cut in parts]
    held: list[Reader] = [_portion(reader, valid[cut], ", held out", 1.0) for reader, cut in parts if valid[cut].any()]
    return Split(training, held, summary)


def default(count: int) -> int:
    """The default number of held-out pairs among ``count``."""
    wanted = min(MOST, count // SHARE)
    return wanted if wanted >= FEWEST else 0


def choose(pairs: Integers, count: int) -> tuple[Integers, Integers]:
    """Which pairs of sentences [N, 2] are held out, and which are in neither part; at most ``count`` of each.

    >>> valid, gone = choose(np.array([[1, 2], [1, 3], [4, 5], [4, 5]], np.uint64), 1)
    >>> int(valid.sum()), int(gone.sum())
    (1, 1)
    """
    _, sentence, times = np.unique(pairs, return_inverse=True, return_counts=True)
    sentence = sentence.reshape(pairs.shape)
    where, ends = np.argsort(sentence.ravel(), kind="stable") // 2, np.cumsum([0, *times])
    order = np.lexsort((mix(mix(pairs[:, 0], pairs[:, 1]), _DRAWN), times[sentence].sum(1)))  # least shared first
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
    """Choose about ``count`` items, at most half as many more; all items of a text or none. Booleans, [N].

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
    """Hashes of the sentences of a reader's good rows, [N, 2]."""
    flat = array("Q")
    for row in reader.rows():
        if not isinstance(row, Bad):
            flat.extend(map(key, row))
    return np.array(flat, np.uint64).reshape(-1, 2)


def _portion(whole: Reader, chosen: Integers, rest: str, weight: float) -> Portion:
    digest = blake2b(np.packbits(chosen).tobytes(), digest_size=8).hexdigest()
    return Portion(whole, rest, weight, not rest, digest, chosen)


def key(text: str) -> int:
    """A 64-bit hash of a sentence, ignoring spaces and case."""
    return int.from_bytes(blake2b(" ".join(text.split()).casefold().encode(), digest_size=8).digest(), "big")
