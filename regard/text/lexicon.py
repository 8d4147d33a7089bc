"""A compact lexicon: the known words and all their prefixes, and the unknown words of a text.

A subword model can produce words that do not exist. With the words of the target language (``lexicon.npz`` in the model
folder) a translator notices them and searches for another translation.

Words are runs of letters, ignoring case: "L'été 2024" has two, "m²" has one. They are stored as a minimal automaton
(Daciuk et al. 2000, https://aclanthology.org/J00-1002), which shares prefixes and suffixes: half a million French words
are 140,000 transitions, loaded in milliseconds and followed letter by letter.
"""

from __future__ import annotations

import io
import os
import unicodedata
import zipfile
from collections.abc import Collection, Iterable, Iterator
from itertools import groupby
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from regard.files.bounds import bytes_of, members
from regard.files.whole import write_whole

__all__ = ["FILE", "Lexicon", "plain", "runs", "words_of"]

FILE = "lexicon.npz"
"""The file's name in a model folder."""
MOST = 1 << 25  # bytes, packed and unpacked: half a million words of French have 1.3 million


def runs(text: str) -> list[str]:
    """The runs of letters of a text, unchanged; a final "" says that the text does not end in a letter.

    >>> runs("12 m²"), runs("L'été")
    (['m', ''], ['L', 'été'])
    """
    found = [(letters, "".join(some)) for letters, some in groupby(text, str.isalpha)]
    return [run for letters, run in found if letters] + ([] if found and found[-1][0] else [""])


def plain(text: str) -> str:
    """Text as it is compared: NFKC-normalized and case-folded."""
    return unicodedata.normalize("NFKC", text).casefold()


def words_of(text: str) -> list[str]:
    """
    >>> words_of("L'été 2024, à B12 !")
    ['l', 'été', 'à', 'b']
    """
    return [plain(run) for run in runs(text) if run]


class Lexicon:
    """A set of words and of their prefixes. Make one with ``of`` or ``load``.

    >>> known = Lexicon.of(["chat", "chats", "chien"])
    >>> "chats" in known, "cha" in known, known.begins("cha"), known.begins("chatte"), len(known)
    (True, False, True, False, 3)
    >>> known.beyond("Le chat de Tom", {"tom"})
    ['le', 'de']
    """

    def __init__(self, letters: NDArray[np.int32], targets: NDArray[np.int32], first: NDArray[np.int32]) -> None:
        """Transitions: a letter and a target state each. Those of state s are ``first[s]`` … ``first[s + 1]`` − 1.

        The last state is the start. A target is ~s if a word may end there, s if not.
        """
        self._arrows: dict[int, dict[int, int]] = {}  # of the states visited so far
        self._arrays = {"letters": letters, "targets": targets, "first": first}
        self._letters, self._targets, self._first = letters.tolist(), targets.tolist(), first.tolist()

    # --- making one ---

    @classmethod
    def of(cls, words: Iterable[str]) -> Lexicon:
        """The lexicon of all words in these texts; a text may be a single word."""
        if isinstance(words, str):
            raise TypeError(f"Lexicon.of: expected words or lines, got one string, {words[:40]!r}: put it into a list")
        known = sorted({word for text in words for word in words_of(text)})
        letters: list[int] = []
        targets: list[int] = []
        first = [0]
        numbers: dict[tuple[tuple[str, int], ...], int] = {}

        def state_of(arrows: list[tuple[str, int]]) -> int:
            """The state with these transitions: an existing one, or a new one."""
            key = tuple(arrows)
            if key not in numbers:
                numbers[key] = len(first) - 1
                letters.extend(ord(letter) for letter, _ in arrows)
                targets.extend(target for _, target in arrows)
                first.append(len(letters))
            return numbers[key]

        # The states of the last word that may still get transitions: each with those it has, and whether a word ends
        # there. The next word shares a prefix with it; the states after that prefix are final.
        path: list[tuple[list[tuple[str, int]], bool]] = [([], False)]
        last = ""
        for word in [*known, ""]:
            shared = next(
                (k for k, (a, b) in enumerate(zip(last, word, strict=False)) if a != b), min(len(last), len(word))
            )
            while len(path) > shared + 1:
                arrows, ends = path.pop()
                number = state_of(arrows)
                path[-1][0].append((last[len(path) - 1], ~number if ends else number))
            for k in range(shared, len(word)):
                path.append(([], k == len(word) - 1))
            last = word
        # the start state must be the last one, so it is not shared with an equal state
        numbers.clear()
        state_of(path[0][0])
        return cls(*(np.array(x, np.int32) for x in (letters, targets, first)))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the lexicon atomically; equal lexicons give equal files."""
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            for name, array in self._arrays.items():
                member = io.BytesIO()
                np.lib.format.write_array(member, array, allow_pickle=False)
                archive.writestr(_member(name), member.getvalue(), compresslevel=9)
        write_whole(Path(path), file.getvalue())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Lexicon:
        """Read a file that ``save`` wrote."""
        data = bytes_of(path, MOST)
        try:
            found = members(data, MOST)
            arrays = [_array(found[f"{name}.npy"]) for name in ("letters", "targets", "first")]
        except Exception as error:  # zipfile, zlib and NumPy raise many kinds on a damaged archive
            raise ValueError(f"{path}: cut short, or not a lexicon that regard wrote ({error})") from error
        if not _is_valid(*arrays):
            raise ValueError(f"{path}: not a lexicon that regard wrote: its transitions are invalid")
        return cls(*arrays)

    # --- using it ---

    def __contains__(self, word: object) -> bool:
        return isinstance(word, str) and self._walk(plain(word))[1]

    def begins(self, start: str, cut: bytes = b"") -> bool:
        """Whether ``start`` is a prefix of a word; with ``cut``, one whose next letter starts with these bytes.

        >>> [Lexicon.of(["thé"]).begins("th", cut) for cut in (b"", b"\\xc3", b"\\xc5")]
        [True, True, False]
        """
        state = self._walk(plain(start))[0]
        if state is None or not cut:
            return state is not None
        return any(chr(letter).encode().startswith(cut) for letter in self._from(state))

    def beyond(self, text: str, own: Collection[str] = ()) -> list[str]:
        """The words of a text that are neither in the lexicon nor in ``own``."""
        return [word for word in words_of(text) if word not in own and not self._walk(word)[1]]

    def __iter__(self) -> Iterator[str]:
        """The words in alphabetical order."""
        stack = [("", len(self._first) - 2, False)]
        while stack:
            word, state, ends = stack.pop()
            if ends:
                yield word
            for k in reversed(range(self._first[state], self._first[state + 1])):
                target = self._targets[k]
                stack.append((word + chr(self._letters[k]), ~target if target < 0 else target, target < 0))

    def __len__(self) -> int:
        counts: list[int] = []  # words from each state on; a state comes after its targets
        for state in range(len(self._first) - 1):
            some = self._targets[self._first[state] : self._first[state + 1]]
            counts.append(sum(counts[~t] + 1 if t < 0 else counts[t] for t in some))
        return counts[-1]

    def _walk(self, text: str) -> tuple[int | None, bool]:
        """The state after this text, None if it is no prefix; and whether it is a word."""
        state, ends = len(self._first) - 2, False
        for letter in map(ord, text):
            target = self._from(state).get(letter)
            if target is None:
                return None, False
            state, ends = (~target, True) if target < 0 else (target, False)
        return state, ends

    def _from(self, state: int) -> dict[int, int]:
        """The transitions of a state, by letter."""
        if state not in self._arrows:
            span = slice(self._first[state], self._first[state + 1])
            self._arrows[state] = dict(zip(self._letters[span], self._targets[span], strict=True))
        return self._arrows[state]


def _member(name: str) -> zipfile.ZipInfo:
    """An archive member with a fixed date, so that equal contents give equal files."""
    found = zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0))
    found.compress_type = zipfile.ZIP_DEFLATED
    return found


def _array(data: bytes) -> NDArray[np.int32]:
    """A list of numbers in NumPy's format. Its header may claim any size, so the data's own size is used."""
    file = io.BytesIO(data)
    np.lib.format.read_magic(file)
    shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    numbers = data[file.tell() :]
    if dtype != np.int32 or shape != (len(numbers) // 4,) or len(numbers) % 4:
        raise ValueError(
            f"expected a list of {len(numbers) // 4:,} whole numbers; the header claims {shape} of {dtype}"
        )
    return np.frombuffer(numbers, np.int32)


def _is_valid(letters: NDArray[np.int32], targets: NDArray[np.int32], first: NDArray[np.int32]) -> bool:
    """Whether every transition leads to an earlier state, so that walks end, and a state's letters are distinct."""
    if any(x.ndim != 1 or x.dtype != np.int32 for x in (letters, targets, first)) or len(first) < 2:
        return False
    if len(letters) != len(targets) or first[0] != 0 or first[-1] != len(letters) or (first[1:] < first[:-1]).any():
        return False
    states = np.repeat(np.arange(len(first) - 1), np.diff(first))
    leads = np.where(targets < 0, ~targets, targets)
    rising = (letters[1:] > letters[:-1]) | (states[1:] != states[:-1])
    characters = (letters >= 0) & (letters < 0x110000) & ((letters < 0xD800) | (letters >= 0xE000))
    return bool((leads < states).all() and rising.all() and characters.all())
