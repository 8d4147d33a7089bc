"""WordPiece, the subwords of BERT (Wu et al. 2016, https://arxiv.org/abs/1609.08144), by the ``tokenizers`` library."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from regard.files.bounds import bytes_of, parse_json
from regard.files.whole import write_whole
from regard.text.bpe import Chunks
from regard.text.recasing import space_words
from regard.text.subwords import MOST, Encoded, Subwords, check_line, fingerprint, parse_tokenizer, word_numbers

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

PAD, UNK, CLS, SEP = "[PAD]", "[UNK]", "[CLS]", "[SEP]"
ABOUT = "tokenizer_config.json"
_UNUSED = re.compile(r"\[unused\d+\]")
_SILENT = re.compile(rf"\[(PAD|UNK|CLS|SEP|MASK)\]|{_UNUSED.pattern}")


class WordPiece:
    """A vocabulary of word beginnings and ##continuations, from Hugging Face's tokenizer.json or a vocab.txt.

    ``encode`` agrees with ``BertTokenizerFast`` without [CLS] and [SEP], except that text never becomes a special
    token: in a line, "[SEP]" is just these five characters.

    >>> words = WordPiece.of_vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "cat", "##s", "!"])
    >>> line = words.encode("The càts!")
    >>> [words.token(i) for i in line.ids], line.offsets, line.words
    (['the', 'cat', '##s', '!'], [(0, 3), (4, 7), (7, 8), (8, 9)], [0, 1, 1, 1])

    ``silent`` are the ids of tokens without text.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        from tokenizers import pre_tokenizers

        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = True
        self._tokenizer = tokenizer
        if not is_wordpiece(tokenizer):
            raise ValueError(f"expected a WordPiece model, got {type(tokenizer.model).__name__}")
        if not isinstance(tokenizer.pre_tokenizer, pre_tokenizers.BertPreTokenizer):
            raise ValueError(f"expected BERT's pre-tokenizer, got {type(tokenizer.pre_tokenizer).__name__}")
        known = tokenizer.get_vocab()
        if missing := [name for name in (PAD, UNK, CLS, SEP) if name not in known]:
            raise ValueError(f"expected the tokens {PAD} {UNK} {CLS} {SEP}; {', '.join(missing)} missing")
        self.pad_id, self.unk_id, self.bos_id, self.eos_id = (known[name] for name in (PAD, UNK, CLS, SEP))
        self.silent = sorted(i for name, i in known.items() if _SILENT.fullmatch(name))
        self._silent = frozenset(self.silent)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> WordPiece:
        """Read a tokenizer.json or a vocab.txt, or a folder with one of them."""
        path = Path(path)
        if path.is_dir():
            path = path / "tokenizer.json" if (path / "tokenizer.json").exists() else path / "vocab.txt"
        data = bytes_of(path, MOST)
        if path.name == "vocab.txt":
            try:
                return cls.of_vocabulary(data.decode().splitlines(), lowercase=_lowers(path.with_name(ABOUT)))
            except ValueError as error:
                raise ValueError(f"{path}: not a usable vocabulary: {error}") from error
        try:
            return cls.from_json(data.decode())
        except ValueError as error:
            raise ValueError(f"{path}: not a usable tokenizer.json: {error}") from error

    @classmethod
    def of_vocabulary(cls, names: Sequence[str], *, lowercase: bool = True) -> WordPiece:
        """BERT's tokenizer with this vocabulary; token i is ``names[i]``."""
        from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

        vocabulary = {name: i for i, name in enumerate(names)}
        tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=UNK))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece()
        special = [name for name in (PAD, UNK, CLS, SEP, "[MASK]") if name in vocabulary]
        tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in special])
        return cls(tokenizer)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write tokenizer.json atomically."""
        write_whole(Path(path), self.to_json().encode())

    def to_json(self) -> str:
        return json.dumps(json.loads(self._tokenizer.to_str()), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> WordPiece:
        return cls(parse_tokenizer(text))

    def with_token(self, character: str) -> WordPiece:
        """A vocabulary with a token for this character, which replaces an [unused…] token if needed."""
        whole = json.loads(self._tokenizer.to_str())
        known: dict[str, int] = whole["model"]["vocab"]
        if character in known:
            return self
        unused = min((i for name, i in known.items() if _UNUSED.fullmatch(name)), default=None)
        if unused is None:
            raise ValueError(f"expected a token {character!r} in the vocabulary, or an [unused…] one to stand for it")
        whole["model"]["vocab"] = {character if i == unused else name: i for name, i in known.items()}
        return WordPiece.from_json(json.dumps(whole))

    @cached_property
    def lowercase(self) -> bool:
        """Whether encoding loses case."""
        return self.key("A") == "a"

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the vocabulary."""
        return fingerprint(self.to_json())

    def __len__(self) -> int:
        return int(self._tokenizer.get_vocab_size())

    def token(self, id: int) -> str:
        """A token as the vocabulary writes it."""
        name = self._tokenizer.id_to_token(id)
        if name is None:
            raise ValueError(f"expected a token id from 0 to {len(self) - 1}, got {id}")
        return name

    def encode(self, line: str) -> Encoded:
        """The subwords of a line, without [CLS] and [SEP]."""
        return self.encode_batch([line])[0]

    def encode_batch(self, lines: Sequence[str]) -> list[Encoded]:
        """``encode`` for many lines."""
        lines = [check_line(line) for line in lines]
        found = self._tokenizer.encode_batch(lines, add_special_tokens=False)
        return [self._locate(line, row) for line, row in zip(lines, found, strict=True)]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of tokens; case, accents and spaces may be lost."""
        return space_words([word for word, _ in self.words(ids)])

    def words(self, ids: Iterable[int]) -> list[tuple[str, list[int]]]:
        """Words and marks, each with the places of its tokens; silent tokens are skipped."""
        found: list[tuple[str, list[int]]] = []
        for place, token in enumerate(ids):
            if token in self._silent:
                continue
            name = self.token(token)
            if name.startswith("##") and found:
                text, places = found[-1]
                found[-1] = text + name[2:], [*places, place]
            else:
                found.append((name.removeprefix("##"), [place]))
        return found

    def key(self, text: str) -> str:
        """The normalized text that is encoded: perhaps without case and accents."""
        normalizer = self._tokenizer.normalizer
        return text if normalizer is None else str(normalizer.normalize_str(text))

    def chunks(self) -> Chunks:
        """An empty table of words and marks, for encoding a corpus."""
        split, cut = self._tokenizer.pre_tokenizer.pre_tokenize_str, self._tokenizer.model.tokenize
        return Chunks(
            lambda line: [piece for piece, _ in split(self.key(check_line(line)))],
            lambda piece: [token.id for token in cut(piece)],
            [0] * len(self),  # nothing is merged, so words of any length stay whole
        )

    @staticmethod
    def _locate(line: str, row: Encoding) -> Encoded:
        words = [*word_numbers(line), -1]
        pieces = [-1 if piece is None else piece for piece in row.word_ids]
        return Encoded(row.ids, row.offsets, [words[start] for start, _ in row.offsets], pieces)


def _lowers(path: Path) -> bool:
    """Whether a Hugging Face tokenizer_config.json asks for lower case; without the file, as in early BERTs, yes."""
    if not path.exists():
        return True
    about = parse_json(bytes_of(path, 1 << 20))
    lowers = about.get("do_lower_case", True) if isinstance(about, dict) else None
    if not isinstance(lowers, bool):
        raise ValueError(f"{path.name}: expected do_lower_case to be true or false")
    return lowers


Cutter = Subwords | WordPiece
"""A tokenizer that gives subwords with their places in the text."""


def load_subwords(path: str | os.PathLike[str]) -> Cutter:
    """Read a tokenizer.json of either kind."""
    data = bytes_of(path, MOST)
    try:
        tokenizer = parse_tokenizer(data.decode())
        return WordPiece(tokenizer) if is_wordpiece(tokenizer) else Subwords.of(tokenizer)
    except ValueError as error:
        raise ValueError(f"{path}: not a usable tokenizer.json: {error}") from error


def is_wordpiece(tokenizer: Tokenizer) -> bool:
    """Whether the tokenizer's model is WordPiece."""
    from tokenizers import models

    return isinstance(tokenizer.model, models.WordPiece)
