"""Subwords: byte-level BPE by the ``tokenizers`` library, with maps back to characters and words."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from regard.common.mixing import line_keys
from regard.common.ragged import Integers, Ragged
from regard.files.bounds import bytes_of, parse_json
from regard.files.whole import write_whole
from regard.text.bpe import Chunks, Dropout, Merges

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["BOS", "EOS", "PAD", "UNK", "Encoded", "Subwords"]

PAD, BOS, EOS, UNK = range(4)
MOST = 1 << 26  # bytes of a tokenizer.json: a million subwords have half of it
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")

# A word, a number or a run of other characters, each with the white space before it; the rest of the white space.
_PIECE = r"\s?[\p{L}\p{M}]+|\s?\p{N}+|\s?[^\s\p{L}\p{M}\p{N}]+|\s+(?!\S)|\s+"
_LONGEST = 1000  # characters of the longest word learned from: a longer one is a ruler, code or encoded data
_ENDLESS = re.compile(rf"\s?[!-~]{{{_LONGEST + 1},}}")
_UNSPACED = re.compile(rf"\S{{{_LONGEST + 1},}}")
_PARTS = {  # of a tokenizer.json, and the types allowed in each
    "normalizer": ("Sequence", "Prepend", "Lowercase", "BertNormalizer"),
    "pre_tokenizer": ("Sequence", "Split", "ByteLevel", "BertPreTokenizer"),
    "decoder": ("Sequence", "ByteLevel", "Strip", "WordPiece"),
}
_PREFIX = " "  # added to the start of every line, so that its first word is encoded as elsewhere


class Encoded(NamedTuple):
    """A line in subwords; all four lists have one entry per subword.

    ``offsets`` are character spans of the line, without the space before a word. Where several subwords share a
    character's bytes, each has the whole character. ``words`` numbers the words of ``line.split()``, −1 for white
    space between them; ``pieces`` also separates punctuation from words.
    """

    ids: list[int]
    offsets: list[tuple[int, int]]
    words: list[int]
    pieces: list[int]


class Subwords:
    """A vocabulary of subwords. Make one with ``learn`` or ``load``.

    Ids 0 to 3 are <pad>, <s>, </s> and <unk>. The ``extra`` tokens (languages, tasks) follow, then all 256 bytes, so
    encoding any text is reversible. Text never becomes a special token: in a line, "</s>" is just these four
    characters.

    >>> subwords = Subwords.learn([["the cat sat", "the cat"], ["le chat"]], vocab_size=280)
    >>> line = subwords.encode("the cat 🐈")
    >>> [subwords.token(i) for i in line.ids[:2]], line.offsets[:2], line.words
    ([' the', ' cat'], [(0, 3), (4, 7)], [0, 1, 2, 2, 2, 2, 2])
    >>> subwords.decode(line.ids)
    'the cat 🐈'
    """

    pad_id, bos_id, eos_id, unk_id = PAD, BOS, EOS, UNK

    def __init__(self, tokenizer: Tokenizer, *, lowercase: bool = False) -> None:
        self.lowercase = lowercase
        self._tokenizer = tokenizer
        tokenizer.encode_special_tokens = True
        _check(tokenizer)
        names = tokenizer.get_vocab(with_added_tokens=False)
        first = 1 + max(names[s] for s in SPECIAL)
        added = {token.content: i for i, token in tokenizer.get_added_tokens_decoder().items()}
        self.extra = {name: i for name, i in added.items() if i >= first}
        self._bytes = [b""] * tokenizer.get_vocab_size()
        table = _char_bytes()
        for name, i in names.items():
            self._bytes[i] = b"" if name in added else name.translate(table).encode("latin-1")

    # --- making one ---

    @classmethod
    def learn(
        cls,
        texts: Iterable[Iterable[str]],
        vocab_size: int = 8000,
        *,
        extra: Sequence[str] = (),
        lowercase: bool = False,
        min_frequency: int = 2,
        progress: Callable[[int], None] | None = None,
    ) -> Subwords:
        """Learn one joint vocabulary from the lines of several texts (say, both languages).

        ``vocab_size`` includes special and extra tokens; a small text may give fewer. ``progress`` is called with the
        number of lines read so far. The same lines give the same vocabulary.
        """
        from tokenizers import decoders, trainers

        least = len(SPECIAL) + len(extra) + 256
        if vocab_size < least:
            raise ValueError(
                f"vocab_size: expected at least {least} (260 and {len(extra)} extra tokens), got {vocab_size}"
            )
        if odd := [
            name for name in extra if not re.fullmatch(r"<[^\W_]\w*>", name) or [*SPECIAL, *extra].count(name) > 1
        ]:
            raise ValueError(f"extra: expected different new names such as <fr>, got {', '.join(map(repr, odd))}")
        tokenizer = _blank()
        tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(_PREFIX, 1, 0)])
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size,
            min_frequency=min_frequency,
            special_tokens=[*SPECIAL, *extra],
            initial_alphabet=sorted(_byte_chars().values()),
            max_token_length=32,
            show_progress=False,
        )
        lines = _Lines(texts, tokenizer.pre_tokenizer.pre_tokenize_str, lowercase, progress)
        tokenizer.train_from_iterator(iter(lines), trainer)
        if not lines.text:
            raise ValueError(f"subwords cannot be learned: {lines.count} lines, and no text in them")
        return cls(tokenizer, lowercase=lowercase)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write tokenizer.json atomically."""
        write_whole(Path(path), self.to_json().encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Subwords:
        """Read a file that ``save`` wrote."""
        data = bytes_of(path, MOST)
        try:
            return cls.from_json(data.decode())
        except ValueError as error:
            raise ValueError(f"{path}: not a usable tokenizer.json: {error}") from error

    def to_json(self) -> str:
        """The content of tokenizer.json, which the ``tokenizers`` library also loads by itself."""
        whole = json.loads(self._tokenizer.to_str())
        if self.lowercase:
            whole["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Lowercase"}, whole["normalizer"]]}
        return json.dumps(whole, ensure_ascii=False, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Subwords:
        return cls.of(parse_tokenizer(text))

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Subwords:
        """The subwords of a tokenizer parsed from ``to_json``."""
        from tokenizers import normalizers

        prefix, found = normalizers.Prepend(_PREFIX), tokenizer.normalizer
        lower = normalizers.Sequence([normalizers.Lowercase(), prefix])
        if found is None or found.__getstate__() not in (prefix.__getstate__(), lower.__getstate__()):
            raise ValueError("expected Subwords' own normalizer; it was made by something else")
        own = _blank().pre_tokenizer
        if tokenizer.pre_tokenizer is None or tokenizer.pre_tokenizer.__getstate__() != own.__getstate__():
            raise ValueError("expected Subwords' own pre-tokenizer; it was made by something else")
        # This class lower-cases character by character, so that offsets refer to the line.
        tokenizer.normalizer = prefix
        return cls(tokenizer, lowercase=found.__getstate__() == lower.__getstate__())

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the vocabulary."""
        return fingerprint(self.to_json())

    # --- using it ---

    def __len__(self) -> int:
        return len(self._bytes)

    def token(self, id: int) -> str:
        """A subword as text; � replaces bytes that are not whole characters."""
        if id < len(SPECIAL):
            return SPECIAL[id]
        return next((name for name, i in self.extra.items() if i == id), self._bytes[id].decode(errors="replace"))

    @property
    def silent(self) -> list[int]:
        """Ids without text: the special and the extra tokens."""
        return [PAD, BOS, EOS, UNK, *self.extra.values()]

    @property
    def breaks(self) -> list[int]:
        """Ids of tokens that contain a line end."""
        return [i for i, token in enumerate(self._bytes) if b"\n" in token or b"\r" in token]

    def names(self) -> list[str]:
        """All subwords by id, as tokenizer.json writes them: each byte is a printable character, a space is Ġ."""
        known = self._tokenizer.get_vocab()
        return sorted(known, key=known.__getitem__)

    def encode(self, line: str, *, dropout: float = 0.0, seed: int = 0, epoch: int = 0, number: int = 0) -> Encoded:
        """The subwords of a line, without <s> and </s>.

        ``dropout`` is the probability of dropping a merge (BPE-dropout). The result depends only on the line, ``seed``,
        ``epoch`` and the line's ``number``.
        """
        return self.encode_batch([line], dropout=dropout, seed=seed, epoch=epoch, number=number)[0]

    def encode_batch(
        self, lines: Sequence[str], *, dropout: float = 0.0, seed: int = 0, epoch: int = 0, number: int = 0
    ) -> list[Encoded]:
        """``encode`` for many lines; ``number`` is that of the first."""
        lines = [lines] if isinstance(lines, str) else list(lines)
        texts = [self._normalize(line) for line in lines]
        if dropout:
            chunks = self.chunks()
            numbers = np.arange(number, number + len(lines))
            rows = Ragged.of([chunks.line(line) for line in lines])
            drawn = self.dropout.draw(rows, chunks.table(), line_keys(seed, epoch, 0, numbers), dropout)
            ids = drawn.lists()
        else:
            ids = [encoding.ids for encoding in self._tokenizer.encode_batch(texts)]
        return [self._locate(line, text, row) for line, text, row in zip(lines, texts, ids, strict=True)]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of subwords, without special and extra tokens; � replaces invalid UTF-8."""
        text = b"".join([self._bytes[i] for i in ids]).decode(errors="replace")
        return text.removeprefix(_PREFIX)

    @cached_property
    def sizes(self) -> Integers:
        """Bytes of each subword; 0 for special and extra tokens."""
        return np.array([len(token) for token in self._bytes])

    @cached_property
    def characters(self) -> frozenset[str]:
        """Characters that some subword contains whole; others are spelled byte by byte."""
        return frozenset("".join(token.decode(errors="ignore") for token in self._bytes))

    @property
    def spelled(self) -> Sequence[bytes]:
        """The bytes of each subword, empty for special and extra tokens."""
        return self._bytes

    def chunks(self) -> Chunks:
        """An empty table of chunks, for encoding a corpus."""
        split, cut = self._tokenizer.pre_tokenizer.pre_tokenize_str, self._tokenizer.model.tokenize
        return Chunks(
            lambda line: [piece for piece, _ in split(_PREFIX + text)] if (text := self._normalize(line)) else [],
            lambda piece: [token.id for token in cut(piece)],
            self.sizes.tolist(),
        )

    @cached_property
    def dropout(self) -> Dropout:
        """Draws segmentations; see ``regard.text.bpe``."""
        model = json.loads(self._tokenizer.to_str())["model"]
        names: dict[str, int] = model["vocab"]
        merges: Merges = {
            (names[left], names[right]): (rank, names[left + right])
            for rank, (left, right) in enumerate(model["merges"])
        }
        single = {token: i for i, token in enumerate(self._bytes) if len(token) == 1}
        return Dropout(merges, [tuple(single[token[k : k + 1]] for k in range(len(token))) for token in self._bytes])

    def _normalize(self, line: str) -> str:
        check_line(line)
        return _lower(line) if self.lowercase else line

    def _locate(self, line: str, text: str, ids: list[int]) -> Encoded:
        """Subwords with their places in the line. ``text`` is the line, perhaps lower-cased."""
        char_of, piece_of, word_of = self._bytes_of(line, text)
        out, byte = Encoded(ids, [], [], []), 0
        for i in ids:
            first, last = char_of[byte], char_of[byte + len(self._bytes[i]) - 1]
            if first < last and (first < 0 or line[first].isspace()):
                first += 1
            out.offsets.append((max(first, 0), last + 1))
            out.words.append(word_of[byte])
            out.pieces.append(piece_of[byte])
            byte += len(self._bytes[i])
        return out

    def _bytes_of(self, line: str, text: str) -> tuple[list[int], list[int], list[int]]:
        """For each byte, starting with the prefix's: its character (−1 for the prefix), its piece and its word.

        White space within a piece belongs to the word after it.
        """
        origin = [i for i, char in enumerate(line) for _ in (char.lower() if self.lowercase else char)]
        char_of = [-1, *(origin[i] for i, char in enumerate(text) for _ in char.encode())]
        pieces = self._tokenizer.pre_tokenizer.pre_tokenize_str(_PREFIX + text) if text else []
        piece_of = [k for k, (piece, _) in enumerate(pieces) for _ in piece]  # a piece has one character per byte
        words = [*word_numbers(line), -1]  # the prefix, character −1, uses the last entry
        word_of = [words[char] for char in char_of]
        for byte in reversed(range(len(piece_of) - 1)):
            if word_of[byte] < 0 and piece_of[byte] == piece_of[byte + 1]:
                word_of[byte] = word_of[byte + 1]
        return char_of, piece_of, word_of


def fingerprint(tokenizer: str) -> str:
    """A hash of a tokenizer.json."""
    return hashlib.sha256(tokenizer.encode()).hexdigest()[:32]


class _Lines:
    """The lines of several texts, checked and counted."""

    def __init__(
        self,
        texts: Iterable[Iterable[str]],
        split: Callable[[str], list[tuple[str, tuple[int, int]]]],
        lowercase: bool,
        progress: Callable[[int], None] | None,
    ) -> None:
        """``split`` gives the pieces of a line with their spans."""
        self._texts, self._split, self._lowercase, self._progress = texts, split, lowercase, progress
        self.count, self.text = 0, False

    def __iter__(self) -> Iterator[str]:
        if isinstance(self._texts, str):
            raise TypeError("expected several texts, each an iterable of lines; got one string")
        for text in self._texts:
            if isinstance(text, str):
                raise TypeError("expected several texts, each an iterable of lines; got lines: write [lines]")
            for line in text:
                _refuse_surrogates(line)
                self.count += 1
                self.text = self.text or bool(line.strip())
                if self._progress and self.count % 1000 == 0:
                    self._progress(self.count)
                line = self._of_words(line) if len(line) > _LONGEST else line
                yield _lower(line) if self._lowercase else line
        if self._progress:
            self._progress(self.count)

    def _of_words(self, line: str) -> str:
        """The line without overlong words: ASCII runs without a space, and single pieces in other scripts.

        Only in ASCII does a missing space mean encoded data: an article in Chinese has no spaces either.
        """
        line = _ENDLESS.sub("", line)
        if not _UNSPACED.search(line):
            return line
        return "".join(line[a:b] for _, (a, b) in self._split(line) if b - a <= _LONGEST)


def _blank() -> Tokenizer:
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Prepend(_PREFIX)
    split = pre_tokenizers.Split(Regex(_PIECE), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    return tokenizer


def parse_tokenizer(text: str) -> Tokenizer:
    """Parse a tokenizer.json. Only our own and BERT's components are allowed: others may hang or panic."""
    from tokenizers import Tokenizer

    table = parse_json(text)
    if isinstance(table, dict):
        for name, types in _PARTS.items():
            _check_part(name.replace("_", "-"), table.get(name), types)
        model = table.get("model")
        if isinstance(model, dict) and model.get("type") != "WordPiece" and model.get("continuing_subword_prefix"):
            raise ValueError("expected no continuing_subword_prefix; it was made by something else")
    try:
        return Tokenizer.from_str(text)
    except Exception as error:  # the library raises Exception itself
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _check_part(name: str, part: object, types: Sequence[str]) -> None:
    left = [part]
    while left:
        one = left.pop()
        left += one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
        known = not isinstance(one, dict) or (one.get("type", types[0]) in types and one.get("Regex", _PIECE) == _PIECE)
        if not known:
            raise ValueError(f"expected Subwords' own {name} or BERT's; it was made by something else")


def _check(tokenizer: Tokenizer) -> None:
    from tokenizers import models

    if not isinstance(tokenizer.model, models.BPE):
        raise ValueError(f"expected a BPE model, got {type(tokenizer.model).__name__}")
    vocabulary = tokenizer.get_vocab(with_added_tokens=False)
    if [vocabulary.get(name) for name in SPECIAL] != [PAD, BOS, EOS, UNK]:
        raise ValueError(f"expected {' '.join(SPECIAL)} to have the ids 0 to 3; it was made by something else")
    if missing := [byte for byte, char in _byte_chars().items() if char not in vocabulary]:
        raise ValueError(f"expected a token for each byte; {len(missing)} of 256 are missing")
    if sorted(vocabulary.values()) != list(range(len(vocabulary))):
        raise ValueError("expected ids without gaps")


def _byte_chars() -> dict[int, str]:
    """The characters of byte-level tokens: a printable byte as itself, any other as a character from U+0100."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in shown]
    return {byte: chr(byte) for byte in shown} | {byte: chr(0x100 + i) for i, byte in enumerate(rest)}


def _char_bytes() -> dict[int, int]:
    """For ``str.translate``: a byte's character → the byte; any other character below 256 → U+FFFF."""
    return dict.fromkeys(range(256), 0xFFFF) | {ord(char): byte for byte, char in _byte_chars().items()}


def check_line(line: str) -> str:
    """Return the line; refuse what is not valid text."""
    if not isinstance(line, str):
        raise TypeError(f"expected a line of text, got {type(line).__name__}")
    _refuse_surrogates(line)
    return line


def _refuse_surrogates(line: str) -> None:
    try:
        line.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"not Unicode text: a lone surrogate, U+{ord(line[error.start]):04X}, at character {error.start}; "
            'decode the bytes with errors="replace", or leave the line out'
        ) from None


def _lower(line: str) -> str:
    """Lower-case each character by itself, so that offsets can be mapped back; a final sigma becomes σ."""
    return "".join([char.lower() for char in line])


def word_numbers(line: str) -> list[int]:
    """The number of each character's word in ``line.split()``, −1 for white space."""
    words, number, inside = [], -1, False
    for char in line:
        space = char.isspace()
        number += not space and not inside
        inside = not space
        words.append(-1 if space else number)
    return words
