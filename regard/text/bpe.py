"""Byte-pair merges with dropout drawn from an explicit seed, for a whole corpus at once.

BPE-dropout (Provilkov et al. 2020, https://arxiv.org/abs/1910.13267): each step drops every possible merge with
probability p and applies the best of the rest. The chunk is finished when all are dropped. With merges g = 0, 1, … in
order of priority, merge g is applied with probability pᵍ (1 − p), so one draw per step decides. The first k steps all
apply the best merge with probability (1 − p)ᵏ, so **one draw per chunk decides** where it first departs from plain BPE.
Most chunks never depart and keep their plain segmentation. The segmentations of the others are nodes of a graph. Its
edges are merges in order of priority. A node is made when it is first reached; drawing is a walk through integer
tables, a few NumPy calls per step for a million chunks.

Draws are hashes of (seed, epoch, side, line, position in the line, step). A line's segmentation therefore does not
depend on the other lines or on their order: resumed or distributed training sees the same subwords.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import numpy as np

from regard.common.mixing import mix
from regard.common.ragged import Integers, Ragged

Merges = Mapping[tuple[int, int], tuple[int, int]]  # (left id, right id) → (priority, 0 the best; merged id)

CHUNK_BYTES = 32  # longer runs without a space are split between subwords of the plain segmentation
MAX_NODES = 1 << 21  # several hundred MB; a larger graph is discarded and rebuilt, which does not change the draws
_BLOCK = 1 << 20  # chunks drawn at a time


class Chunks:
    """The distinct chunks of a text, numbered in order of appearance, and their subwords without dropout.

    Merges never cross chunks. A chunk is a word with the space before it, or a run of punctuation. ``split`` gives the
    chunks of a line, ``cut`` the subwords of a chunk, ``sizes`` the bytes of each subword. If single spaces separate
    the words of a line, its chunks are those of its words alone, so each distinct word is split once.
    """

    def __init__(
        self, split: Callable[[str], list[str]], cut: Callable[[str], list[int]], sizes: Sequence[int]
    ) -> None:
        self._split, self._cut, self._sizes = split, cut, sizes
        self._words: dict[str, list[int]] = {}
        self._numbers: dict[str, tuple[int, ...]] = {}
        self._lengths: list[int] = []
        self._known: dict[tuple[int, ...], int] = {}
        self._values, self._offsets = array("I"), array("q", [0])

    def line(self, text: str) -> list[int]:
        """The chunks of a line."""
        words = text.split(" ") if isinstance(text, str) else []
        if not words or words != text.split():
            return self._whole(text)
        numbers: list[int] = []
        for word in words:
            found = self._words.get(word)
            if found is None:
                try:
                    found = self._words[word] = self._whole(word)
                except ValueError:
                    return self._whole(text)  # raises with the position in the line
            numbers += found
        return numbers

    def _whole(self, text: str) -> list[int]:
        numbers: list[int] = []
        for piece in self._split(text):
            numbers += self._numbers.get(piece) or self._add(piece)
        return numbers

    def __len__(self) -> int:
        return len(self._known)

    def count(self, line: Sequence[int]) -> int:
        """Subwords in these chunks."""
        return sum(map(self._lengths.__getitem__, line))

    def table(self) -> Ragged:
        """The subwords of every chunk so far."""
        return Ragged(np.array(self._values, np.uint32), np.array(self._offsets, np.int64))

    def _add(self, piece: str) -> tuple[int, ...]:
        numbers: list[int] = []
        run: list[int] = []
        size = 0
        for token in self._cut(piece):
            if run and size + self._sizes[token] > CHUNK_BYTES:
                numbers.append(self._number(tuple(run)))
                run, size = [], 0
            run.append(token)
            size += self._sizes[token]
        numbers.append(self._number(tuple(run)))
        self._numbers[piece] = tuple(numbers)
        return self._numbers[piece]

    def _number(self, tokens: tuple[int, ...]) -> int:
        if tokens not in self._known:
            self._known[tokens] = len(self._known)
            self._lengths.append(len(tokens))
            self._values.extend(tokens)
            self._offsets.append(len(self._values))
        return self._known[tokens]


class Dropout:
    """Draws segmentations of chunks.

    ``letters[token]`` are the ids of a token's single bytes. Merging starts from them.
    """

    def __init__(self, merges: Merges, letters: Sequence[tuple[int, ...]]) -> None:
        self._merges, self._letters = merges, letters
        self._letter_counts = np.array([len(own) for own in letters], np.int64)
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self._node: dict[tuple[int, ...], int] = {}
        # Node n's parts are _values[_ends[n]] … _values[_ends[n + 1] − 1]. Its edges, best merge first, are _first[n] …
        # _first[n] + _degree[n] − 1; a degree of −1 is not known yet. Edge e merges parts _at[e] and _at[e] + 1 and
        # leads to node _next[e]; −1 is not known yet.
        self._values, self._ends = array("I"), array("q", [0])
        self._first, self._degree, self._at, self._next = array("q"), array("i"), array("i"), array("q")
        # the start node of each chunk of one table, or −1
        self._of: Integers | None = None
        self._starts: Integers = np.zeros(0, np.int64)

    def draw(self, lines: Ragged, table: Ragged, keys: Integers, p: float, *, alike: bool = False) -> Ragged:
        """The subwords of each line, given as chunks, at dropout ``p``; one key per line.

        With ``alike`` all occurrences of a chunk in lines of the same key have one segmentation.
        """
        if not 0 <= p < 1:
            raise ValueError(f"BPE-dropout: expected a probability of at least 0 and below 1, got {p}")
        if not len(lines.values):
            return lines._replace(values=lines.values.astype(table.values.dtype))
        if alike:
            place = lines.values.astype(np.int64)
        else:
            place = np.arange(len(lines.values)) - np.repeat(lines.offsets[:-1], lines.lengths)
        keys = mix(np.repeat(keys, lines.lengths), place)
        ends = np.concatenate([[0], np.cumsum(self._letter_counts[table.values])])
        merges = np.diff(ends[table.offsets]) - table.lengths  # each reduces the count by one
        blocks = [slice(a, a + _BLOCK) for a in range(0, len(keys), _BLOCK)]
        with self._lock:
            parts = [self._block(lines.values[block], table, merges, keys[block], p) for block in blocks]
        ends = np.cumsum(np.concatenate([[0], *[part.lengths for part in parts]]))
        return Ragged(np.concatenate([part.values for part in parts]), ends[lines.offsets])

    def _block(self, chunks: Integers, table: Ragged, merges: Integers, keys: Integers, p: float) -> Ragged:
        """The subwords of chunks; ``merges`` is the number of merges of each chunk of the table."""
        if len(self._degree) > MAX_NODES:
            self._forget()
        plain, first = _plain_chances(p, int(merges.max())), mix(keys, 0)
        departs = np.flatnonzero(first > plain[merges[chunks]])
        if not len(departs):
            return table.take(chunks)
        nodes = self._start_nodes(chunks[departs], table)
        # the number of plain steps is one less than the smallest k with first[departs] > plain[k]
        steps = len(plain) - np.searchsorted(plain[::-1], first[departs]) - 1
        nodes = self._walk(self._follow_best(nodes, steps), keys[departs], _chances(p))
        # append these nodes to the table as rows
        kinds, which = _distinct(nodes, len(self._degree))
        known = Ragged(np.frombuffer(self._values, np.uint32), np.frombuffer(self._ends, np.int64)).take(kinds)
        rows = chunks.astype(np.int64)
        rows[departs] = table.rows + which
        values = np.concatenate([table.values, known.values.astype(table.values.dtype)])
        return Ragged(values, np.concatenate([table.offsets, table.offsets[-1] + known.offsets[1:]])).take(rows)

    def _start_nodes(self, chunks: Integers, table: Ragged) -> Integers:
        """The start node of each chunk: its single bytes."""
        if self._of is not table.values:
            self._of, self._starts = table.values, np.full(table.rows, -1)
        new = np.unique(chunks[self._starts[chunks] < 0])
        letters = [sum((self._letters[t] for t in tokens), ()) for tokens in table.take(new).lists()]
        self._starts[new] = [self._number(own) for own in letters]
        return np.asarray(self._starts[chunks])

    def _follow_best(self, nodes: Integers, steps: Integers) -> Integers:
        """From each node along its best edges, as many as ``steps``."""
        moving = np.flatnonzero(steps)
        while len(moving):
            here = nodes[moving]
            self._expand(here)
            nodes[moving] = self._follow(here, np.zeros(len(here), np.int64))
            steps = steps - 1
            moving = moving[steps[moving] > 0]
        return nodes

    def _walk(self, nodes: Integers, keys: Integers, chances: Integers) -> Integers:
        """From each node along drawn edges until a draw exceeds its edges. The first edge is never the best one."""
        moving, step = np.arange(len(nodes)), 0
        while len(moving):
            here = nodes[moving]
            self._expand(here)
            left_out = len(chances) - np.searchsorted(chances, mix(keys[moving], step + 1), side="right")
            if step == 0:
                left_out += 1  # the walk starts where the best merge was dropped
            goes = left_out < np.frombuffer(self._degree, np.int32)[here]
            moving, here, left_out = moving[goes], here[goes], left_out[goes]
            nodes[moving] = self._follow(here, left_out) if len(moving) else 0
            step += 1
        return nodes

    def _expand(self, nodes: Integers) -> None:
        """Compute the edges of nodes reached for the first time."""
        new = nodes[np.frombuffer(self._degree, np.int32)[nodes] < 0]
        for node in np.unique(new).tolist():
            found = [(self._merges.get(pair), i) for i, pair in enumerate(pairwise(self._parts(node)))]
            best = sorted((merge[0], i) for merge, i in found if merge)  # equal merges: the leftmost first
            self._first[node], self._degree[node] = len(self._at), len(best)
            self._at.extend(i for _, i in best)
            self._next.extend([-1] * len(best))

    def _follow(self, nodes: Integers, which: Integers) -> Integers:
        """The nodes that edges lead to; make those reached for the first time."""
        edges = np.frombuffer(self._first, np.int64)[nodes] + which
        new = np.flatnonzero(np.frombuffer(self._next, np.int64)[edges] < 0)
        if len(new):
            new_edges, one = np.unique(edges[new], return_index=True)
            for edge, node in zip(new_edges.tolist(), nodes[new][one].tolist(), strict=True):
                parts, i = self._parts(node), self._at[edge]
                merged = self._merges[parts[i], parts[i + 1]][1]
                self._next[edge] = self._number((*parts[:i], merged, *parts[i + 2 :]))
        return np.asarray(np.frombuffer(self._next, np.int64)[edges])

    def _parts(self, node: int) -> tuple[int, ...]:
        return tuple(self._values[self._ends[node] : self._ends[node + 1]])

    def _number(self, parts: tuple[int, ...]) -> int:
        number = self._node.setdefault(parts, len(self._degree))
        if number == len(self._degree):
            self._values.extend(parts)
            self._ends.append(len(self._values))
            self._first.append(0)
            self._degree.append(-1)
        return number


def _distinct(numbers: Integers, limit: int) -> tuple[Integers, Integers]:
    """The distinct numbers, all below ``limit``, ascending; and for each number its index among them."""
    there = np.zeros(limit, bool)
    there[numbers] = True
    return np.flatnonzero(there), (np.cumsum(there) - 1)[numbers]


def _chances(p: float) -> Integers:
    """pᵏ for k = …, 2, 1 as 64-bit integers: a draw below the last k of them drops the k best merges."""
    chances: list[int] = []
    chance = p
    while chance * 2.0**64 >= 1 and len(chances) < 256:
        chances.append(min(int(chance * 2.0**64), 2**64 - 1))
        chance *= p
    return np.array(chances[::-1], np.uint64)


def _plain_chances(p: float, most: int) -> Integers:
    """(1 − p)ᵏ for k = 0 … most as 64-bit integers: a draw not above number k begins with k plain steps or more."""
    return np.array([max(int((1 - p) ** k * 2.0**64), 1) - 1 for k in range(most + 1)], np.uint64)
