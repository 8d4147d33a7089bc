"""A corpus as compact arrays of integers: tokenised once, optionally memory-mapped."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from regard.common.mixing import line_keys
from regard.common.ragged import Integers, Ragged
from regard.data.readers import Pairs, Policy, Reader, Report, read
from regard.files.whole import write_whole
from regard.text.bpe import Chunks
from regard.text.subwords import Subwords
from regard.text.wordpiece import Cutter

FORMAT = 1  # of the cache


@dataclass(frozen=True)
class Limits:
    """Limits on a pair: ``max_tokens`` subwords per side, and ``max_ratio`` between the lengths of the sides."""

    max_tokens: int | None = 256
    max_ratio: float | None = None

    def refuses(self, source: int, target: int) -> str | None:
        if self.max_tokens is not None and max(source, target) > self.max_tokens:
            return f"longer than {self.max_tokens} subwords"
        if self.max_ratio is not None and max(source, target) > self.max_ratio * min(source, target):
            return f"more than {self.max_ratio:g} times as long as the other side"
        return None


@dataclass(frozen=True)
class Part:
    """The pairs [start, stop) of a corpus, from one reader; an epoch has each ``weight`` times on average."""

    start: int
    stop: int
    weight: float


@dataclass
class Corpus:
    """Pairs of texts in subwords.

    A line is stored as the numbers of its chunks (words with the space before them); ``table`` has the subwords of each
    chunk. ``sides[0]`` are the sources, ``sides[1]`` the targets. The texts are not stored.

    >>> from regard.data import Pairs
    >>> pairs = [("the cat", "le chat"), ("the dog", "le chien")]
    >>> subwords = Subwords.learn([[text for pair in pairs for text in pair]], vocab_size=270)
    >>> corpus = Corpus.build([Pairs(pairs)], subwords)
    >>> len(corpus), corpus.text(1)
    (2, ('the dog', 'le chien'))
    """

    subwords: Cutter
    sides: tuple[Ragged, Ragged]
    table: Ragged
    parts: list[Part]
    reports: list[Report]

    @classmethod
    def build(
        cls,
        readers: Sequence[Reader],
        subwords: Cutter,
        *,
        limits: Limits = Limits(),  # noqa: B008, frozen
        bad: Policy = "raise",
        cache: str | os.PathLike[str] | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Corpus:
        """Read and tokenise. With a ``cache`` folder the arrays are stored there and mapped into memory.

        The cache is reused for the same files (by path, size and modification time), subwords and limits. ``progress``
        is called with the number of pairs read so far.
        """
        for reader in readers:
            if not 0 <= reader.weight < float("inf"):
                raise ValueError(f"{reader.name}: expected a weight of 0 or more, got {reader.weight}")
        folder = Path(cache) / _key(readers, subwords, limits, bad) if cache is not None else None
        if folder and (found := _load(folder, subwords)):
            return found
        corpus = _tokenise(readers, subwords, limits, bad, progress)
        if not len(corpus):
            reports = "\n".join(str(report) for report in corpus.reports) or "no files were given"
            raise ValueError(f"the corpus is empty: {reports}")
        if folder is None:
            return corpus
        _save(folder, corpus)
        return _load(folder, subwords) or corpus

    def __len__(self) -> int:
        return self.sides[0].rows

    @cached_property
    def lengths(self) -> tuple[Integers, Integers]:
        """Subwords of each source and each target, without dropout."""
        sizes = np.concatenate([[0], np.cumsum(self.table.lengths)])  # a line's count is a difference

        def of(side: Ragged) -> Integers:
            counts = np.empty(side.rows, np.int32)
            for a in range(0, side.rows, 1 << 16):  # in blocks: 8 bytes for every chunk would be too much
                offsets = side.offsets[a : a + (1 << 16) + 1]
                chunks = side.values[offsets[0] : offsets[-1]]
                total = np.concatenate([[0], np.cumsum(np.diff(sizes)[chunks])])
                counts[a : a + len(offsets) - 1] = np.diff(total[offsets - offsets[0]])
            return counts

        return of(self.sides[0]), of(self.sides[1])

    def take(self, side: int, rows: Integers) -> Ragged:
        """The subwords of these sources (side 0) or targets (side 1)."""
        return self.sides[side].take(rows).spread(self.table)

    def draw(
        self,
        side: int,
        rows: Integers,
        copies: Integers,
        *,
        dropout: float,
        seed: int,
        epoch: int,
        alike: bool = False,
    ) -> Ragged:
        """As ``take``, with BPE-dropout; the copies of a pair in one epoch are drawn independently.

        With ``alike`` all occurrences of a word in a pair have one segmentation, so a copied word stays a copy.
        """
        if not isinstance(self.subwords, Subwords):
            raise ValueError("BPE-dropout is for subwords that were learned by merging: expected subwords.dropout = 0")
        keys = line_keys(seed, epoch, 0 if alike else side, rows + (copies.astype(np.int64) << 40))
        return self.subwords.dropout.draw(self.sides[side].take(rows), self.table, keys, dropout, alike=alike)

    def text(self, row: int) -> tuple[str, str]:
        """The texts of a pair, decoded from its subwords."""
        source, target = (self.subwords.decode(self.take(side, np.array([row])).values.tolist()) for side in (0, 1))
        return source, target


def _tokenise(
    readers: Sequence[Reader],
    subwords: Cutter,
    limits: Limits,
    bad: Policy,
    progress: Callable[[int], None] | None,
) -> Corpus:
    chunks, count = subwords.chunks(), 0
    sides = [(array("I"), array("q", [0])) for _ in range(2)]
    parts, reports = [], []
    for reader in readers:
        report, start = Report(reader.name), len(sides[0][1]) - 1
        for pair in read(reader, bad=bad, report=report):
            lines = [chunks.line(text) for text in pair]
            if reason := limits.refuses(*(chunks.count(line) for line in lines)):
                report.kept -= 1
                report.left_out[reason] += 1
            else:
                for (values, offsets), line in zip(sides, lines, strict=True):
                    values.extend(line)
                    offsets.append(len(values))
            count += 1
            if progress and count % 1000 == 0:
                progress(count)
        parts.append(Part(start, len(sides[0][1]) - 1, reader.weight))
        reports.append(report)
    if progress:
        progress(count)
    source, target = (_compact(values, offsets, chunks) for values, offsets in sides)
    return Corpus(subwords, (source, target), chunks.table(), parts, reports)


def _compact(values: array[int], offsets: array[int], chunks: Chunks) -> Ragged:
    dtype = np.uint16 if len(chunks) <= 1 << 16 else np.uint32
    return Ragged(np.array(values, dtype), np.array(offsets, np.int64))


# --- the cache: plain .npy files, and a small JSON file that is written last ---


def _key(readers: Sequence[Reader], subwords: Cutter, limits: Limits, bad: Policy) -> str:
    what: list[object] = [FORMAT, subwords.fingerprint, asdict(limits), bad]
    for reader in readers:
        what.append(repr(reader) if not isinstance(reader, Pairs) else [reader.name, reader.weight, list(reader.pairs)])
        for path in reader.paths:
            if not path.is_file():
                raise FileNotFoundError(f"{path}: there is no such file")
            stat = path.stat()
            what.append([str(path.resolve()), stat.st_size, stat.st_mtime_ns])
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:32]


def _arrays(corpus: Corpus) -> dict[str, Integers]:
    ragged = {"source": corpus.sides[0], "target": corpus.sides[1], "table": corpus.table}
    return {f"{name}_{field}": getattr(rows, field) for name, rows in ragged.items() for field in Ragged._fields}


def _save(folder: Path, corpus: Corpus) -> None:
    part = folder.with_name(f".{folder.name}.{os.getpid()}")
    part.mkdir(parents=True, exist_ok=True)
    try:
        for name, values in _arrays(corpus).items():
            np.save(part / f"{name}.npy", values)
        about = {"parts": [asdict(p) for p in corpus.parts], "reports": [vars(r) for r in corpus.reports]}
        write_whole(part / "corpus.json", json.dumps(about).encode())
        with contextlib.suppress(OSError):  # another process was first
            os.rename(part, folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _load(folder: Path, subwords: Cutter) -> Corpus | None:
    """The cached corpus, or None; a damaged cache is deleted."""
    try:
        about = json.loads((folder / "corpus.json").read_bytes())
        ragged = []
        for name in ("source", "target", "table"):
            rows = Ragged(*(np.load(folder / f"{name}_{field}.npy", mmap_mode="r") for field in Ragged._fields))
            if rows.offsets[-1] != len(rows.values):
                raise ValueError("cut short")
            ragged.append(rows)
        parts = [Part(**entry) for entry in about["parts"]]
        counters = ("bad", "left_out")
        reports = [Report(**entry | {key: Counter(entry[key]) for key in counters}) for entry in about["reports"]]
        return Corpus(subwords, (ragged[0], ragged[1]), ragged[2], parts, reports)
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        shutil.rmtree(folder, ignore_errors=True)
        return None
